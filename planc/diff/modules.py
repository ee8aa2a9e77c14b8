"""Modules and parameters that are sharded differently than before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from planc.diff.difference import Action, Change, Group
from planc.diff.side import Side
from planc.estimate.layout import ParameterLayout
from planc.figures.plan import num_sharded_modules
from planc.graph import ops
from planc.graph.text import summarise
from planc.optimizers.muon import Muon
from planc.record import record
from planc.source import Span
from planc.styles.edges import Edge
from planc.styles.style import StyleUse
from planc.tables import format_shape, plural
from planc.vocab import MeshDim, Placement, is_sharded, outwards

Key = tuple[str | None, str | None, str]
Layouts = Mapping[str, ParameterLayout]


@record
class _Divided:
    use: StyleUse
    edges: tuple[Edge, ...]
    parameters: tuple[tuple[str, Placement], ...]
    rows: ops.Rows | None
    span: Span | None

    @property
    def has_shards(self) -> bool:
        """Whether a rank holds less than all of it; a norm under sequence parallelism stays replicated."""
        return any(is_sharded(placement) for _, placement in self.parameters)


def compare_styles(old: Side, new: Side) -> Iterator[Change]:
    """Modules whose style changes, disappears or is new; then modules that are only resharded."""
    before, after = _divided(old), _divided(new)
    if bool(before) != bool(after):
        yield _all_or_none(before or after, is_added=bool(after), old=old, new=new)
        return
    old_layouts, new_layouts = old.layouts(), new.layouts()
    groups: dict[tuple[str | None, str | None, str, str], list[str]] = {}
    for fqn in dict.fromkeys((*before, *after)):
        was, now = before.get(fqn), after.get(fqn)
        if was and now and replace(was, span=now.span) == now:
            continue
        note = _shape_change(fqn, was or now, old_layouts, new_layouts)
        groups.setdefault((*_styles(was, now), note, _place(now or was)), []).append(fqn)
    yield from _grouped(groups)
    yield from _resharded(before, after, old, new)


def _divided(side: Side) -> dict[str, _Divided]:
    return {
        fqn: _Divided(op.use, op.edges, op.parameters, op.rows, op.span)
        for op in side.ops(ops.ShardTensorParallel)
        for fqn in op.modules
    }


def _all_or_none(divided: Mapping[str, _Divided], *, is_added: bool, old: Side, new: Side) -> Change:
    """Tensor parallelism as a whole was added or removed: one line is clearer than one per module."""
    action = Action.ADD if is_added else Action.REMOVE
    place = (new if is_added else old).place("tensor_parallel")
    modules = num_sharded_modules(sum(one.has_shards for one in divided.values()))
    name = f"{modules.text} sharded over tp"
    return Change(Group.LAYOUT, action, name, note=_kv_heads(old, new), place=place)


def _styles(was: _Divided | None, now: _Divided | None) -> tuple[str | None, str | None]:
    """The styles' names, with the options that differ if the names are equal, or else with their edges."""
    if was and now and was.use == now.use and was.rows != now.rows:
        return _with_rows(was), _with_rows(now)
    if was and now and was.use == now.use and was.edges != now.edges:
        return _with_edges(was), _with_edges(now)
    if was and now and was.use.style == now.use.style:
        return _options(was.use, now.use), _options(now.use, was.use)
    return was.use.style if was else None, now.use.style if now else None


def _with_edges(divided: _Divided) -> str:
    found = "; ".join(map(str, divided.edges)) or "sends nothing at its edges"
    return f"{divided.use.style} ({found})"


def _with_rows(divided: _Divided) -> str:
    return f"{divided.use.style} (computes {divided.rows or 'all that it holds'})"


def _options(use: StyleUse, other: StyleUse) -> str:
    """`rowwise(output = Shard(1))`: only the options that differ from the other's."""
    names = ("input", "computes_on", "output", "sequence_dim")
    differing = [name for name in names if getattr(use, name) != getattr(other, name)]
    return f"{use.style}({', '.join(f'{name} = {getattr(use, name)}' for name in differing)})"


def _shape_change(fqn: str, divided: _Divided | None, old: Layouts | None, new: Layouts | None) -> str:
    """`weight [512, 64] -> [256, 64]`: local shapes after tensor parallelism, if they change."""
    if divided is None or old is None or new is None:
        return ""
    texts = []
    for name, _ in divided.parameters:
        was, now = old.get(f"{fqn}.{name}"), new.get(f"{fqn}.{name}")
        if was and now and was.tp_shape != now.tp_shape:
            texts.append(f"{name} {format_shape(was.tp_shape)} -> {format_shape(now.tp_shape)}")
    return ", ".join(texts)


