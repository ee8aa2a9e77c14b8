"""Syntax tree to plan: every key consumed or reported, every default filled in, every origin kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import PurePath
from typing import Any, assert_never

from planc.diagnostics import Diagnostic, Label, has_errors
from planc.diagnostics.suggest import closest
from planc.plan import codes, spec
from planc.plan.expectations import resolve_expectations
from planc.plan.overrides import Override
from planc.plan.params import resolve_params, used_names
from planc.plan.pattern import MAX_ALTERNATIVES, Pattern, parse_pattern
from planc.plan.scalars import listed
from planc.plan.scope import Links, OriginStep, ParamValue, Scope, references
from planc.plan.types import NONE, Variant, keys, type_of
from planc.source import Span
from planc.styles import Boundary
from planc.syntax import ast
from planc.vocab import MeshDim

PATTERN_HELP = "a part is a name, `*`, `**`, `{a,b}` or `{0..3}`"
MAX_PLAN_ALTERNATIVES = 10 * MAX_ALTERNATIVES
"""Of all patterns of a plan."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a kind of block may hold."""

    record: type[Any]
    required: bool = False
    actions: Mapping[str, type[Any]] | None = None
    directives: tuple[str, ...] = ()
    on: tuple[MeshDim, ...] = ()
    """The mesh dims that may follow `on`; empty where the block takes no `on`."""


BLOCKS: Mapping[str, Shape] = {
    "model": Shape(spec.ModelSpec, required=True),
    "mesh": Shape(spec.MeshSpec),
    "tensor_parallel": Shape(
        spec.TensorParallelSpec, actions=spec.STYLE_ACTIONS, directives=("auto",), on=(MeshDim.TP,)
    ),
    "fsdp": Shape(spec.FsdpSpec, actions={"unit": spec.Unit}, on=(MeshDim.DP_SHARD, MeshDim.CP)),
    "context_parallel": Shape(
        spec.ContextParallelSpec, actions={"Shard": spec.BufferShard}, on=(MeshDim.CP,)
    ),
    "activation_checkpoint": Shape(
        spec.ActivationCheckpointSpec, actions={"full": spec.FullCheckpointing, "none": spec.NoCheckpointing}
    ),
    "data": Shape(spec.DataSpec, required=True),
    "optimizer": Shape(spec.OptimizerSpec, required=True, actions={"group": spec.Group}),
    "checkpoint": Shape(spec.CheckpointSpec),
    "train": Shape(spec.TrainSpec, required=True),
}


@dataclass(slots=True)
class Written:
    """What a plan says of one block: values by key, rules, directives, mesh dims."""

    span: Span
    values: dict[str, tuple[ast.Value, Span, tuple[OriginStep, ...]]] = field(default_factory=dict)
    rules: list[ast.Rule] = field(default_factory=list)
    directives: dict[str, Span] = field(default_factory=dict)
    on: tuple[MeshDim, ...] = ()
    mistyped: set[str] = field(default_factory=set)
    """Keys that an unknown key was most likely meant to be: they are not missing as well."""


@dataclass(slots=True)
class Resolver:
    """The state of one resolve: the scope, and the tables that become the plan's."""

    scope: Scope
    links: Links
    origins: dict[str, tuple[OriginStep, ...]] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    num_alternatives: int = 0


def resolve(
    file: ast.PlanFile, *, overrides: Sequence[Override] = (), links: Links | None = None
) -> tuple[spec.Plan | None, tuple[Diagnostic, ...]]:
    """The plan that a file and its overrides mean, or everything that keeps them from meaning one.

    `links` says of a linked file what its statements, gathered from several files, do not.
    """
    links = links or Links()
    params, problems = resolve_params(file, overrides)
    resolver = Resolver(Scope(params.values, params.broken, list(problems), links.folders), links)
    resolver.spans[""] = Span(file.file, 1, 1, 1, 1)
    written = _collect(file, resolver)
    _apply(params.other_overrides, written, resolver)
    expectations = resolve_expectations(file, resolver.scope)
    records = {kind: _record(kind, shape, written.get(kind), resolver) for kind, shape in BLOCKS.items()}
    _report_missing(file, written, resolver.scope)
    _report_unused(params.values, used_names(file, overrides), resolver)
    diagnostics = tuple(resolver.scope.diagnostics)
    if has_errors(diagnostics):
        return None, diagnostics
    return (
        spec.Plan(
            name=PurePath(file.file).stem,
            expectations=expectations,
            origins=resolver.origins,
            spans=resolver.spans,
            **records,
        ),
        diagnostics,
    )


