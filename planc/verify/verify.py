"""Verify a plan: run its graph on simulated ranks and its training in one process, and compare them.

The limits are for rounding. Ranks add the same numbers in another order than one process: in float32 each sum
is off by a few 6e-8, and the errors of all plans that ship stay below 1e-6, while the faults that matter,
such as a missing or doubled sum or one over the wrong ranks, are off by tens of percent. In float64 a model's
norms still compute in float32, so its limit is not much lower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from planc.graph import ops
from planc.graph.extensions import extensions_of
from planc.graph.graph import Graph, plan_hash
from planc.graph.ops import ClipGradients, InitMesh
from planc.plan.bind import BoundPlan
from planc.runtime.data.errors import DataError
from planc.runtime.errors import STOPS, RunError
from planc.runtime.extensions import not_permitted
from planc.runtime.rehearsal.stack import outline
from planc.runtime.torch.reporting.own_readers import setting_of, trials
from planc.runtime.torch.weights.adapters import attach
from planc.runtime.torch.weights.build import meta_model
from planc.tables import plural
from planc.verify.compare import disagreements, relative_distance, worst_gradient, worst_relative
from planc.verify.outcome import Item, Report, Verdict
from planc.verify.pool import RankError, run_ranks, start_server
from planc.verify.ranks import BeforeOp, Record, Task, digest, train_rank
from planc.verify.recipe import NUM_STEPS
from planc.verify.reference import Training, train
from planc.verify.rewrite import SAVE_STEP, resumed_elsewhere
from planc.verify.shrink import Shrunk, shrink
from planc.verify.twin import CannotShrink
from planc.vocab import DType

LIMITS: Mapping[str, float] = {DType.FLOAT32: 1e-5, DType.FLOAT64: 1e-6}
"""Relative, for losses and for the first step's gradients."""
UPDATE_LIMIT = 3e-4
"""Relative, for gradient norms, and for parameters, to how much training changed them: AdamW divides
gradients by their size, which amplifies the rounding of small ones, and the next step starts from there."""
_RATE_LIMIT = 1e-12
"""Learning rates are computed, not summed."""
_SMALL_GRADIENT = 1e-3
"""The minimum, as a fraction of the gradient's norm, against which a parameter's own is compared: some are
zero except for rounding."""
_NO_GRADIENT = 1e-6
"""Fraction of the gradient's norm below which a parameter's gradient is rounding, and so its update."""
_BEYOND_SECONDS = 60.0
"""Time for a run beyond that for which its ranks wait for each other: they know why it does not end."""


def verify(
    bound: BoundPlan,
    graph: Graph,
    *,
    base: Path,
    dtype: DType = DType.FLOAT32,
    backend: str = "gloo",
    before_op: BeforeOp | None = None,
    runs_extensions: bool = False,
) -> Report:
    """Every item's verdict. The plan's relative paths start at `base`; `before_op` plants bugs in tests.

    Ranks run on CPUs with gloo, on CUDA devices with nccl; the one process always runs on the CPU.
    CannotShrink if the model has no small twin or one process can't train it; RunError if its config.json
    changed meanwhile, or if the plan has code of its own and not `runs_extensions`.
    """
    if not runs_extensions:
        _refuse_own_code(graph)
    start_server()
    with TemporaryDirectory(prefix="planc-verify-") as name:
        folder = Path(name)
        shrunk, training = prepare(bound, graph, base=base, folder=folder, dtype=dtype)
        if backend == "nccl":
            _require_devices(shrunk.graph.world_size)
        launch = partial(run_plan, folder=folder, backend=backend, before_op=before_op)
        verdicts = (
            *_readers_verdicts(graph, base=base),
            *_verdicts(shrunk, training, launch=launch),
        )
    return Report(
        name=graph.name,
        plan_hash=plan_hash(graph),
        mesh=graph.mesh,
        ran_mesh=shrunk.graph.mesh,
        num_layers=shrunk.num_layers,
        kept=shrunk.kept,
        sequence_length=shrunk.recipe.data.sequence_length,
        dtype=dtype.value,
        num_steps=shrunk.recipe.num_steps,
        verdicts=verdicts,
    )


def _refuse_own_code(graph: Graph) -> None:
    """RunError for a plan with code of its own."""
    for _, extension in extensions_of(graph):
        raise not_permitted(extension)


def _require_devices(num_ranks: int) -> None:
    """RunError unless this machine has a CUDA device for every rank."""
    num_here = torch.cuda.device_count()
    if num_here < num_ranks:
        raise RunError(
            f"{plural(num_ranks, 'rank')} on nccl, but PyTorch sees {plural(num_here, 'CUDA device')}"
        )


