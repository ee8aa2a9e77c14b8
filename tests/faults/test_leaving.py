"""Whatever a run does when it is asked to stop, it acknowledges at once, exits in time, and resumes exactly.

Each op is made slow: finishing it would take far longer than the run may take to exit.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from planc.cli.commands import run as command
from planc.cli.running import watching
from planc.graph.op import Op
from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.interpreter import Position
from planc.runtime.stopping import stop_points
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.checkpoint import ops as checkpointing
from planc.runtime.torch.handlers import HANDLERS
from planc.runtime.torch.training import batches
from planc.runtime.torch.training import forward_backward as steps
from planc.runtime.torch.weights import export, weights
from tests.faults.ranks import Ending, endings
from tests.faults.runs import NUM_STEPS, _log, _redirect, exactness_problem, require_done, said
from tests.faults.signals import PREEMPTED, status
from tests.launch.processes import free_port
from tests.parity.cases import Case, make_workspace, plan_text
from tests.patience import WAIT_SECONDS, is_within

LEAVES_SECONDS = 20.0
"""From the start of a run to its end; every op here would take a minute or more."""
HEARD = "SIGTERM received on rank"

LONG_STEP_SECONDS = 0.5
"""From when on these runs abandon a step: sooner than a user's, that tests take less time."""
IN_A_LONG_STEP = 0.8
"""A request that comes so late into a step finds it long, however short the steps before were."""


@dataclass(frozen=True, slots=True)
class Slow:
    """What is slow, from which step on, and on which ranks SIGTERM arrives while it is under way."""

    what: str
    seconds: float
    step: int
    ranks: tuple[int, ...] = (0,)
    after: float = 0.3


@dataclass(frozen=True, slots=True)
class Scene:
    """Plans by name, and undisturbed runs by world size."""

    plans: dict[str, Path]
    undisturbed: dict[int, Path]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("leaving")
    workspace = make_workspace(folder / "workspace", ("llama",))
    evaluation = '\n  eval "held_out" { source = text("corpus.txt")\n every = 3 steps\n sequences = 60 }'
    plans = {}
    for name, mesh in {"one": {}, "dp": {"dp_shard": 2}, "replicas": {"dp_replicate": 2}}.items():
        text = plan_text(Case(name, mesh=mesh, micro_batch=1), saves=True)
        text = text.replace("data {", f"data {{{evaluation}", 1)
        text = text.replace("save_every = 3 steps", "save_last = true")
        plans[name] = workspace / f"{name}.plan"
        text = text.replace("save_last = true", 'save_last = true\n  export "hf" { when = end }')
        plans[name].write_text(text, encoding="utf-8")
    undisturbed = {}
    for name, size in (("one", 1), ("dp", 2)):
        undisturbed[size] = folder / f"undisturbed-{size}"
        require_done(run(plans[name], undisturbed[size], world_size=size), undisturbed[size])
    return Scene(plans, undisturbed)


def run(
    plan: Path, folder: Path, *, world_size: int, slow: Slow | None = None, more: Sequence[str] = ()
) -> tuple[Ending, ...]:
    world = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return endings(
        _run_rank,
        world_size,
        plan,
        folder,
        slow,
        tuple(more),
        group=False,
        environment={**world, "LOCAL_WORLD_SIZE": str(world_size)},
        limit_seconds=WAIT_SECONDS,
    )


def _run_rank(
    rank: int, world_size: int, plan: Path, folder: Path, slow: Slow | None, more: tuple[str, ...]
) -> None:
    _redirect(_log(folder, rank))
    if slow is not None:
        _make_slow(slow, is_told=rank in slow.ranks)
    command.main([str(plan), "--run-dir", str(folder), *more])