def _report_unused(params: Mapping[str, ParamValue], used: frozenset[str], resolver: Resolver) -> None:
    """Reports parameters that nothing reads, or whose override changes nothing."""
    for name, value in params.items():
        if name in used:
            continue
        if name not in resolver.links.idle:
            resolver.scope.report(codes.UNUSED_PARAM, value.param.name.span, f"`{name}` is never used")
        elif value.via and value.via[-1].span is not None:
            text = f"this changes nothing: what reads `{name}` is overridden or not used"
            resolver.scope.report(codes.UNUSED_PARAM, value.via[-1].span, text)


def _report_missing(file: ast.PlanFile, written: Mapping[str, Written], scope: Scope) -> None:
    for kind, shape in BLOCKS.items():
        if shape.required and kind not in written:
            start = Span(file.file, 1, 1, 1, 1)
            scope.report(
                codes.MISSING, start, f"the plan has no `{kind}` block", help=f"add `{kind} {{ ... }}`"
            )


def _collect(file: ast.PlanFile, resolver: Resolver) -> dict[str, Written]:
    """Blocks by kind, with duplicates and strangers reported."""
    scope = resolver.scope
    written: dict[str, Written] = {}
    for statement in file.statements:
        if isinstance(statement, ast.Param):
            continue
        if not isinstance(statement, ast.Block):
            text = "only blocks and params stand at the top level"
            scope.report(codes.MISPLACED, statement.span, text, help=_home(statement))
            continue
        kind = statement.kind.text
        if kind == "expect":
            _no_label(statement, scope)
            _mesh_dims(statement, Shape(spec.Expectation), scope)
            continue
        if kind not in BLOCKS:
            scope.unknown(codes.UNKNOWN_BLOCK, statement.kind, (*BLOCKS, "expect"), text=f"no block `{kind}`")
        elif kind in written:
            first = Label(written[kind].span, "first given here")
            scope.report(codes.DUPLICATE, statement.kind.span, f"a second `{kind}` block", secondary=(first,))
        else:
            written[kind] = _block(statement, BLOCKS[kind], resolver)
    return written


def _block(block: ast.Block, shape: Shape, resolver: Resolver) -> Written:
    scope, kind = resolver.scope, block.kind.text
    found = Written(block.kind.span, on=_mesh_dims(block, shape, scope))
    resolver.spans[kind] = block.kind.span
    _no_label(block, scope)
    names = _names(shape)
    for statement in block.body:
        match statement:
            case ast.Setting(name, value, override, span):
                if override:
                    help = "remove `override`: no base and no fragment gives this"
                    scope.report(codes.MISPLACED, span, "a setting overrides nothing", help=help)
                if name.text not in names:
                    text = f"`{kind}` has no key `{name.text}`"
                    scope.unknown(codes.UNKNOWN_KEY, name, names, text=text, help=_home(statement))
                    found.mistyped.update(filter(None, [closest(name.text, names)]))
                elif name.text in found.values:
                    first = Label(found.values[name.text][1], "first given here")
                    scope.report(codes.DUPLICATE, span, f"`{name.text}` is given twice", secondary=(first,))
                else:
                    steps = (OriginStep("written", span, ""), *resolver.links.origins.get(span, ()))
                    found.values[name.text] = (value, span, steps)
            case ast.Rule() if shape.actions is not None:
                found.rules.append(statement)
            case ast.Directive(name) if name.text in found.directives:
                first = Label(found.directives[name.text], "first given here")
                scope.report(codes.DUPLICATE, name.span, f"`{name.text}` is given twice", secondary=(first,))
            case ast.Directive(name) if name.text in shape.directives:
                found.directives[name.text] = name.span
            case ast.Directive(name) if name.text in names:
                text, help = f"`{name.text}` has no value", f"write `{name.text} = ...`"
                scope.report(codes.MISPLACED, name.span, text, help=help)
            case ast.Directive(name) if shape.directives:
                scope.unknown(codes.MISPLACED, name, shape.directives, text=f"not a word of `{kind}`")
            case _:
                scope.report(codes.MISPLACED, statement.span, f"not inside `{kind}`", help=_home(statement))
    return found


