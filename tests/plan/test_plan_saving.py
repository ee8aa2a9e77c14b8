"""When a plan saves, and whether training waits."""

from __future__ import annotations

import re

import pytest

from planc.api import check_source
from planc.estimate.estimate import estimate
from planc.estimate.states import checkpoint_bytes
from planc.graph.graph import Graph
from planc.graph.ops import SaveCheckpoint, SettleSave
from planc.inventory.schema import Inventory
from planc.source import SourceFile
from planc.vocab import MeshDim
from tests.plans import FULL, PLANS


def compiled(*settings: str) -> tuple[Graph, Inventory]:
    without = re.sub(r"expect \{.*?\n\}", "", FULL, flags=re.DOTALL)
    sources = [SourceFile(f"--set {setting}", setting) for setting in settings]
    found = check_source(SourceFile("full.plan", without), base=PLANS, settings=sources)
    assert found.graph is not None and found.inventory is not None, found.diagnostics
    return found.graph, found.inventory


def test_training_waits_unless_the_plan_says_otherwise() -> None:
    graph, inventory = compiled()
    [save] = graph.save
    assert isinstance(save, SaveCheckpoint)
    assert (save.mode, save.when_busy) == ("sync", None)
    assert not any(isinstance(op, SettleSave) for op in graph.step)
    assert estimate(graph, inventory).memory.host_bytes == 0


@pytest.mark.parametrize(
    ("mode", "when_busy"),
    [("async", "wait"), ("async(when_busy = wait)", "wait"), ("async(when_busy = skip)", "skip")],
)
def test_a_save_behind_training_waits_for_the_one_before_or_is_skipped(mode: str, when_busy: str) -> None:
    graph, _ = compiled(f"checkpoint.mode={mode}")
    [save] = graph.save
    assert isinstance(save, SaveCheckpoint)
    assert (save.mode, save.when_busy) == ("async", when_busy)


def test_all_ranks_learn_of_the_end_of_a_save_after_all_else_in_a_step() -> None:
    graph, _ = compiled("checkpoint.mode=async")
    settle = graph.step[-1]
    assert isinstance(settle, SettleSave)
    assert settle.over == (MeshDim.DP_SHARD, MeshDim.TP), "of more than one rank"


def test_a_plan_that_never_saves_has_nothing_to_settle() -> None:
    graph, _ = compiled("checkpoint.mode=async", "checkpoint.save_every=none", "checkpoint.save_last=false")
    assert graph.save == ()
    assert not any(isinstance(op, SettleSave) for op in graph.step)


def test_the_copies_of_all_ranks_are_one_checkpoint_in_the_hosts_memory() -> None:
    graph, inventory = compiled("checkpoint.mode=async")
    memory = estimate(graph, inventory).memory
    assert memory.host_bytes == memory.part("staged saves").num_bytes
    assert 0 <= graph.world_size * memory.host_bytes - checkpoint_bytes(graph, inventory) < graph.world_size


def test_a_checkpoint_holds_what_its_optimizer_keeps() -> None:
    with_moments = checkpoint_bytes(*compiled())
    weights = checkpoint_bytes(*compiled("optimizer.kind=sgd(lr = 0.1, momentum = 0.0)"))
    momentum = checkpoint_bytes(*compiled("optimizer.kind=sgd(lr = 0.1, momentum = 0.9)"))
    assert momentum == 2 * weights
    assert with_moments > 3 * weights
