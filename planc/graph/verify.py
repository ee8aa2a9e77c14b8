"""The invariants of every graph. A violation after a pass is a bug in planc; in a loaded file, a finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from planc.data_sources.kinds import PairsSource
from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.op import CHANGING, CONSUMED, GIVEN, Op, Resource, Stage
from planc.graph.sources import mixture_labels
from planc.graph.verify_pipeline import Violation, pipeline_violations
from planc.vocab import TOKEN_DIMS, ExpertDim, GroupDim, MeshDim

_EACH_STEP = (
    Resource.BATCH,
    Resource.TOKENS,
    Resource.LOCAL_BATCH,
    Resource.HIDDEN,
    Resource.LOGITS,
    Resource.LOSS,
    Resource.STEP_LOSS,
    Resource.GRADIENTS,
    Resource.SYNCED_GRADIENTS,
    Resource.CLIPPED_GRADIENTS,
    Resource.NORM,
    Resource.METRICS,
    Resource.VERDICT,
    Resource.UPDATE,
    Resource.EVALUATIONS,
)
"""Resources that every step must write again."""

_ONCE: tuple[tuple[type[Op], ...], ...] = (
    (ops.BuildModel, ops.BuildOwnModel, ops.BuildClassifier, ops.BuildEmbedder),
    (ops.AttachAttention,),
    (ops.MaterialiseWeights,),
    (ops.InitWeights, ops.LoadWeights, ops.LoadBase),
    (ops.BuildOptimizer,),
    (ops.BuildSchedule,),
    (ops.OpenData,),
    (ops.NextBatch,),
    (ops.Accumulate,),
    (ops.ShardContext,),
    (ops.Forward,),
    (ops.ComputeLoss,),
    (ops.Backward,),
    (ops.SyncGradients,),
    (ops.ClipGradients,),
    (ops.StepOptimizer,),
    (ops.StepSchedule,),
    (ops.ReduceMetrics,),
)
"""Ops of which a graph has exactly one, counting alternatives together."""


def verify(graph: Graph) -> tuple[Violation, ...]:
    """All violations in a graph; empty for a valid one."""
    mesh = tuple(_mesh(graph))
    batch = () if mesh else tuple(_batch(graph))
    saves = (*_saves(graph), *_agreement(graph))
    found = (
        *(*_once(graph), *_averages(graph), *_stages(graph), *_units(graph)),
        *(*_effects(graph), *_sums(graph), *_mixture(graph), *_experts(graph), *_preferences(graph)),
        *_teachers(graph),
        *_visibility(graph),
    )
    pipeline = () if mesh else tuple(pipeline_violations(graph))
    return (*mesh, *found, *pipeline, *saves, *batch)


def _once(graph: Graph) -> Iterator[Violation]:
    """Ops that run exactly once, or once per step: a second optimizer step would train twice on a batch."""
    for kinds in _ONCE:
        number = sum(isinstance(op, kinds) for op in graph.ops())
        if number != 1:
            names = " or ".join(str(kind.__dataclass_fields__["op"].default) for kind in kinds)
            yield Violation("graph", f"needs {names} once and has it {number} times")


def _averages(graph: Graph) -> Iterator[Violation]:
    """Averages that no step updates are the weights from before training."""
    kinds = ops.BuildAverages, ops.UpdateAverages
    built, updated = (sum(isinstance(op, kind) for op in graph.ops()) for kind in kinds)
    if built != updated or built > 1:
        yield Violation("graph", f"has ema.build {built} times, and ema.update {updated} times")


def _mesh(graph: Graph) -> Iterator[Violation]:
    inits = [op for op in graph.setup if isinstance(op, ops.InitMesh)]
    if len(inits) != 1 or graph.setup[0] is not inits[0]:
        yield Violation("graph", "mesh.init must be first, and only once")
    elif inits[0].sizes != graph.mesh:
        yield Violation("mesh.init", "its sizes differ from the graph's")
    if [dim for dim, _ in graph.mesh] != list(MeshDim):
        yield Violation("graph", "the mesh must name every dim once, outermost first")
    if any(size < 1 for _, size in graph.mesh):
        yield Violation("graph", "a mesh dim must have at least one rank")
    known: set[GroupDim] = {dim for dim, _ in graph.mesh}
    if graph.experts is not None:
        known.update(ExpertDim)
    for op in graph.ops():
        for dim in op.communicates:
            if dim not in known:
                yield Violation(op.name, f"communicates over {dim}, which is not in the mesh")


def _stages(graph: Graph) -> Iterator[Violation]:
    """Setup never goes back: an optimizer built before sharding would train parameters nobody reads."""
    reached = Stage.MESH
    for op in graph.setup:
        if op.stage >= Stage.STEP:
            yield Violation(op.name, "is not a setup op")
        elif op.stage < reached:
            yield Violation(op.name, f"stage {op.stage.name} must not follow {reached.name}")
        reached = max(reached, op.stage)
    for sequence, stage in ((graph.step, Stage.STEP), (graph.save, Stage.SAVE)):
        for op in sequence:
            if op.stage is not stage:
                yield Violation(op.name, f"does not belong to stage {stage.name}")


def _units(graph: Graph) -> Iterator[Violation]:
    """`fully_shard` shards all parameters outside of inner units, so a unit must not follow one around it."""
    seen: set[str] = set()
    for op in graph.setup:
        if not isinstance(op, ops.FullyShard):
            continue
        for name in (name for group in op.groups for name in group):
            outer = [name[:end] for end, character in enumerate(name) if character == "."]
            if seen.intersection((*outer, "") if name else ()):
                yield Violation(op.name, f"`{name}` follows a unit that contains it")
        seen.update(name for group in op.groups for name in group)
    for op in graph.setup:
        if isinstance(op, ops.PrefetchUnits) and (unknown := sorted({*op.units} - seen)):
            yield Violation(op.name, f"`{unknown[0]}` is not in a unit")


def _effects(graph: Graph) -> Iterator[Violation]:
    """Every resource is complete when it is read, so clipping precedes the step, and loss backward."""
    written = set(GIVEN)
    yield from _in_order(graph.setup, written)
    written -= set(_EACH_STEP)
    yield from _in_order(graph.step, written)
    yield from _in_order(graph.save, written)


def _in_order(sequence: Sequence[Op], written: set[Resource]) -> Iterator[Violation]:
    """Violations of one sequence, which adds what it writes to `written`."""
    read: dict[Resource, str] = {}
    for op in sequence:
        effects = op.effects()
        if isinstance(op, ops.Accumulate):
            yield from _in_order(op.body, written - {*effects.writes} | {*effects.reads} & written)
        for resource in effects.reads:
            if resource not in written:
                yield Violation(op.name, f"reads {resource} before anything writes it")
        for resource in effects.writes:
            if resource in read and resource not in CHANGING:
                yield Violation(op.name, f"writes {resource} after {read[resource]} has read it")
        read |= {one: op.name for one in (*effects.reads, *effects.finds) if one not in effects.writes}
        written -= CONSUMED & {*effects.reads}
        written.update(effects.writes)


def _sums(graph: Graph) -> Iterator[Violation]:
    """Ranks with different tokens sum all their gradients once, before the norm is computed:
    otherwise each would train its own model."""
    units = [op for op in graph.setup if isinstance(op, ops.FullyShard)]
    has_root = any("" in group for op in units for group in op.groups)
    sums = [op for op in graph.step if isinstance(op, ops.AllReduceGradients)]
    for dim in (dim for dim, size in graph.mesh if size > 1 and dim in TOKEN_DIMS):
        by_units = has_root and all(dim in _summed_over(graph, op) for op in units)
        if by_units + sum(dim in op.over for op in sums) != 1:
            yield Violation("graph", f"does not sum gradients over {dim} once")
    if len(sums) > 1:
        yield Violation("graph", f"has grads.all_reduce {len(sums)} times")


def _summed_over(graph: Graph, op: ops.FullyShard) -> tuple[GroupDim, ...]:
    """Return the dims that sum a unit's gradients: for experts `ep` too, whose ranks send them tokens."""
    of_experts = graph.experts.over if graph.experts and ExpertDim.EFSDP in op.shard_over else ()
    return (*op.replicate_over, *op.shard_over, *of_experts)


