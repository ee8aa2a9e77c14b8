"""The lines of a difference: each label that fields of ops state, in the order of the ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from planc.diff import modules
from planc.diff.difference import Action, Change, Group
from planc.diff.readers import READERS, Reader
from planc.diff.side import Side
from planc.figures.plan import bubble
from planc.graph.consequence import Consequence, Meaning, meanings, numerics
from planc.graph.op import Op
from planc.graph.ops import OPS, BuildOptimizer, OpenData
from planc.graph.pipeline import Pipeline, pipeline_of
from planc.graph.text import summarise
from planc.optimizers import OPTIMIZERS
from planc.record import record
from planc.tables import format_number
from planc.vocab import MESH_DIMS, MeshDim


@record
class Fact:
    """`read` returns the value, or None if the graph has none; `path` is the setting that determines it.

    `expectation` is its name in `expect`; `is_key` facts are shown unchanged too, next to others that
    changed in their group.
    """

    group: Group
    name: str
    path: str
    read: Callable[[Side], Any]
    expectation: str = ""
    is_key: bool = False


def _compare(facts: Iterable[Fact], old: Side, new: Side) -> Iterator[Change]:
    """One change per fact; Action.KEEP for equal ones."""
    for fact in facts:
        before, after = _text(fact.read(old)), _text(fact.read(new))
        if before == after:
            if before is not None:
                yield Change(fact.group, Action.KEEP, fact.name, before, after)
            continue
        action = Action.of(before, after)
        place = (old if after is None else new).place(fact.path)
        broken = new.broken(fact.expectation) if fact.expectation else ()
        yield Change(fact.group, action, fact.name, before, after, place=place, findings=broken)


def _text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case int():
            return format_number(value)
        case tuple():
            return ", ".join(str(item) for item in value)
        case _:
            return str(value)


def _compare_pipelines(old: Side, new: Side) -> Iterator[Change]:
    """The schedule and the bubble, then the stages."""
    num_stages = max(one.num_stages if one else 0 for one in map(_pipeline, (old, new)))
    stages = (
        Fact(Group.LAYOUT, f"stage {stage}", "pipeline", _modules(stage)) for stage in range(num_stages)
    )
    facts = (
        Fact(Group.LAYOUT, "pipeline", "pipeline.schedule", _schedule),
        *stages,
        Fact(Group.LAYOUT, "weights in two stages", "pipeline", _ties),
        Fact(Group.TIME, "bubble, if stages take equal time", "pipeline", _bubble),
    )
    return _compare(facts, old, new)


def _pipeline(side: Side) -> Pipeline | None:
    return pipeline_of(side.graph)


def _schedule(side: Side) -> str | None:
    pipeline = _pipeline(side)
    return None if pipeline is None else pipeline.schedule


def _modules(stage: int) -> Callable[[Side], Any]:
    def read(side: Side) -> str | None:
        pipeline = _pipeline(side)
        has_stage = pipeline is not None and stage < pipeline.num_stages
        return ", ".join(summarise(pipeline.split.stages[stage])) if pipeline and has_stage else None

    return read


def _ties(side: Side) -> str | None:
    pipeline = _pipeline(side)
    ties = pipeline.split.ties if pipeline is not None else ()
    return ", ".join(" = ".join(tie) for tie in ties) or None


def _bubble(side: Side) -> str | None:
    pipeline = _pipeline(side)
    return None if pipeline is None else bubble(pipeline).text


Comparer = Callable[[Side, Side], Iterator[Change]]
Field = tuple[type[Op], str]


def _told_with_others(old: Side, new: Side) -> Iterator[Change]:
    """Nothing: the lines of another label tell these fields too."""
    return iter(())


COMPARERS: Mapping[str, Comparer] = {
    "tensor_parallel": modules.compare_styles,
    "FSDP units": modules.compare_units,
    "fsdp.reshard_after_forward": _told_with_others,
    "activation_checkpoint": modules.compare_recomputation,
    "compile": modules.compare_compilation,
    "freeze": modules.compare_frozen,
    "parameter groups": modules.compare_groups,
    "pipeline": _compare_pipelines,
    "pipeline stages": _told_with_others,
    "weights in two stages": _told_with_others,
}
"""The comparers of the labels that have a line for each module, unit or stage that changes."""

_GROUPS = {
    Consequence.NUMERICS: Group.NUMERICS,
    Consequence.LAYOUT: Group.LAYOUT,
    Consequence.SAMPLES: Group.BATCH,
    Consequence.IDENTITY: Group.NUMERICS,
    Consequence.START: Group.NUMERICS,
    Consequence.OUTPUT: Group.RUN,
    Consequence.DERIVED: Group.NUMERICS,
}
_SHOWN_ELSEWHERE = {
    "model": Group.LAYOUT,
    "optimizer implementation": Group.NUMERICS,
    "loss chunks": Group.NUMERICS,
    'export "hf"': Group.CHECKPOINT,
    'export "adapter"': Group.CHECKPOINT,
    "push": Group.CHECKPOINT,
    **dict.fromkeys(
        ("tokens/step", "gradient_accumulation", "data.micro_batch", "documents isolated"), Group.BATCH
    ),
}
"""Labels that readers look for in another group than that of their consequence."""

_EXPECTATIONS = {"tokens/step": "tokens_per_step", "gradient_accumulation": "gradient_accumulation"}
KEY_LINES = frozenset({"tokens/step"})
"""Lines that are shown unchanged too, next to others that changed in their group."""


@record
class Line:
    """A label with its meaning, and the facts or the comparison that tell a change of its fields."""

    label: str
    meaning: Meaning
    facts: tuple[Fact, ...]
    comparer: Comparer | None = None

    @property
    def consequence(self) -> Consequence:
        return self.meaning.consequence


def compare_line(line: Line, old: Side, new: Side) -> Iterator[Change]:
    """The changes of a line's fields, and unchanged facts with Action.KEEP."""
    yield from _compare(line.facts, old, new)
    if line.comparer is not None:
        yield from line.comparer(old, new)