def _make_slow(slow: Slow, *, is_told: bool) -> None:
    """Makes what `slow` names take `slow.seconds`, and sends this process SIGTERM in its midst, once."""
    stop_points.LONG_STEP_SECONDS = LONG_STEP_SECONDS
    watching._START_SECONDS = 2.0
    step = 0
    waiting = [signal.SIGTERM] if is_told else []

    def drag() -> None:
        if step < slow.step:
            return
        if waiting:
            time.sleep(slow.after)
            os.kill(os.getpid(), waiting.pop())
        time.sleep(slow.seconds)

    execute = TorchBackend.execute

    def execute_in_step(self: Any, op: Op, position: Position) -> None:
        nonlocal step
        step = position.step
        execute(self, op, position)

    TorchBackend.execute = execute_in_step  # type: ignore[method-assign]
    places: dict[str, tuple[Any, str]] = {
        "an evaluation's batch": (TorchBackend, "_perform"),
        "an export's tensor": (export.Gathering, "_gathered"),
        "a save": (checkpointing, "save"),
        "tokenization": (batches, "open_in_memory"),
    }
    handlers = {"a micro-batch": steps.backward, "weights": weights.init_weights}
    if slow.what in handlers:
        handler = handlers[slow.what]
        kind = next(kind for kind, one in HANDLERS.items() if one is handler)
        calls: Any = TorchBackend.handlers
        calls[kind] = replace(calls[kind], handler=_dragging(handler, drag))
    else:
        module, name = places[slow.what]
        setattr(module, name, _dragging(getattr(module, name), drag))


def _dragging(function: Any, drag: Any) -> Any:
    def dragged(*arguments: Any, **options: Any) -> Any:
        drag()
        return function(*arguments, **options)

    return dragged


def left(folder: Path, found: Sequence[Ending], *, step: int) -> list[str]:
    """What a run that ended as it should says it left, after saving `step`."""
    for ending in found:
        text = said(folder, rank=ending.rank)
        assert (ending.code, is_within(ending.seconds, LEAVES_SECONDS)) == (PREEMPTED, True), (ending, text)
    found_status = status(folder)
    assert (found_status["state"], found_status["exit_code"]) == ("preempted", PREEMPTED)
    assert (found_status["step"], found_status["saved_step"]) == (step, step)
    assert committed_steps(folder / "checkpoints")[-1:] == (step,)
    parts: list[str] = found_status["left"]
    return parts


def evaluations(folder: Path) -> dict[int, list[float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: [one["loss"] for one in line.get("evaluations", [])] for line in lines}


def goes_on_exactly(plan: Path, folder: Path, scene: Scene, *, world_size: int) -> None:
    """The same command ends the run, and makes up for the evaluation that was left."""
    require_done(run(plan, folder, world_size=world_size), folder)
    if status(folder)["step"] == committed_steps(folder / "checkpoints")[0]:
        # Saved before the evaluation was left, which its progress says: the weights are the same.
        found, wanted = (
            read_manifest(step_directory(one / "checkpoints", step=NUM_STEPS))
            for one in (folder, scene.undisturbed[world_size])
        )
        assert (found.parts, found.contents) == (wanted.parts, wanted.contents)
    else:
        assert exactness_problem(folder, scene.undisturbed[world_size]) == ""
    assert evaluations(folder) == evaluations(scene.undisturbed[world_size])
    assert (folder / "export" / "hf" / "model.safetensors").exists()


def heard_before_it_left(folder: Path, *, rank: int = 0) -> bool:
    return f"{HEARD} {rank}" in said(folder, rank=rank)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("step", [3, NUM_STEPS], ids=["in the middle", "after the last step"])
def test_an_evaluation_is_left_and_made_up_for(step: int, scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    slow = Slow("an evaluation's batch", 0.5, step)
    found = run(scene.plans["one"], folder, world_size=1, slow=slow)
    parts = left(folder, found, step=step)
    assert parts[0] == f'the evaluation "held_out" after step {step}'
    assert heard_before_it_left(folder)
    assert evaluations(folder)[step] == [], "no partial mean is a figure"
    manifest = read_manifest(step_directory(folder / "checkpoints", step=step))
    assert manifest.progress.evaluations_left == ("held_out",)
    goes_on_exactly(scene.plans["one"], folder, scene, world_size=1)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(1,), (0, 1)], ids=["one rank is signalled", "both are signalled"])