def _no_label(block: ast.Block, scope: Scope) -> None:
    if block.label is not None:
        help = "a block with a label is a fragment, and stands in a file that is imported"
        scope.report(codes.MISPLACED, block.label.span, f"`{block.kind.text}` takes no label", help=help)


def _home(statement: ast.Statement) -> str | None:
    """Where a misplaced statement belongs."""
    match statement:
        case ast.Setting(name):
            homes = [kind for kind, shape in BLOCKS.items() if name.text in _names(shape)]
            return f"`{name.text}` belongs in {listed(f'`{kind}`' for kind in homes)}" if homes else None
        case ast.Comparison():
            return "a setting takes `=`; assertions stand in `expect`"
        case ast.Rule():
            homes = [kind for kind, shape in BLOCKS.items() if shape.actions is not None]
            return f"rules stand in {listed(f'`{kind}`' for kind in homes)}"
        case ast.Param() | ast.Block() | ast.Extends() | ast.Import():
            return "it stands at the top level, outside every block"
        case ast.Use():
            return "`use` stands in a block of a plan, of the fragment's kind"
        case ast.Directive():
            return None
        case _:
            assert_never(statement)


def _names(shape: Shape) -> tuple[str, ...]:
    """The keys of a block."""
    return tuple(spec_field.name for spec_field in keys(shape.record))


def _mesh_dims(block: ast.Block, shape: Shape, scope: Scope) -> tuple[MeshDim, ...]:
    """The mesh dims after `on`."""
    wanted = " or ".join(shape.on)
    if shape.on and not block.on:
        text = f"`{block.kind.text}` says which mesh dims it works on"
        scope.report(
            codes.MISSING, block.kind.span, text, help=f"write `{block.kind.text} on {shape.on[0]} {{`"
        )
    found: list[MeshDim] = []
    for name in block.on:
        if not shape.on:
            scope.report(codes.MISPLACED, name.span, f"`{block.kind.text}` works on no mesh dim")
        elif name.text not in tuple(MeshDim):
            scope.unknown(
                codes.UNKNOWN_MESH_DIM, name, tuple(shape.on), text=f"the mesh has no dim `{name.text}`"
            )
        elif name.text not in shape.on:
            scope.report(codes.UNKNOWN_MESH_DIM, name.span, f"`{block.kind.text}` works on {wanted} only")
        elif name.text in found:
            scope.report(codes.DUPLICATE, name.span, f"`{name.text}` is listed twice")
        else:
            found.append(MeshDim(name.text))
    return tuple(sorted(found, key=list(MeshDim).index))


def _apply(targets: Sequence[Override], written: dict[str, Written], resolver: Resolver) -> None:
    """Puts overrides of settings in place of what the file says."""
    for override in targets:
        assignment = override.assignment
        kind, _, name = assignment.target.text.partition(".")
        if kind not in BLOCKS or name not in _names(BLOCKS[kind]):
            _unknown_target(assignment.target, resolver.scope)
            continue
        if kind not in written and BLOCKS[kind].on:
            text, help = f"the plan has no `{kind}` block to set this in", "add the block to the plan"
            resolver.scope.report(codes.UNKNOWN_TARGET, assignment.target.span, text, help=help)
            continue
        block = written.setdefault(kind, Written(assignment.span))
        resolver.spans.setdefault(kind, assignment.span)
        before = block.values[name][2] if name in block.values else ()
        step = OriginStep(override.kind, assignment.span, override.text)
        block.values[name] = (assignment.value, assignment.span, (step, *before))


def _unknown_target(target: ast.Name, scope: Scope) -> None:
    """Reports an override of nothing; the right key with another block or none is most likely."""
    if target.text in scope.broken:
        return
    text = "neither a parameter nor a setting of the plan"
    settings = [(kind, name) for kind, shape in BLOCKS.items() for name in _names(shape)]
    same_key = [f"`{kind}.{name}`" for kind, name in settings if name == target.text.rpartition(".")[2]]
    if same_key:
        help = f"did you mean {listed(same_key)}?"
        scope.report(codes.UNKNOWN_TARGET, target.span, text, help=help)
        return
    names = _names(BLOCKS[target.text]) if target.text in BLOCKS else ()
    help = "a setting is named with its block, as in `mesh.tp`"
    if names:
        help = f"`{target.text}` has the settings {listed(names)}"
    candidates = (*scope.params, *(f"{kind}.{name}" for kind, name in settings))
    scope.unknown(codes.UNKNOWN_TARGET, target, candidates, text=text, help=help)


