"""Cells against one process: loss, gradient norm, every gradient, replicas, parameters after two steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import torch.distributed as dist

from planc.data_sources.kinds import PairsSource, TextSource
from planc.graph.ops import CapExperts
from planc.plan.adapter import Lora
from planc.plan.spec import OptimizerSpec
from planc.plan.train import Distillation, Preference
from planc.runtime.data.spec import DataSpec
from planc.verify.compare import disagreements, relative_distance, worst_gradient, worst_relative
from planc.verify.ranks import BeforeOp
from planc.verify.recipe import Recipe
from planc.verify.reference import Training, train
from planc.verify.shrink import matrices_of
from tests.dist.pool import RankError, run_ranks
from tests.lattice import cells
from tests.lattice.cells import Cell, compile_cell
from tests.launch.processes import free_port
from tests.parity.ranks import Record, Task, digest, train_rank

_SMALL_GRADIENT = 1e-3
"""Share of the gradient's norm that a parameter's own is measured against at least."""
_NO_GRADIENT = 1e-6
"""Share below which it is rounding, and so is what it does to the parameter: a bias of keys has none, since
softmax does not see what all scores have in common."""
_SECONDS_A_CELL = 60
_BLOCK = 64
"""Inputs of a row that share a scale, of weights in 4 bits."""
_BATCH = 15
"""Cells that run in the same processes, one after the other; where one fails, so many are run again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of relative errors. `update` is what training changed of a parameter; its limit is larger, since AdamW
    divides gradients by their size, and makes the rounding of small ones as large as that of others."""

    loss: float
    grad_norm: float
    gradient: float
    update: float


LIMITS: Mapping[str, Limits] = {
    "float64": Limits(loss=1e-13, grad_norm=1e-12, gradient=1e-12, update=1e-10),
    "float32": Limits(loss=1e-5, grad_norm=1e-5, gradient=1e-5, update=3e-4),
    "bfloat16": Limits(loss=5e-3, grad_norm=5e-2, gradient=5e-2, update=2e-1),
}


@dataclass(frozen=True, slots=True)
class Row:
    """How far a cell is from one process. `problems` says why it fails."""

    cell: Cell
    loss: float = float("inf")
    grad_norm: float = float("inf")
    gradient: float = float("inf")
    update: float = float("inf")
    problems: tuple[str, ...] = ()


def train_cells(rank: int, world_size: int, tasks: tuple[tuple[int, Task], ...]) -> list[Record]:
    """This rank's records of runs one after the other, each in a process group and on a port of its own.

    The ports are many because a rank that is done early would meet the group before on the same one.
    """
    records = []
    for port, task in tasks:
        os.environ["MASTER_PORT"] = str(port)
        records.append(train_rank(rank, world_size, task))
        dist.destroy_process_group()
    return records


def measure_all(found: Sequence[Cell], *, workspace: Path) -> Iterator[Row]:
    """The rows of any cells, in their order: those on one number of ranks share processes."""
    for _, group in groupby(found, key=lambda cell: cell.mesh.world_size):
        alike = list(group)
        for start in range(0, len(alike), _BATCH):
            yield from measure(alike[start : start + _BATCH], workspace=workspace)


def measure(group: Sequence[Cell], *, workspace: Path, before_op: BeforeOp | None = None) -> Iterator[Row]:
    """The rows of cells on one number of ranks. Where one of them fails, each is run alone.

    `before_op` plants a bug.
    """
    try:
        by_cell = _run(group, workspace=workspace, before_op=before_op)
    except (RankError, TimeoutError, ValueError) as error:
        if len(group) > 1:
            for cell in group:
                yield from measure((cell,), workspace=workspace, before_op=before_op)
        else:
            yield Row(group[0], problems=(str(error).strip().splitlines()[-1],))
        return
    for cell, records in by_cell:
        yield compare(cell, records, reference_of(cell, workspace=workspace))


def reference_of(cell: Cell, *, workspace: Path) -> Training:
    """The training that a cell must repeat."""
    plan, graph = compile_cell(cell, workspace=workspace)
    trained = _Trained(
        frozen=graph.frozen,
        adapted=graph.adapters.modules if graph.adapters else (),
        adapter=plan.adapter.kind if plan.adapter else None,
        quantized=graph.quantized.modules if graph.quantized else (),
        ema_decay=plan.train.ema_decay,
        capacity=graph.capacity,
        loss=plan.train.loss if isinstance(plan.train.loss, Preference | Distillation) else None,
        matrices=matrices_of(graph),
    )
    batch = cell.global_batch
    return _training(cell.model, cell.dtype, batch, plan.optimizer, trained, workspace=workspace)


@dataclass(frozen=True, slots=True)
class _Trained:
    """The parts of a model that a plan trains, and what it keeps of them."""

    frozen: tuple[str, ...]
    adapted: tuple[str, ...]
    adapter: Lora | None
    quantized: tuple[str, ...]
    ema_decay: float | None
    capacity: CapExperts | None
    loss: Preference | Distillation | None
    matrices: tuple[tuple[str, tuple[int, ...]], ...]
    """The parameters that Muon updates, and the parts of each."""


def _run(
    group: Sequence[Cell], *, workspace: Path, before_op: BeforeOp | None
) -> list[tuple[Cell, list[Record]]]:
    """What all ranks saw of each cell."""
    world_size = group[0].mesh.world_size
    with TemporaryDirectory(prefix="planc-lattice-") as folder:
        graphs = (compile_cell(cell, workspace=workspace)[1] for cell in group)
        tasks = tuple(
            (
                free_port(),
                Task(
                    graph,
                    workspace,
                    Path(folder) / str(number),
                    before_op,
                    stop_after=cells.NUM_STEPS,
                    perturbs=True,
                    compares_collectives=before_op is None,
                ),
            )
            for number, graph in enumerate(graphs)
        )
        seconds = _SECONDS_A_CELL * len(group)
        found = run_ranks(train_cells, world_size, tasks, init=False, quiet=True, timeout_seconds=seconds)
    return [(cell, [records[index] for records in found]) for index, cell in enumerate(group)]


@cache
def _training(
    model: str,
    dtype: str,
    global_batch: int,
    optimizer: OptimizerSpec,
    trained: _Trained,
    *,
    workspace: Path,
) -> Training:
    """The training in one process that every cell of a model and a global batch must repeat."""
    data = DataSpec(TextSource((cells.CORPUS,)), "bytes", cells.SEQUENCE_LENGTH, cells.SHUFFLE_SEED)
    if isinstance(trained.loss, Preference):
        pairs = PairsSource((cells.PAIRS,), template="none")
        data = replace(data, source=pairs, packing="none", too_long="skip")
    recipe = Recipe(
        base=workspace,
        model=model,
        seed=cells.SEED,
        dtype=dtype,
        data=data,
        global_batch=global_batch,
        optimizer=optimizer.kind,
        schedule=optimizer.schedule,
        total_steps=cells.TOTAL_STEPS,
        num_steps=cells.NUM_STEPS,
        clip_grad_norm=optimizer.clip_grad_norm,
        frozen=trained.frozen,
        adapted=trained.adapted,
        adapter=trained.adapter,
        quantized=trained.quantized,
        block=_BLOCK,
        ema_decay=trained.ema_decay,
        loss=trained.loss,
        matrices=trained.matrices,
        capacity=trained.capacity.capacity if trained.capacity else None,
        capped=trained.capacity.modules if trained.capacity else (),
    )
    return train(recipe, attention="sdpa" if dtype == "float64" else "eager")


def compare(cell: Cell, records: Sequence[Record], training: Training) -> Row:
    """The row of a cell that has run."""
    first, limits = records[0], LIMITS[cell.dtype]
    floor = _SMALL_GRADIENT * training.grad_norms[0]
    worst, gradient = worst_gradient(first.gradients, training.gradients, floor=floor)
    moved, update = _worst_update(first, training)
    row = Row(
        cell,
        loss=worst_relative([step.loss for step in first.metrics], training.losses),
        grad_norm=worst_relative([step.grad_norm for step in first.metrics], training.grad_norms),
        gradient=gradient,
        update=update,
    )
    problems = (
        *_beyond("loss", row.loss, limits.loss),
        *_beyond("gradient norm", row.grad_norm, limits.grad_norm),
        *_beyond(f"gradient of {worst}", row.gradient, limits.gradient),
        *_beyond(f"update of {moved}", row.update, limits.update),
        *_unequal(records, training),
        *disagreements(records),
    )
    return Row(cell, row.loss, row.grad_norm, row.gradient, row.update, problems)


def _beyond(what: str, error: float, limit: float) -> Iterator[str]:
    if not error <= limit:
        yield f"{what} differs by {error:.1e}"


def _unequal(records: Sequence[Record], training: Training) -> Iterator[str]:
    initial = {name: digest(tensor) for name, tensor in training.initial.items()}
    if any(record.initial != initial for record in records):
        yield "initial weights differ"
    if tuple(step.sample_ids for step in records[0].metrics) != training.sample_ids:
        yield "sample ids differ"
    frozen = training.initial.keys() - training.gradients.keys()
    if moved := [name for name in sorted(frozen) if digest(records[0].final[name]) != initial[name]]:
        yield f"{moved[0]} is frozen, and has changed"


def _worst_update(record: Record, training: Training) -> tuple[str, float]:
    """The parameter whose change over all steps differs most, and by how much of it."""
    if record.final.keys() != training.final.keys():
        return "other parameters", float("inf")
    least = _NO_GRADIENT * training.grad_norms[0]
    errors = {
        name: relative_distance(record.final[name].double() - initial, final.double() - initial)
        for name, final in training.final.items()
        if (of := name.removeprefix("ema.")) in training.gradients
        and training.gradients[of].double().norm() > least
        and (initial := training.initial[of].double()) is not None
    }
    worst = max(errors, key=lambda name: errors[name])
    return worst, errors[worst]