def prepare(
    bound: BoundPlan, graph: Graph, *, base: Path, folder: Path, dtype: DType = DType.FLOAT32
) -> tuple[Shrunk, Training]:
    """Shrink the plan into `folder`, and train it in one process.

    A maximum norm that is never reached would clip nothing: then it becomes half the smallest norm.
    """
    shrunk = shrink(bound, graph, base=base, folder=folder, dtype=dtype)
    training = _trained(shrunk)
    clip = shrunk.recipe.clip_grad_norm
    if clip is None or clip < min(training.grad_norms):
        return shrunk, training
    tighter = min(training.grad_norms) / 2
    recipe = replace(shrunk.recipe, clip_grad_norm=tighter)
    shrunk = replace(shrunk, recipe=recipe, graph=_with_clip(shrunk.graph, tighter))
    return shrunk, _trained(shrunk)


def _trained(shrunk: Shrunk) -> Training:
    try:
        return train(shrunk.recipe)
    except (DataError, *STOPS):
        raise
    except BaseException as error:  # a model may raise anything: then the reference is missing
        reason = str(error).strip().partition("\n")[0]
        text = f"one process cannot train a small model of this kind: {type(error).__name__}: {reason}"
        raise CannotShrink(text) from error


def _verdicts(
    shrunk: Shrunk, training: Training, *, launch: Callable[[Graph], list[Record]]
) -> Iterator[Verdict]:
    try:
        records = launch(shrunk.graph)
    except (RankError, TimeoutError) as error:
        yield Verdict(Item.RUN, False, cause(error))
        return
    yield Verdict(
        Item.RUN, True, f"{plural(shrunk.recipe.num_steps, 'step')} on {plural(len(records), 'rank')}"
    )
    yield from (Verdict(Item.OWN_CODE, True, note) for note in records[0].notes)
    limit = LIMITS[shrunk.recipe.dtype]
    yield from compared(records, training, limit=limit)
    try:
        resumed = launch(resumed_elsewhere(shrunk.graph))
    except (RankError, TimeoutError) as error:
        yield Verdict(Item.RESUME, False, cause(error))
        return
    yield _resumed(records, resumed, training, limit=limit)


def run_plan(
    graph: Graph, *, folder: Path, backend: str = "gloo", before_op: BeforeOp | None = None
) -> list[Record]:
    """Every rank's record of the compared steps. RankError or TimeoutError if they fail."""
    (patience,) = (op.timeout_seconds for op in graph.setup if isinstance(op, InitMesh))
    task = Task(
        graph,
        folder,
        folder / "run",
        before_op,
        stop_after=NUM_STEPS,
        collective_timeout_seconds=patience,
        backend=backend,
        perturbs=True,
    )
    seconds = patience + _BEYOND_SECONDS
    return run_ranks(train_rank, graph.world_size, task, timeout_seconds=seconds, init=False, quiet=True)


def compared(
    records: Sequence[Record], training: Training, *, limit: float = LIMITS[DType.FLOAT32]
) -> Iterator[Verdict]:
    """Verdicts of ranks that ran all steps, against one process."""
    first = records[0]
    metrics = first.metrics
    yield _initial_weights(records, training)
    same_ids = tuple(step.sample_ids for step in metrics) == training.sample_ids
    num_ids = sum(map(len, training.sample_ids))
    yield Verdict(Item.SAMPLE_IDS, same_ids, f"{num_ids} of {len(training.sample_ids)} steps, in order")
    losses = [step.loss for step in metrics]
    yield _series(Item.LOSS, losses, training.losses, limit=limit)
    if training.balances:
        added = [(step.balance_loss or 0.0) + (step.z_loss or 0.0) for step in metrics]
        yield _series(Item.BALANCE, added, training.balances, limit=limit)
    yield _series(
        Item.GRAD_NORM, [step.grad_norm for step in metrics], training.grad_norms, limit=UPDATE_LIMIT
    )
    floor = _SMALL_GRADIENT * training.grad_norms[0]
    worst, error = worst_gradient(first.gradients, training.gradients, floor=floor)
    yield Verdict(Item.GRADIENTS, error <= limit, worst, error, limit)
    found = disagreements(records)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    agreed = f"{len(records)} ranks agree" if len(records) > 1 else "1 rank, nothing to compare"
    yield Verdict(Item.REPLICAS, not found, f"{found[0]}{more}" if found else agreed)
    yield _learning_rates(records, training)
    yield _parameters(Item.PARAMETERS, first.final, training.final, training=training)


def _initial_weights(records: Sequence[Record], training: Training) -> Verdict:
    initial = {name: digest(tensor) for name, tensor in training.initial.items()}
    expected = initial | {name: digest(tensor) for name, tensor in training.buffers.items()}
    differing = sorted(
        {
            name
            for record in records
            for found in (record.initial | record.buffers,)
            for name in found.keys() | expected.keys()
            if found.get(name) != expected.get(name)
        }
    )
    detail = f"{plural(len(initial), 'parameter')}, bit for bit"
    return Verdict(Item.INITIAL_WEIGHTS, not differing, ", ".join(differing[:3]) or detail)