def _experts(graph: Graph) -> Iterator[Violation]:
    """Experts of one rank are units of their own, over the ranks that hold the same ones."""
    held = set(graph.experts.modules) if graph.experts else set()
    for op in graph.setup:
        if isinstance(op, ops.FullyShard):
            is_of_experts = ExpertDim.EFSDP in op.shard_over
            for group in op.groups:
                if is_of_experts != held.issuperset(group) or (len(group) > 1 and not held.isdisjoint(group)):
                    yield Violation(op.name, f"`{group[0]}` is sharded over {', '.join(op.shard_over)}")
    units = {
        fqn for op in graph.setup if isinstance(op, ops.FullyShard) for group in op.groups for fqn in group
    }
    if held - units:
        yield Violation("experts.shard", f"`{min(held - units)}` is not a unit of its own")
    if graph.experts and prod(map(graph.size, graph.experts.over)) % graph.experts.size:
        yield Violation("experts.shard", f"ep = {graph.experts.size} does not divide its mesh dims")


def _mixture(graph: Graph) -> Iterator[Violation]:
    """Sources are opened in the mixture's order, on which the order of samples depends."""
    data = next((op for op in graph.setup if isinstance(op, ops.OpenData)), None)
    wanted = data.source.labels if data is not None and isinstance(data.source, ops.Mixture) else ()
    if mixture_labels(graph) != wanted:
        yield Violation("data.open", f"joins {', '.join(wanted) or 'no sources'}, in another order")


