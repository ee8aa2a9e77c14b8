"""An optimizer's state, and the temporaries of its step, as the op declares them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.runtime.rehearsal.rehearse import rehearse
from tests.parity.cases import Case, compile_case


def update_peak(kind: str, *, workspace: Path) -> dict[str, int]:
    """Bytes by purpose when the optimizer's step holds the most; one process, no sharding."""
    graph = compile_case(Case("1", settings=(f"optimizer.kind={kind}",)), workspace=workspace)
    measured = rehearse(graph, base=workspace).measured
    assert measured is not None
    (segment,) = (one for one in measured.segments if one.segment == "optimizer.step")
    return dict(segment.parts)


@pytest.mark.slow
def test_few_bits_are_held_for_moments(workspace: Path) -> None:
    """Two codes of a byte and two scales for 16 columns, beside weights of four bytes; norms are few."""
    parts = update_peak("adamw_8bit(lr = 1e-3, block = 16)", workspace=workspace)
    assert parts["optimizer state"] == pytest.approx((2 + 2 * 4 / 16) / 4 * parts["parameters"], rel=0.1)
    assert parts["optimizer"] > 0


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("kind", "kept", "made"),
    [
        ("adamw(lr = 1e-3)", 2, 0),
        ("adamw(lr = 1e-3, implementation = foreach)", 2, 1),
        ("sgd(lr = 1e-3, momentum = 0.9)", 1, 0),
        ("sgd(lr = 1e-3, weight_decay = 0.1)", 0, 1),
    ],
)
def test_a_step_holds_what_is_kept_and_what_is_made(kind: str, kept: int, made: int, workspace: Path) -> None:
    parts = update_peak(kind, workspace=workspace)
    parameters = parts["parameters"]
    # Blocks of 512 bytes, counters, and norms, which are a group without decay.
    assert parts.get("optimizer state", 0) == pytest.approx(kept * parameters, rel=0.1)
    assert parts.get("optimizer", 0) == pytest.approx(made * parameters, rel=0.1)