def _record(kind: str, shape: Shape, written: Written | None, resolver: Resolver) -> Any:
    """The block's record; None for an absent optional block that has no meaning by default."""
    if written is None:
        if kind != "mesh":
            return None
        written = Written(resolver.spans[""])
    values: dict[str, Any] = {}
    for spec_field in keys(shape.record):
        value = _value(f"{kind}.{spec_field.name}", spec_field, written, resolver)
        if value is MISSING:
            continue
        values[spec_field.name] = value
    if shape.actions is not None:
        values["rules"] = _rules(written.rules, shape.actions, resolver)
        values["span"] = written.span
    if shape.on:
        values["on"] = written.on
    for directive in shape.directives:
        values[directive] = written.directives.get(directive)
    return None if has_errors(resolver.scope.diagnostics) else shape.record(**values)


def _value(path: str, spec_field: Any, written: Written, resolver: Resolver) -> Any:
    """One setting's value, its origin and span noted; MISSING after a report."""
    if spec_field.name not in written.values:
        if spec_field.name in written.mistyped:
            return MISSING
        if spec_field.metadata["default"] is MISSING:
            block = path.partition(".")[0]
            resolver.scope.report(codes.MISSING, written.span, f"`{block}` needs `{spec_field.name}`")
            return MISSING
        resolver.origins[path] = (OriginStep("default", None, ""),)
        return spec_field.metadata["default"]
    value, span, steps = written.values[spec_field.name]
    converted = type_of(spec_field).convert(value, resolver.scope)
    via: list[OriginStep] = []
    for ref in references(value):
        name = ref.param_name
        if name in resolver.scope.params:
            param = resolver.scope.params[name]
            via.extend((OriginStep("parameter", param.param.name.span, name), *param.via))
    resolver.origins[path] = (*steps, *via)
    resolver.spans[path] = span
    return MISSING if converted is None else None if converted is NONE else converted


def _rules(
    rules: Sequence[ast.Rule], actions: Mapping[str, type[Any]], resolver: Resolver
) -> tuple[spec.PatternRule[Any], ...]:
    found: list[spec.PatternRule[Any]] = []
    for rule in rules:
        action = Variant(actions).convert(rule.action, resolver.scope)
        patterns = [_pattern(text, resolver) for text in rule.patterns]
        _report_repeats(rule, resolver.scope)
        if action is None:
            continue
        if hasattr(action, "style"):
            options = {name: getattr(action, name) for name in action.style.options}
            action = spec.StyleAction(action.style, Boundary(**options))
        known = tuple(pattern for pattern in patterns if pattern is not None)
        found.append(spec.PatternRule(known, action, rule.override, rule.span, rule.action.span))
    return tuple(found)


def _report_repeats(rule: ast.Rule, scope: Scope) -> None:
    seen: dict[str, Span] = {}
    for pattern in rule.patterns:
        first = Label(seen.setdefault(pattern.value, pattern.span), "first given here")
        if first.span != pattern.span:
            scope.report(codes.DUPLICATE, pattern.span, "this pattern is listed twice", secondary=(first,))


def _pattern(text: ast.Text, resolver: Resolver) -> Pattern | None:
    """The pattern, or None after a report. Past the budget the rest is left unread: one report says so."""
    if resolver.num_alternatives > MAX_PLAN_ALTERNATIVES:
        return None
    parsed = parse_pattern(text)
    if not isinstance(parsed, Pattern):
        start, end, reason = parsed
        resolver.scope.report(codes.BAD_PATTERN, text.part(start, end), reason, help=PATTERN_HELP)
        return None
    resolver.num_alternatives += parsed.num_alternatives
    if resolver.num_alternatives > MAX_PLAN_ALTERNATIVES:
        reason = f"up to here the plan's patterns have more than {MAX_PLAN_ALTERNATIVES} alternatives"
        resolver.scope.report(codes.BAD_PATTERN, text.span, reason)
        return None
    return parsed
