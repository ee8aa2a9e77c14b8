"""Rules that fix a plan, for help lines: complete, to be pasted as they are."""

from __future__ import annotations

from collections.abc import Sequence

from planc.checks.support.rule import Subject
from planc.inventory.schema import Kind, Module
from planc.layouts.flow import ClashKind
from planc.plan.bind import Assignment
from planc.styles.edges import FEATURES, SEQUENCE, normal
from planc.vocab import Placement, Shard, StridedShard, parent_of


def gathered(subject: Subject, containers: Sequence[str]) -> str:
    """The rules with which layers inside `containers` exchange whole features and keep sharded weights.

    For modules that can't work on some of the heads, or that separate the features of several ranks. Norms
    that summed gradients over sharded heads then have nothing to sum.
    """
    by_action: dict[str, list[str]] = {}
    for module in subject.inventory.modules:
        assignment = subject.bound.styles.get(module.fqn)
        if assignment is not None and any(module.fqn.startswith(f"{fqn}.") for fqn in containers):
            action = _gathered_action(subject, module, assignment=assignment)
            if action is not None:
                by_action.setdefault(action, []).append(module.fqn)
    return " and ".join(changed(subject, fqns, action) for action, fqns in by_action.items())


def _gathered_action(subject: Subject, module: Module, *, assignment: Assignment) -> str | None:
    use = assignment.use
    weight = assignment.style.parameters.get("weight")
    if assignment.style.meets_heads or norms_heads(subject, module.fqn):
        return "replicate"
    if not module.is_linear:
        return None
    if assignment.style.shares_heads:
        return "colwise_gather_output"
    if (weight == Shard(0) or isinstance(weight, StridedShard)) and normal(use.output) == FEATURES:
        return with_option("colwise_gather_output", "input", _written(assignment, "input"))
    if weight == Shard(1) and normal(use.input) == FEATURES:
        return with_option("rowwise_split_input", "output", _written(assignment, "output"))
    return None


def with_option(style: str, option: str, value: Placement | None) -> str:
    """`rowwise(output = Shard(1))`; only the style without a value."""
    return style if value is None else f"{style}({option} = {value})"


def _written(assignment: Assignment, option: str) -> Placement | None:
    """The boundary that the plan itself writes."""
    boundary = assignment.rule.action.boundary if assignment.rule else None
    value: Placement | None = getattr(boundary, option, None)
    return value


def changed(subject: Subject, fqns: Sequence[str], action: str) -> str:
    """`"model.layers.*.mlp.down_proj" -> rowwise` in backticks, one rule for each pattern over all layers.

    With `auto` or rules of other files, it needs an `override` to win.
    """
    spec = subject.plan.tensor_parallel
    own = spec.span.file if spec else ""
    found = (subject.bound.styles.get(fqn) for fqn in fqns)
    is_elsewhere = any(one and (one.rule is None or one.span.file != own) for one in found)
    override = "override " if is_elsewhere else ""
    return " and ".join(f'`{override}"{pattern}" -> {action}`' for pattern in subject.patterns(fqns))


def divided_here(subject: Subject, fqns: Sequence[str]) -> str:
    """The rules by which rowwise layers split whole inputs themselves, with the same outputs."""
    by_action: dict[str, list[str]] = {}
    for fqn in fqns:
        output = _written(subject.bound.styles[fqn], "output")
        by_action.setdefault(with_option("rowwise_split_input", "output", output), []).append(fqn)
    return " and ".join(changed(subject, one, action) for action, one in by_action.items())


def followers(subject: Subject, fqns: Sequence[str]) -> tuple[str, ...]:
    """The linear layers that take the outputs of others in the same container."""
    return tuple(
        module.fqn
        for module in subject.inventory.modules
        if module.is_linear
        and any(fqn in module.sources and _parent(fqn) == _parent(module.fqn) for fqn in fqns)
    )


def exchanged(subject: Subject) -> frozenset[str]:
    """Layers that shard their output, after layers that need a sharded input: they should swap styles."""
    clashes = subject.flow.clashes
    waiting = [clash.consumer for clash in clashes if clash.kind is ClashKind.FEATURES_NOT_DIVIDED]
    styles = subject.bound.styles
    return frozenset(
        fqn
        for fqn in followers(subject, waiting)
        if fqn in styles and styles[fqn].style.parameters.get("weight") == Shard(0)
    )


def _parent(fqn: str) -> str:
    return parent_of(fqn)


def norms_heads(subject: Subject, fqn: str) -> bool:
    """Whether a module has the style of norms on sharded heads."""
    assignment = subject.bound.styles.get(fqn)
    if assignment is None or not assignment.style.reduces_parameter_gradients:
        return False
    return normal(assignment.use.computes_on) == FEATURES


def behind_norms(subject: Subject, fqns: Sequence[str]) -> tuple[str, ...]:
    """Modules, with norms of single heads replaced by the projections that they follow."""
    behind: set[str] = set()
    for fqn in fqns:
        module = subject.inventory.get(fqn)
        is_norm = module is not None and module.kind is Kind.NORM
        inner = [source for source in module.sources if _parent(source) == _parent(fqn)] if module else []
        behind.update(inner if is_norm and inner else [fqn])
    return tuple(module.fqn for module in subject.inventory.modules if module.fqn in behind)


def is_sequence_divided(subject: Subject, *, apart_from: Sequence[str] = ()) -> bool:
    """Whether anything except norms takes or returns a sharded sequence: the plan shards it on purpose."""
    for fqn, assignment in subject.bound.styles.items():
        if "sequence_dim" not in assignment.style.options and fqn not in apart_from:
            use = assignment.use
            if SEQUENCE in (normal(use.input), normal(use.output)):
                return True
    return False