def _series(item: Item, actual: Sequence[float], expected: Sequence[float], *, limit: float) -> Verdict:
    error = worst_relative(actual, expected)
    steps = [worst_relative([a], [e]) for a, e in zip(actual, expected, strict=False)]
    worst = max(range(len(steps)), key=steps.__getitem__, default=0)
    detail = (
        f"step {worst + 1}: {actual[worst]:.6g}, one process {expected[worst]:.6g}" if steps else "no steps"
    )
    return Verdict(item, error <= limit, detail, error, limit)


def _learning_rates(records: Sequence[Record], training: Training) -> Verdict:
    """The rates that the optimizer used, of every group and rank: the same number, and the same values."""
    told = [record.learning_rates for record in records]
    numbers = [list(map(len, rates)) for rates in (*told, training.learning_rates)]
    if any(number != numbers[-1] for number in numbers):
        return Verdict(Item.LEARNING_RATE, False, "groups differ", float("inf"), _RATE_LIMIT)
    used, expected = (
        [rate for rates in steps for rate in rates] for steps in (told[0], training.learning_rates)
    )
    return _series(Item.LEARNING_RATE, used, expected, limit=_RATE_LIMIT)


def _parameters(
    item: Item,
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    *,
    training: Training,
) -> Verdict:
    """Parameters and averages after the last step, except for those that only rounding has moved."""
    if actual.keys() != expected.keys():
        names = ", ".join(sorted(actual.keys() ^ expected.keys())[:3])
        return Verdict(item, False, f"only on one side: {names}", float("inf"), UPDATE_LIMIT)
    least = _NO_GRADIENT * training.grad_norms[0]
    idle = {name for name, one in training.gradients.items() if float(one.double().norm()) < least}
    left_out = f"; left out, without gradient: {', '.join(sorted(idle)[:3])}" if idle else ""
    errors = {
        name: _update_error(actual[name], expected[name], training.initial[of])
        for name in expected
        if (of := name.removeprefix("ema.")) not in idle
    }
    worst = max(errors, key=lambda name: errors[name])
    return Verdict(item, errors[worst] <= UPDATE_LIMIT, f"{worst}{left_out}", errors[worst], UPDATE_LIMIT)


def _update_error(actual: Tensor, expected: Tensor, initial: Tensor) -> float:
    return relative_distance(actual.double() - initial.double(), expected.double() - initial.double())


def _resumed(
    records: Sequence[Record], resumed: Sequence[Record], training: Training, *, limit: float
) -> Verdict:
    """A run that was resumed elsewhere, against the one that never stopped."""
    before, after = records[0], resumed[0]
    on = f"saved at step {SAVE_STEP}, resumed on {plural(len(resumed), 'rank')}"
    if after.first_step != SAVE_STEP + 1:
        return Verdict(Item.RESUME, False, f"{on}: began at step {after.first_step}")
    ids = [step.sample_ids for step in after.metrics]
    if ids != [step.sample_ids for step in before.metrics[SAVE_STEP:]]:
        return Verdict(Item.RESUME, False, f"{on}: different sample ids")
    loss = worst_relative(
        [step.loss for step in after.metrics], [step.loss for step in before.metrics[SAVE_STEP:]]
    )
    if loss > limit:
        return Verdict(Item.RESUME, False, f"{on}: loss", loss, limit)
    found = _parameters(Item.RESUME, after.final, before.final, training=training)
    return replace(found, detail=f"{on}: {found.detail}")


def cause(error: Exception) -> str:
    """The line of a rank's traceback that names the op, and its next after a colon; or the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "in op `" in line]
    own = [line for line in named if "gloo" not in line and "Connection closed" not in line]
    first = (own or named or lines[-1:] or [type(error).__name__])[0]
    # torch.compile's error has its cause on a line of its own.
    rest = lines[lines.index(first) + 1 :][:1] if first.endswith(":") else []
    return " ".join((first, *rest))[:300]


def _with_clip(graph: Graph, max_norm: float | None) -> Graph:
    """The graph with another maximum norm."""
    step = (replace(op, max_norm=max_norm) if isinstance(op, ClipGradients) else op for op in graph.step)
    return replace(graph, step=tuple(step))


def _readers_verdicts(graph: Graph, *, base: Path) -> Iterator[Verdict]:
    """A verdict for each metric and callback of the plan: their trials, by the names of the whole model.

    A small model lacks some of the parameters that they may ask for.
    """
    loads = [op for op in graph.setup if isinstance(op, ops.LoadReaders)]
    if not loads:
        return
    build = next(op for op in graph.setup if isinstance(op, ops.BuildModel))
    model = meta_model(build, base=base, runs_extensions=True)
    if graph.adapters is not None:
        attach(model, graph.adapters)
    setting = setting_of(graph, outline(model), device=torch.device("cpu"), rank=0)
    for trial in (trial for op in loads for trial in trials(op, setting, base=base, is_allowed=True)):
        try:
            yield Verdict(Item.OWN_CODE, True, trial().note)
        except RunError as error:
            yield Verdict(Item.OWN_CODE, False, error.message)