def _place(divided: _Divided | None) -> str:
    """`x.plan:12`, the rule of a module; empty for a style that no rule gave."""
    span = divided.span if divided else None
    return f"{span.file}:{span.line}" if span else ""


def _grouped(groups: Mapping[tuple[str | None, str | None, str, str], Sequence[str]]) -> Iterator[Change]:
    """One change for all modules that one rule changes in one way."""
    for (was, now, note, place), fqns in groups.items():
        for folded in summarise(fqns):
            yield Change(Group.LAYOUT, Action.of(was, now), folded, was, now, note, place)


def _resharded(
    before: Mapping[str, _Divided], after: Mapping[str, _Divided], old: Side, new: Side
) -> Iterator[Change]:
    if old.graph.size(MeshDim.TP) == new.graph.size(MeshDim.TP):
        return
    sharded = {fqn: divided.use for fqn, divided in before.items() if divided.has_shards}
    num_modules = sum(fqn in after and after[fqn].use == use for fqn, use in sharded.items())
    if num_modules:
        name = f"{plural(num_modules, 'module')} resharded over tp"
        yield Change(Group.LAYOUT, Action.CHANGE, name, note=_kv_heads(old, new))


def _kv_heads(old: Side, new: Side) -> str:
    """`kv heads per rank 2 -> 1`."""
    if old.inventory is None or new.inventory is None:
        return ""
    if not old.inventory.attentions or old.inventory.attentions != new.inventory.attentions:
        return ""
    heads = min(attention.num_kv_heads for attention in new.inventory.attentions)
    sizes = [side.graph.size(MeshDim.TP) for side in (old, new)]
    per_rank = [str(heads // size) if heads % size == 0 else f"{heads}/{size}" for size in sizes]
    return f"kv heads per rank {per_rank[0]} -> {per_rank[1]}"


def compare_units(old: Side, new: Side) -> Iterator[Change]:
    """FSDP units that were added or removed, or reshard differently.

    If FSDP as a whole was added or removed, its own line reports that, and its units add nothing.
    """
    before, after = _units(old), _units(new)
    if not before or not after:
        before = after = {}
    groups: dict[Key, list[tuple[str, ...]]] = {}
    for unit in dict.fromkeys((*before, *after)):
        if before.get(unit) != after.get(unit):
            groups.setdefault((before.get(unit), after.get(unit), ""), []).append(unit)
    for (was, now, _), units in groups.items():
        singles = [unit[0] for unit in units if len(unit) == 1]
        names = [*summarise(singles), *(", ".join(summarise(unit)) for unit in units if len(unit) > 1)]
        for name in names:
            yield Change(Group.LAYOUT, Action.of(was, now), f"FSDP unit {name}", was, now)


def _units(side: Side) -> dict[tuple[str, ...], str]:
    """Each unit by its modules, with its action after forward; the root is a unit too."""
    units: dict[tuple[str, ...], str] = {}
    for op in side.ops(ops.FullyShard):
        option = f"reshard_after_forward {str(op.reshard_after_forward).lower()}"
        units |= {tuple(fqn or "<root>" for fqn in group): option for group in op.groups}
    return units


def compare_recomputation(old: Side, new: Side) -> Iterator[Change]:
    """Modules that start or stop recomputing their activations, or recompute different ones."""
    before, after = (
        {fqn: op.mode for op in side.ops(ops.CheckpointActivations) for fqn in op.modules}
        for side in (old, new)
    )
    yield from _treated(old, new, block="activation_checkpoint", before=before, after=after)


def compare_compilation(old: Side, new: Side) -> Iterator[Change]:
    """Modules that start or stop being compiled, or are compiled differently."""
    before, after = (
        {fqn: _compiled(op) for op in side.ops(ops.CompileModules) for fqn in op.modules}
        for side in (old, new)
    )
    yield from _treated(old, new, block="compile", before=before, after=after)


def compare_frozen(old: Side, new: Side) -> Iterator[Change]:
    """Parameters that are frozen now, or trained again, by the outermost modules that hold no others."""
    before, after = _trainings(old), _trainings(new)
    groups: dict[tuple[str, str], list[str]] = {}
    for fqn, was in before.items():
        if (now := after.get(fqn, was)) != was:
            groups.setdefault((was, now), []).append(fqn)
    for (was, now), fqns in groups.items():
        for folded in summarise(_outermost(fqns, among=before)):
            place = new.place("freeze") or old.place("freeze")
            yield Change(Group.NUMERICS, Action.CHANGE, f"freeze {folded}", was, now, place=place)


def _trainings(side: Side) -> dict[str, str]:
    """`frozen` or `trained`, by parameter."""
    trained = (fqn for op in side.ops(ops.BuildOptimizer) for group in op.groups for fqn in group.parameters)
    return dict.fromkeys(trained, "trained") | dict.fromkeys(side.graph.frozen, "frozen")


def _outermost(names: Sequence[str], *, among: Iterable[str]) -> tuple[str, ...]:
    """The names, or in their place the outermost modules of which all parameters are among them."""
    own = Counter(around for name in names for around in outwards(name))
    every = Counter(around for name in among for around in outwards(name))
    whole = ([around for around in outwards(name) if own[around] == every[around]] for name in names)
    return tuple(dict.fromkeys(found[-1] for found in whole))


def _treated(
    old: Side,
    new: Side,
    *,
    block: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> Iterator[Change]:
    """One change for all modules that a block treats the same, before and after."""
    groups: dict[tuple[str | None, str | None], list[str]] = {}
    for fqn in {**after, **before}:
        if before.get(fqn) != after.get(fqn):
            groups.setdefault((before.get(fqn), after.get(fqn)), []).append(fqn)
    for (was, now), fqns in groups.items():
        place = (old if now is None else new).place(block)
        for folded in summarise(fqns):
            yield Change(Group.LAYOUT, Action.of(was, now), f"{block} {folded}", was, now, place=place)


def _compiled(op: ops.CompileModules) -> str:
    """`inductor(default)`, and options that differ from their defaults."""
    options = ("" if op.fullgraph else ", in parts") + (", for all shapes" if op.dynamic else "")
    return f"{op.backend}({op.mode}){options}" if op.mode else f"{op.backend}{options}"


def compare_groups(old: Side, new: Side) -> Iterator[Change]:
    """Parameters of both models whose weight decay, or whose own learning rate, differs.

    If a rate is the optimizer's on both sides, the optimizer's line shows its change.
    """
    yield from _compare_option(old, new, name="weight_decay", read=lambda op, group: str(group.weight_decay))
    yield from _compare_option(old, new, name="lr", read=_own_rate)
    if all(isinstance(op.settings, Muon) for side in (old, new) for op in side.ops(ops.BuildOptimizer)):
        yield from _compare_option(old, new, name="rest", read=_is_of_rest)


def _compare_option(
    old: Side, new: Side, *, name: str, read: Callable[[ops.BuildOptimizer, ops.ParameterGroup], str]
) -> Iterator[Change]:
    before, after = (
        {
            fqn: read(op, group)
            for op in side.ops(ops.BuildOptimizer)
            for group in op.groups
            for fqn in group.parameters
        }
        for side in (old, new)
    )
    groups: dict[tuple[str, str], list[str]] = {}
    for fqn, value in before.items():
        if fqn in after and after[fqn] != value:
            groups.setdefault((value, after[fqn]), []).append(fqn)
    for (was, now), fqns in groups.items():
        place = _group_place(new, name, fqns)
        same = [fqn for fqn, value in before.items() if value == was]
        names = [f"of {plural(len(fqns), 'parameter')}"] if same == fqns else summarise(fqns)
        for folded in names:
            yield Change(Group.NUMERICS, Action.CHANGE, f"{name} {folded}", was, now, place=place)


def _group_place(new: Side, name: str, fqns: Sequence[str]) -> str:
    """The rules that give an option to parameters, or else the optimizer's own argument."""
    if new.bound is None:
        return ""
    bound = new.bound
    rules = {"weight_decay": bound.weight_decay, "lr": bound.learning_rates, "rest": bound.rests}[name]
    spans = dict.fromkeys(rules[fqn][1] for fqn in fqns if fqn in rules)
    places = [f"{span.file}:{span.line}" for span in spans]
    if any(fqn not in rules for fqn in fqns):
        places.append(new.place(f"optimizer.kind.{name}"))
    return ", ".join(dict.fromkeys(filter(None, places)))


def _is_of_rest(op: ops.BuildOptimizer, group: ops.ParameterGroup) -> str:
    return str(not isinstance(group, ops.MatrixGroup)).lower()


def _own_rate(op: ops.BuildOptimizer, group: ops.ParameterGroup) -> str:
    return "the optimizer's" if group.lr == op.lr else str(group.lr)