@cache
def lines() -> tuple[Line, ...]:
    """Every label of every op, then what no op holds."""
    stated: dict[str, tuple[Meaning, list[Field]]] = {}
    for kind in OPS:
        for name, meaning in meanings(kind).items():
            if meaning.label:
                stated.setdefault(meaning.label, (meaning, []))[1].append((kind, name))
    own = (line for meaning, fields in stated.values() for line in _lines(meaning, fields))
    return (*own, *_OF_PLANS)


def _lines(meaning: Meaning, fields: Sequence[Field]) -> Iterator[Line]:
    if meaning.label != "optimizer":
        yield _line(meaning, fields)
        return
    yield _fact_line(meaning, lambda side: _settings(side, "kind"))
    for name in dict.fromkeys(name for kind in OPTIMIZERS for name in kind.argument_names()):
        argument = numerics(f"{meaning.key}.{name}", f"{meaning.label} {name}")
        yield _fact_line(argument, partial(_settings, name=name))


def _settings(side: Side, name: str) -> Any:
    """A field of the optimizer's own; None for a kind without it."""
    op = side.op(BuildOptimizer)
    return None if op is None else getattr(op.settings, name, None)


def _line(meaning: Meaning, fields: Sequence[Field]) -> Line:
    label = meaning.label
    if comparer := COMPARERS.get(label):
        return Line(label, meaning, (), comparer)
    if label == "mesh":
        return Line(label, meaning, tuple(map(_mesh_dim, MESH_DIMS)))
    return _fact_line(meaning, READERS.get(label) or _values(fields))


def _fact_line(meaning: Meaning, read: Reader) -> Line:
    label = meaning.label
    group = _SHOWN_ELSEWHERE.get(label) or _GROUPS[meaning.consequence]
    return Line(label, meaning, (Fact(group, label, meaning.key, read, _EXPECTATIONS.get(label, "")),))


def _mesh_dim(mesh_dim: MeshDim) -> Fact:
    name = f"mesh.{mesh_dim}"
    return Fact(
        Group.LAYOUT, name, name, lambda side: dict(side.graph.init_mesh.sizes).get(mesh_dim), "world_size"
    )


def _values(fields: Sequence[Field]) -> Reader:
    """The values that the fields have in all ops: usually one."""

    def read(side: Side) -> Any:
        found = dict.fromkeys(getattr(op, name) for kind, name in fields for op in side.ops(kind))
        values = [value for value in found if value not in (None, (), "")]
        if len(values) < 2:
            return values[0] if values else None
        return " and ".join(
            ", ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values
        )

    return read


def compare_unlined(old: Side, new: Side) -> Iterator[Change]:
    """One line for two graphs that differ although no other line does.

    Another version of planc may derive a field from others in another way.
    """
    names = tuple(_changed_fields(old, new))
    if names:
        note = f"compiled differently: {', '.join(names)}; see show --graph"
        yield Change(Group.RUN, Action.CHANGE, "graph", note=note)


def _changed_fields(old: Side, new: Side) -> Iterator[str]:
    for kind in OPS:
        for name in meanings(kind):
            before, after = ([getattr(op, name) for op in side.ops(kind)] for side in (old, new))
            if before != after:
                yield f"{kind.__dataclass_fields__['op'].default}.{name}"


def having(*consequences: Consequence) -> Iterable[Line]:
    """The lines with one of these consequences."""
    return (line for line in lines() if line.consequence in consequences)


def _sequences_per_step(side: Side) -> int | None:
    data = side.op(OpenData)
    return data.global_batch if data else None


def _elastic(side: Side) -> str | None:
    elastic = side.plan.elastic if side.plan else None
    return f"{elastic.on[0]} may be {', '.join(map(str, elastic.sizes))}" if elastic else None


def _max_restarts(side: Side) -> int | None:
    return side.plan.elastic.max_restarts if side.plan and side.plan.elastic else None


def _of_plan(consequence: Consequence, fact: Fact) -> Line:
    return Line(fact.name, Meaning(consequence, fact.path, fact.name), (fact,))


_OF_PLANS = (
    _of_plan(
        Consequence.LAYOUT, Fact(Group.BATCH, "sequences/step", "", _sequences_per_step, "sequences_per_step")
    ),
    *(
        _of_plan(Consequence.OUTPUT, fact)
        for fact in (
            Fact(Group.RUN, "train.steps", "train.steps", lambda side: side.graph.num_steps or None),
            Fact(Group.RUN, "elastic", "elastic", _elastic),
            Fact(Group.RUN, "elastic.max_restarts", "elastic.max_restarts", _max_restarts),
        )
    ),
)
