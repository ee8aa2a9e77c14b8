"""Which gradients of whole replicas go into one message, and in which order messages are sent."""

from __future__ import annotations

import pytest

from planc.graph.ops import AllReduceGradients
from planc.vocab import MeshDim

NAMES = ("embed.weight", "h.0.a", "h.0.b", "h.1.a", "h.1.b", "h.10.a", "hh.0.a", "head.weight")


def messages(
    *, blocks: tuple[str, ...], bucket_bytes: int, dtypes: tuple[str, ...] = ("float32",)
) -> list[tuple[str, ...]]:
    """Of parameters of ten bytes each, which have the dtypes in turn."""
    over = (MeshDim.DP_REPLICATE,)
    op = AllReduceGradients(over=over, blocks=blocks, bucket_bytes=bucket_bytes, span=None)
    sizes = [(name, dtypes[index % len(dtypes)], 10) for index, name in enumerate(NAMES)]
    return list(op.messages(sizes))


@pytest.mark.parametrize(
    ("blocks", "layers"),
    [
        ((), [NAMES]),
        (("h",), [NAMES[:1], NAMES[1:3], NAMES[3:5], NAMES[5:6], NAMES[6:]]),
        (("h", "hh"), [NAMES[:1], NAMES[1:3], NAMES[3:5], NAMES[5:6], NAMES[6:7], NAMES[7:]]),
    ],
)
def test_a_full_bucket_is_a_message_and_the_last_layer_comes_first(
    blocks: tuple[str, ...], layers: list[tuple[str, ...]]
) -> None:
    assert messages(blocks=blocks, bucket_bytes=1) == [names[::-1] for names in layers[::-1]]


def test_a_bucket_takes_whole_layers_until_it_is_full() -> None:
    found = messages(blocks=("h",), bucket_bytes=30)
    assert found == [("head.weight", "hh.0.a", "h.10.a"), ("h.1.b", "h.1.a", "h.0.b", "h.0.a"), NAMES[:1]]


def test_a_bucket_has_a_message_for_each_dtype() -> None:
    found = messages(blocks=(), bucket_bytes=1, dtypes=("float32", "bfloat16"))
    assert found == [NAMES[::-1][0::2], NAMES[::-1][1::2]]
