"""Which gradients of whole replicas go into one message."""

from __future__ import annotations

import pytest

from planc.graph.ops import AllReduceGradients
from planc.vocab import MeshDim

NAMES = ("embed.weight", "h.0.a", "h.0.b", "h.1.a", "h.1.b", "h.10.a", "hh.0.a", "head.weight")


@pytest.mark.parametrize(
    ("blocks", "messages"),
    [
        ((), [NAMES]),
        (("h",), [("embed.weight", "hh.0.a", "head.weight"), NAMES[1:3], NAMES[3:5], NAMES[5:6]]),
        (("h", "hh"), [("embed.weight", "head.weight"), NAMES[1:3], NAMES[3:5], NAMES[5:6], NAMES[6:7]]),
    ],
)
def test_a_layer_is_a_message(blocks: tuple[str, ...], messages: list[tuple[str, ...]]) -> None:
    op = AllReduceGradients(over=(MeshDim.DP_REPLICATE,), blocks=blocks, span=None)
    assert list(op.messages(NAMES)) == messages