def _preferences(graph: Graph) -> Iterator[Violation]:
    """A loss of pairs needs them in training and in evaluations, and a reference of each."""
    built = sum(isinstance(op, ops.BuildPreferenceLoss) for op in graph.setup)
    sources = [op for op in graph.setup if isinstance(op, ops.OpenData | ops.OpenEvaluation)]
    pairs = [op for op in sources if isinstance(op.source, PairsSource)]
    wanted = ["" if isinstance(op, ops.OpenData) else op.label for op in sources if built]
    computed = [op.label for op in graph.setup if isinstance(op, ops.ComputeReference)]
    losses = {isinstance(op, ops.ComputePairLoss) for op in graph.ops() if isinstance(op, ops.ComputeLoss)}
    if len(pairs) != len(wanted) or computed != wanted or built > 1 or losses != {bool(built)}:
        numbers = f"{built} loss.dpo, {len(computed)} references and {len(pairs)} sources of pairs"
        yield Violation("graph", f"has {numbers}, of {len(sources)} sources")


def _teachers(graph: Graph) -> Iterator[Violation]:
    """A loss that reads a teacher's probabilities needs one teacher, and no other loss has one."""
    losses, teachers = (
        sum(isinstance(op, kind) for op in graph.setup)
        for kind in (ops.BuildDistillationLoss, ops.OpenTeacher)
    )
    if losses != teachers or losses > 1:
        yield Violation("graph", f"has {losses} loss.distillation and {teachers} data.open_teacher")


def _visibility(graph: Graph) -> Iterator[Violation]:
    """Tokens see later ones where labels are hidden, and only there: else inputs would show the labels.

    A class is not among the inputs of its sequence.
    """
    labeled = [op for op in graph.setup if isinstance(op, ops.OpenLabeledData)]
    by_sequence = any(not op.by_word for op in labeled)
    for op in graph.ops():
        if isinstance(op, ops.ComputeLoss) and op.by_sequence is not by_sequence:
            yield Violation(op.name, "has labels of sequences, and the data of tokens, or the reverse")
    if labeled or any(isinstance(op, ops.OpenMatchedData) for op in graph.setup):
        return
    wanted, data = None, "hides no token and has no target"
    if any(isinstance(op, ops.OpenMaskedData) for op in graph.setup):
        wanted, data = "bidirectional", "hides tokens"
    if any(isinstance(op, ops.OpenMappedData) for op in graph.setup):
        wanted, data = "encoder_decoder", "has targets"
    for op in (op for op in graph.setup if isinstance(op, ops.AttachAttention)):
        kind = op.kind if op.kind in ("bidirectional", "encoder_decoder") else None
        if op.kind != "eager" and kind != wanted:
            yield Violation(op.name, f"{op.kind} attention, with data that {data}")


def _saves(graph: Graph) -> Iterator[Violation]:
    """Every asynchronous save is checked once per step for its end."""
    wanted = sum(isinstance(op, ops.SaveCheckpoint) and op.mode == "async" for op in graph.save)
    found = sum(isinstance(op, ops.SettleSave) for op in graph.step)
    if found != wanted:
        yield Violation("graph", f"has checkpoint.settle {found} times for {wanted} asynchronous saves")
    loads = any(isinstance(op, ops.LoadWeights) for op in graph.setup)
    frozen = frozenset(graph.frozen if loads else ())
    for base in (op for op in graph.setup if isinstance(op, ops.NameBase)):
        if trained := [name for name in base.parameters if name not in frozen]:
            yield Violation(base.name, f"checkpoints would leave out `{trained[0]}`, which no file holds")
    for op in graph.save:
        if isinstance(op, ops.SaveCheckpoint) and (op.mode == "async") != (op.when_busy is not None):
            yield Violation(op.name, "when_busy is only for an asynchronous save")


def _agreement(graph: Graph) -> Iterator[Violation]:
    """All ranks see a stop signal in the same step: otherwise some would save and others keep training."""
    for op in graph.step:
        if isinstance(op, ops.ReduceMetrics):
            asked = {*op.over, *op.agree_over}
            for dim, size in graph.mesh:
                if size > 1 and dim not in asked:
                    yield Violation(op.name, f"ranks along {dim} do not agree on when to stop")


def _batch(graph: Graph) -> Iterator[Violation]:
    """The batch arithmetic holds: micro batch x data-parallel ranks x accumulation = global batch."""
    data = next((op for op in graph.setup if isinstance(op, ops.OpenData)), None)
    loop = next((op for op in graph.step if isinstance(op, ops.Accumulate)), None)
    if data is None or loop is None:
        return
    product = data.micro_batch * graph.dp_size * loop.times
    if product != data.global_batch:
        factors = f"{data.micro_batch} x {graph.dp_size} x {loop.times}"
        yield Violation("accumulate", f"{factors} is not the global batch {data.global_batch}")