def test_ranks_leave_an_evaluation_after_the_same_batch(
    ranks: tuple[int, ...], scene: Scene, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    found = run(scene.plans["dp"], folder, world_size=2, slow=Slow("an evaluation's batch", 1.0, 3, ranks))
    assert left(folder, found, step=3) == ['the evaluation "held_out" after step 3']
    assert heard_before_it_left(folder, rank=ranks[0])
    goes_on_exactly(scene.plans["dp"], folder, scene, world_size=2)


@pytest.mark.slow
def test_ranks_without_a_common_collective_leave_after_the_same_batch(scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    slow = Slow("an evaluation's batch", 1.0, 3, (1,))
    found = run(scene.plans["replicas"], folder, world_size=2, slow=slow)
    assert left(folder, found, step=3) == ['the evaluation "held_out" after step 3']


@pytest.mark.slow
def test_a_long_step_is_left_and_the_step_before_is_saved(scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    slow = Slow("a micro-batch", 6.0, 2, after=IN_A_LONG_STEP)
    found = run(scene.plans["one"], folder, world_size=1, slow=slow)
    assert left(folder, found, step=1) == ["step 2"]
    goes_on_exactly(scene.plans["one"], folder, scene, world_size=1)


@pytest.mark.slow
def test_ranks_leave_a_long_step_together(scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    slow = Slow("a micro-batch", 4.0, 2, (1,), after=IN_A_LONG_STEP)
    found = run(scene.plans["dp"], folder, world_size=2, slow=slow)
    assert left(folder, found, step=1) == ["step 2"]
    goes_on_exactly(scene.plans["dp"], folder, scene, world_size=2)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_export_is_left_and_made_up_for(world_size: int, scene: Scene, tmp_path: Path) -> None:
    folder, plan = tmp_path / "run", scene.plans["one" if world_size == 1 else "dp"]
    slow = Slow("an export's tensor", 3.0, NUM_STEPS, (world_size - 1,))
    found = run(plan, folder, world_size=world_size, slow=slow)
    assert left(folder, found, step=NUM_STEPS) == [f"the export to {folder / 'export' / 'hf'}"]
    assert list((folder / "export").iterdir()) == []
    goes_on_exactly(plan, folder, scene, world_size=world_size)


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_save_under_way_is_the_last_one(mode: str, scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    more = ("--set", "checkpoint.save_every=2 steps", "--set", f"checkpoint.mode={mode}")
    # What a save behind training copies is slow where training waits for it: at the end.
    found = run(scene.plans["one"], folder, world_size=1, slow=Slow("a save", 2.0, 2), more=more)
    step = 2 if mode == "sync" else NUM_STEPS
    if mode == "sync":
        assert left(folder, found, step=step) == []
    assert heard_before_it_left(folder)
    assert said(folder).count("saved ") == (1 if mode == "sync" else 3)


@pytest.mark.parametrize("what", ["tokenization", "weights"])
def test_a_start_is_left_at_once(what: str, scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    [ending] = run(scene.plans["one"], folder, world_size=1, slow=Slow(what, 60.0, 0))
    assert (ending.code, is_within(ending.seconds, LEAVES_SECONDS)) == (PREEMPTED, True), said(folder)
    assert "stopped by SIGTERM before the end of the first step" in said(folder)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_first_step_that_compiles_is_left_as_nothing_is_lost(
    world_size: int, scene: Scene, tmp_path: Path
) -> None:
    folder, plan = tmp_path / "run", scene.plans["one" if world_size == 1 else "dp"]
    slow = Slow("a micro-batch", 60.0, 1, tuple(range(world_size)))
    found = run(plan, folder, world_size=world_size, slow=slow)
    for ending in found:
        assert (ending.code, is_within(ending.seconds, LEAVES_SECONDS)) == (PREEMPTED, True), said(folder)
    assert heard_before_it_left(folder)
    assert status(folder)["state"] == "preempted"
    assert committed_steps(folder / "checkpoints") == ()
