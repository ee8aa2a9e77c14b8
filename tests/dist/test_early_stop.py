"""Runs that end by an evaluation, and the checkpoints they keep, against the rules written apart here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch.distributed as dist

from planc.api import check_source
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import Evaluate
from planc.runtime.checkpoint_format.best import best_steps
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.interpreter import Position, run
from planc.runtime.torch.backend import TorchBackend
from planc.source import SourceFile
from tests.dist.faulty_steps import Listening, state_digests
from tests.dist.pool import run_ranks
from tests.parity.cases import TP2_DP2, Case, make_workspace, plan_text
from tests.parity.ranks import Task, open_run

STEPS, PATIENCE, MIN_DELTA, KEEP_BEST = 12, 3, 0.02, 2


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("early") / "workspace", models=("llama",))


def graph_of(workspace: Path, mesh: Mapping[str, int], *, decides: bool) -> Graph:
    """A plan whose loss soon stops falling; `decides` adds the settings by which runs end and keep."""
    case = Case("early", "", mesh)
    by = f"patience = {PATIENCE}\n min_delta = {MIN_DELTA}\n keep_best = {KEEP_BEST}" if decides else ""
    held = f'\n  eval "held" {{ source = text("corpus.txt")\n every = 1 steps\n sequences = 10\n {by} }}'
    text = plan_text(case, saves=True).replace("data {", f"data {{{held}", 1)
    text = text.replace("save_every = 3 steps", "save_every = 1 steps").replace("lr = 0.001", "lr = 0.1")
    text = text.replace("steps = 6\n", f"steps = {STEPS}\n")
    text = text.replace("keep_last = 9", f"keep_last = {1 if decides else 99}")
    text = text.replace("  seed = 7\n", "  seed = 7\n  dtype = float64\n")
    checked = check_source(SourceFile("early.plan", text), base=workspace, world_size=case.world_size)
    assert checked.graph is not None, checked.diagnostics
    return checked.graph


@dataclass(slots=True)
class Seen:
    """A rank's view: its last step, the loss of each evaluation by step, its state, and its notes."""

    ended: int
    losses: dict[int, float]
    state: dict[str, str]
    noted: list[str]


class AskedToStop(TorchBackend):
    """Gets SIGTERM as the evaluation of a step begins."""

    asked_at = 0

    def execute(self, op: Op, position: Position) -> None:
        if isinstance(op, Evaluate) and position.step == self.asked_at:
            self.run.notice.request("SIGTERM")
        super().execute(op, position)


def train(rank: int, world_size: int, task: Task, asked_at: int = 0) -> Seen:
    listening = Listening()
    backend = AskedToStop(open_run(task, listening))
    backend.asked_at = asked_at
    ended = run(task.graph, backend, stop_after=task.stop_after)
    losses = {step.step: one.loss for step in listening.steps for one in step.evaluations}
    seen = Seen(ended, losses, state_digests(backend.state), listening.texts)
    dist.destroy_process_group()
    return seen


def trained(graph: Graph, workspace: Path, folder: Path, *, asked_at: int = 0, **task: int) -> list[Seen]:
    return run_ranks(train, graph.world_size, Task(graph, workspace, folder, **task), asked_at, init=False)


def stops_at(losses: Mapping[int, float]) -> tuple[int, float]:
    """The step after which patience has run out, and the loss that none has improved on."""
    best, without = float("inf"), 0
    for step, loss in sorted(losses.items()):
        without = 0 if loss < best - MIN_DELTA else without + 1
        best = loss if without == 0 else best
        if without == PATIENCE:
            return step, best
    raise AssertionError(f"patience never runs out: {losses}")


def manifests(folder: Path) -> dict[int, Manifest]:
    root = folder / "checkpoints"
    return {step: read_manifest(step_directory(root, step=step)) for step in committed_steps(root)}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [pytest.param({}, id="one"), pytest.param(TP2_DP2, id="tp2-dp2")])
def test_a_run_ends_by_its_evaluation_and_keeps_the_best_and_the_newest_also_when_resumed(
    workspace: Path, tmp_path: Path, mesh: Mapping[str, int]
) -> None:
    whole, early = (graph_of(workspace, mesh, decides=one) for one in (False, True))
    losses = trained(whole, workspace, tmp_path / "whole")[0].losses
    last, best = stops_at(losses)
    assert PATIENCE < last < STEPS, losses
    seen = trained(early, workspace, tmp_path / "early")
    lowest = sorted(range(1, last + 1), key=lambda step: losses[step])[:KEEP_BEST]
    assert {one.ended for one in seen} == {last}
    assert seen[0].losses == {step: losses[step] for step in range(1, last + 1)}
    assert f"held has not improved on {best:.4f}" in " ".join(seen[0].noted)
    kept = manifests(tmp_path / "early")
    assert sorted(kept) == sorted({*lowest, last})
    # The state at the end is that of a run that trained on: only the length differs.
    undisturbed = trained(whole, workspace, tmp_path / "until", stop_after=last)
    assert [one.state for one in seen] == [one.state for one in undisturbed]
    # In two parts, and once more after the end.
    trained(early, workspace, tmp_path / "parts", stop_after=last - 2)
    again = trained(early, workspace, tmp_path / "parts")
    assert [(one.ended, one.state) for one in again] == [(one.ended, one.state) for one in seen]
    parts = manifests(tmp_path / "parts")
    assert parts.keys() == kept.keys()
    assert parts[last].progress == kept[last].progress
    assert {one.ended for one in trained(early, workspace, tmp_path / "parts")} == {last}


@pytest.mark.slow
def test_an_evaluation_that_a_stop_postponed_counts_once_the_run_resumes(
    workspace: Path, tmp_path: Path
) -> None:
    early = graph_of(workspace, {}, decides=True)
    (whole,) = trained(early, workspace, tmp_path / "whole")
    best = best_steps(manifests(tmp_path / "whole").values())
    for asked_at in sorted({2, best["held"], whole.ended}):
        folder = tmp_path / f"asked-{asked_at}"
        (stopped,) = trained(early, workspace, folder, asked_at=asked_at)
        assert (stopped.ended, asked_at in stopped.losses) == (asked_at, False)
        (resumed,) = trained(early, workspace, folder)
        assert (resumed.ended, resumed.state) == (whole.ended, whole.state)
        kept = manifests(folder)
        # Nothing is saved after the last step, so nothing that its late loss dooms is deleted.
        wanted = manifests(tmp_path / "whole").keys()
        assert kept.keys() == wanted or (asked_at == whole.ended and kept.keys() > wanted)
        assert best_steps(kept.values()) == best
