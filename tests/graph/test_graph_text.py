"""The graph's text form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planc.api import check_source
from planc.graph.text import summarise, to_mermaid, to_text
from planc.source import SourceFile
from tests.plans import PLANS, QUICKSTART, checked

GOLDENS = Path(__file__).parent


@pytest.mark.parametrize(
    ("render", "golden"), [(to_text, "quickstart.graph.txt"), (to_mermaid, "quickstart.graph.mmd")]
)
def test_quickstart_golden(
    render: Callable[..., str], golden: str, match_golden: Callable[[Path, str], None]
) -> None:
    source = SourceFile("quickstart.plan", QUICKSTART.read_text())
    graph = check_source(source, base=QUICKSTART.parent).graph
    match_golden(GOLDENS / golden, render(graph))


def test_what_may_change_with_pytorch_is_named_for_the_ops_that_stand_on_it() -> None:
    def unstable(name: str) -> list[str]:
        graph = checked(PLANS / name).graph
        assert graph is not None
        _, _, lines = to_text(graph).partition("unstable:\n")
        return [line.split()[0] for line in lines.splitlines()]

    assert unstable("launch-one-process.plan") == []
    assert unstable("launch-fsdp4.plan") == []
    assert unstable("launch-tp4.plan") == ["tp.shard", "loss"]
    everything = ["attention.attach", "tp.shard", "fsdp.shard", "loss"]
    assert unstable("launch-dp2-cp2-tp2.plan") == everything


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (("a.0.x", "a.1.x", "a.2.x"), ("a.{0..2}.x",)),
        (("a.0.x", "a.2.x"), ("a.{0,2}.x",)),
        (("a.0.x", "a.0.y", "a.1.x", "a.1.y"), ("a.{0..1}.x", "a.{0..1}.y")),
        (("a.7.x",), ("a.7.x",)),
        (("a.x", "b"), ("a.x", "b")),
        (("a.0.b.0", "a.0.b.1", "a.1.b.0"), ("a.{0..1}.b.0", "a.0.b.1")),
        ((), ()),
    ],
)
def test_runs_of_layers_fold(names: tuple[str, ...], folded: tuple[str, ...]) -> None:
    assert summarise(names) == folded
