"""The way from syntax tree to plan: every key consumed or reported, every default and origin kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, replace
from pathlib import PurePath
from typing import Any

from planc.diagnostics import Applicability, Diagnostic, Fix, Label, has_errors
from planc.diagnostics.suggest import closest
from planc.plan import codes, spec
from planc.plan.apply_overrides import apply_overrides
from planc.plan.blocks import BLOCKS, Shape
from planc.plan.call_arguments import argument_home, argument_origins, via_parameters
from planc.plan.expectations import is_waiver, resolve_expectations, waive
from planc.plan.extensions import report_unused_code
from planc.plan.foreign_help import foreign_help, meant_block, meant_by
from planc.plan.homes import home, nested_home, rule_instead
from planc.plan.keys import keys
from planc.plan.mesh_dims import mesh_dims
from planc.plan.missing import report_block, report_keys, required
from planc.plan.nested import nested_field
from planc.plan.overrides import Override
from planc.plan.params import misspelled, report_unused, resolve_params, used_names
from planc.plan.pattern import MAX_ALTERNATIVES, Pattern, parse_pattern
from planc.plan.pattern_habits import as_list, as_pattern
from planc.plan.scalars import listed
from planc.plan.scope import Links, OriginStep, Scope
from planc.plan.style_actions import StyleAction
from planc.plan.train_length import read_epochs
from planc.plan.types import NONE, Variant, convert_field
from planc.plan.written import Resolver, Written
from planc.source import Span
from planc.styles import Boundary
from planc.syntax import ast
from planc.syntax.slips import slip_of_keyword

PATTERN_HELP = "write each part as a name, `*`, `**`, `{a,b}` or `{0..3}`"
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_PLAN_ALTERNATIVES = 10 * MAX_ALTERNATIVES
"""The limit for all patterns of a plan."""


def resolve(
    file: ast.PlanFile,
    *,
    overrides: Sequence[Override] = (),
    links: Links | None = None,
    is_whole: bool = True,
) -> tuple[spec.Plan | None, tuple[Diagnostic, ...]]:
    """The plan that a file and its overrides give, or every error that prevents it.

    `links` adds what the statements of a linked file, gathered from several files, can't show. `is_whole` is
    false if some statements of the file did not parse.
    """
    links = links or Links()
    params, problems = resolve_params(file, overrides)
    statements = () if params.other_overrides or links.incomplete else file.statements
    scope = Scope(
        params.values, params.broken, list(problems), links.folders, statements, is_whole, links.registry
    )
    resolver = Resolver(scope, links)
    resolver.spans[""] = Span(file.file, 1, 1, 1, 1)
    written = _collect(file, resolver)
    settings = [override for override in params.other_overrides if not is_waiver(override)]
    apply_overrides(settings, written, resolver)
    if "train" in written:
        read_epochs(written["train"], scope)
    written_expectations = resolve_expectations(file, resolver.scope)
    expectations, waived = waive(params.other_overrides, written_expectations, resolver.scope)
    records = {kind: _record(kind, shape, written.get(kind), resolver) for kind, shape in BLOCKS.items()}
    for kind, shape in BLOCKS.items():
        if shape.required and kind not in written and kind not in resolver.mistyped:
            report_block(kind, shape, resolver.scope, file=file.span)
    meant = misspelled(file, links.idle, resolver.scope.diagnostics, params=params.values)
    report_unused(params.values, used_names(file, overrides) | meant, scope, idle=links.idle)
    report_unused_code(scope)
    diagnostics = tuple(resolver.scope.diagnostics)
    if has_errors(diagnostics) or links.incomplete:
        return None, diagnostics
    return (
        spec.Plan(
            name=PurePath(file.file).stem,
            expectations=expectations,
            waived=waived,
            origins=resolver.origins,
            spans=resolver.spans,
            extensions=tuple(sorted(scope.used_files)),
            **records,
        ),
        diagnostics,
    )


def _collect(file: ast.PlanFile, resolver: Resolver) -> dict[str, Written]:
    """Blocks by kind, with duplicate and unknown blocks reported."""
    scope = resolver.scope
    written: dict[str, Written] = {}
    for statement in file.statements:
        if isinstance(statement, ast.Param):
            continue
        if not isinstance(statement, ast.Block):
            text = "only blocks and parameters are allowed at the top level"
            scope.report(codes.MISPLACED, statement.span, text, help=home(statement, scope=scope))
            continue
        kind = statement.kind.text
        if kind == "expect":
            _no_label(statement, scope)
            mesh_dims(statement, Shape(spec.Expectation), scope)
            continue
        inside = nested_home(kind, statement.label)
        if inside is not None:
            scope.report(
                codes.MISPLACED, statement.kind.span, f"`{kind}` is not allowed at the top level", help=inside
            )
        elif kind not in BLOCKS:
            _unknown_block(statement, resolver)
        elif kind in written:
            first = Label(written[kind].span, "first given here")
            text, help = f"a second `{kind}` block", f"merge the two `{kind}` blocks into one"
            scope.report(codes.DUPLICATE, statement.kind.span, text, secondary=(first,), help=help)
        else:
            _no_label(statement, scope)
            written[kind] = _block(statement, BLOCKS[kind], resolver, path=kind)
    return written


def _block(block: ast.Block, shape: Shape, resolver: Resolver, *, path: str) -> Written:
    scope, kind, names = resolver.scope, block.kind.text, shape.names
    written = Written(block.kind.span, block.span, on=mesh_dims(block, shape, scope))
    resolver.spans[path] = block.kind.span
    for statement in block.body:
        match statement:
            case ast.Setting(name, value, override, span):
                if override and kind not in resolver.links.incomplete:
                    help = "remove `override`: no base or fragment sets this"
                    scope.report(codes.MISPLACED, span, "this `override` overrides nothing", help=help)
                if name.text not in names:
                    written.mistyped.update(_unknown_key(statement, block, shape, scope))
                elif name.text in written.values:
                    first = Label(written.values[name.text][1], "first given here")
                    text = f"`{name.text}` is given twice"
                    help = (
                        f"remove one of them; `--set {path}.{name.text}=...` gives another value for one run"
                    )
                    scope.report(codes.DUPLICATE, span, text, secondary=(first,), help=help)
                else:
                    steps = (OriginStep("written", span, ""), *resolver.links.origins.get(span, ()))
                    written.values[name.text] = (value, span, steps)
            case ast.Rule() if shape.actions is not None:
                written.rules.append(statement)
            case ast.Block(kind=name) if name.text in shape.nested or (
                shape.nested and name.text not in {*BLOCKS, *names}
            ):
                _nested(statement, shape, written, resolver, path=path)
            case ast.Directive(name) if name.text in written.directives:
                first = Label(written.directives[name.text].span, "first given here")
                text, help = f"`{name.text}` is given twice", f"remove one `{name.text}`"
                scope.report(codes.DUPLICATE, name.span, text, secondary=(first,), help=help)
            case ast.Directive(name) if name.text in shape.directives:
                written.directives[name.text] = statement
            case ast.Directive(name) | ast.Block(kind=name, body=()) if name.text in names:
                text, help = f"`{name.text}` has no value", f"write `{name.text} = ...`"
                scope.report(codes.MISPLACED, name.span, text, help=help)
                written.mistyped.add(name.text)
            case ast.Directive(name) if (
                rule := rule_instead(kind, shape, statement, scope=scope)
            ) is not None:
                text = f"`{name.text}` is not a statement of `{kind}`"
                scope.report(codes.MISPLACED, name.span, text, help=rule)
            case ast.Directive(name) if shape.directives:
                scope.unknown(
                    codes.MISPLACED,
                    name,
                    tuple(shape.directives),
                    text=f"`{name.text}` is not a statement of `{kind}`",
                )
            case _:
                scope.report(
                    codes.MISPLACED,
                    statement.span,
                    f"not allowed in `{kind}`",
                    help=home(statement, scope=scope),
                )
    return written


def _unknown_block(block: ast.Block, resolver: Resolver) -> None:
    """Report an unknown block; the block that was meant is then not reported as missing."""
    kind, known = block.kind.text, (*BLOCKS, "expect")
    text, help = f"no block `{kind}`", foreign_help(kind) or slip_of_keyword(block)
    if help is not None:
        resolver.scope.report(codes.UNKNOWN_BLOCK, block.kind.span, text, help=help)
    else:
        resolver.scope.unknown(codes.UNKNOWN_BLOCK, block.kind, known, text=text)
    resolver.mistyped.update(filter(None, [meant_block(kind) or closest(kind, known)]))


def _unknown_key(setting: ast.Setting, block: ast.Block, shape: Shape, scope: Scope) -> Iterator[str]:
    """Report an unknown key; yield the key that was meant."""
    name, kind = setting.name, block.kind.text
    text = f"`{kind}` has no key `{name.text}`"
    taken = {one.name.text for one in block.body if isinstance(one, ast.Setting)}
    meant = meant_by(setting, kind=kind, taken=taken, scope=scope)
    if meant is not None:
        scope.report(codes.UNKNOWN_KEY, name.span, text, help=meant.help, fix=meant.fix)
        yield from [meant.key] if meant.key else []
        return
    instead = rule_instead(kind, shape, setting, scope) or argument_home(kind, name.text)
    instead = instead or home(setting, scope=scope)
    scope.unknown(codes.UNKNOWN_KEY, name, shape.names, text=text, help=instead)
    yield from filter(None, [closest(name.text, shape.names)])


def _nested(block: ast.Block, outer: Shape, target: Written, resolver: Resolver, *, path: str) -> None:
    """Read a nested block into `target`, or report its name, its label or that it is a duplicate."""
    scope, name, label = resolver.scope, block.kind.text, block.label
    if name not in outer.nested:
        text = f"no block `{name}` inside `{path}`"
        scope.unknown(
            codes.UNKNOWN_BLOCK, block.kind, tuple(outer.nested), text=text, help=foreign_help(name)
        )
        return
    shapes = outer.nested[name]
    if label is None or not label.value:
        text, help = f"`{name}` has no label", listed(f'`{name} "{known}" {{`' for known in shapes)
        scope.report(codes.MISSING, block.kind.span, text, help=f"write {help}")
        return
    shape = outer.labelled(name, label.value)
    if name in outer.freely_labelled and not _LABEL.fullmatch(label.value):
        text, help = (
            "expected up to 64 letters, digits, `_` and `-`",
            f'write a label such as `{name} "held_out"`',
        )
        scope.report(codes.WRONG_TYPE, label.span, text, help=help)
        return
    if shape is None:
        written = ast.Name(label.value, label.part(0, len(label.value)))
        scope.unknown(
            codes.UNKNOWN_NAME, written, tuple(shapes), text=f"`{label.value}` is not a label of `{name}`"
        )
        return
    key = (name, label.value)
    if key in target.nested:
        first = Label(target.nested[key].span, "first given here")
        text = f'a second `{name} "{label.value}"` block'
        help = f'move its statements into the first `{name} "{label.value}"` block, or give it another label'
        scope.report(codes.DUPLICATE, block.kind.span, text, secondary=(first,), help=help)
        return
    target.nested[key] = _block(block, shape, resolver, path=f"{path}.{name}.{label.value}")


def _no_label(block: ast.Block, scope: Scope) -> None:
    if block.label is not None:
        help = "remove the label, or move the block to an imported file: a labeled block is a fragment"
        scope.report(
            codes.MISPLACED, block.label.span, f"`{block.kind.text}` does not take a label", help=help
        )


def _record(path: str, shape: Shape, written: Written | None, resolver: Resolver) -> Any:
    """The block's record; None for an absent optional block that has no meaning by default."""
    if written is None:
        if path != "mesh":
            return None
        written = Written(resolver.spans[""], resolver.spans[""])
    values: dict[str, Any] = {}
    given = written.values.keys() | written.mistyped
    is_known = path.partition(".")[0] not in resolver.links.incomplete
    present = given | {block for block, _ in written.nested}
    absent = [one for one in required(shape.record) if one.name not in given]
    absent = [one for one in absent if one.metadata["unless"] not in present]
    if absent and is_known:
        report_keys(path, absent, resolver.scope, at=written.span, block=written.whole)
    for name in shape.nested:
        values[nested_field(shape.record, name)] = {
            label: _record(f"{path}.{name}.{label}", _inner(shape, name, label), inner, resolver)
            for (block, label), inner in written.nested.items()
            if block == name
        }
    for spec_field in keys(shape.record):
        value = _value(f"{path}.{spec_field.name}", spec_field, written, resolver, before=values)
        if value is MISSING:
            continue
        values[spec_field.name] = value
    if shape.actions is not None:
        noun = "style" if path == "tensor_parallel" else f"action of `{path}`"
        values["rules"] = _rules(written.rules, shape.actions, noun, resolver)
        values["span"] = written.span
    if shape.on:
        values["on"] = written.on
    for name in shape.directives:
        values[name] = _directive(written.directives.get(name), shape, resolver)
    is_sound = is_known and not has_errors(resolver.scope.diagnostics)
    return shape.record(**values) if is_sound else None


def _inner(shape: Shape, name: str, label: str) -> Shape:
    found = shape.labelled(name, label)
    assert found is not None, "other labels were reported when the block was read"
    return found


def _value(
    path: str, spec_field: Any, written: Written, resolver: Resolver, *, before: Mapping[str, Any]
) -> Any:
    """The value of a setting, its origin and span noted; MISSING if it is absent or was reported."""
    if spec_field.name not in written.values:
        if spec_field.metadata["unless"]:
            return None
        if spec_field.name in written.mistyped or spec_field.metadata["default"] is MISSING:
            return MISSING
        resolver.origins[path] = (OriginStep("default", None, ""),)
        derived = spec_field.metadata["derived"]
        return spec_field.metadata["default"] if derived is None else derived(before)
    value, span, steps = written.values[spec_field.name]
    converted = convert_field(spec_field, value, resolver.scope)
    resolver.origins[path] = (*steps, *via_parameters(value, resolver.scope))
    resolver.origins.update(argument_origins(path, value, steps, resolver.scope))
    resolver.spans[path] = span
    if converted is None:
        return MISSING
    return None if converted is NONE else converted


def _directive(directive: ast.Directive | None, shape: Shape, resolver: Resolver) -> Any:
    """The record of a directive's arguments, and its place; None for one that is absent."""
    if directive is None:
        return None
    name = directive.name
    action = directive.call or ast.Ref(name)
    found = Variant({name.text: shape.directives[name.text]}, name.text).convert(action, resolver.scope)
    return None if found is None else replace(found, span=directive.span)


def _rules(
    rules: Sequence[ast.Rule], actions: Mapping[str, type[Any]], noun: str, resolver: Resolver
) -> tuple[spec.PatternRule[Any], ...]:
    resolved: list[spec.PatternRule[Any]] = []
    for rule in rules:
        action = Variant(actions, noun).convert(rule.action, resolver.scope)
        patterns = [_pattern(text, resolver) for text in rule.patterns]
        _report_repeats(rule, resolver.scope)
        if action is None:
            continue
        if hasattr(action, "style"):
            options = {name: getattr(action, name) for name in action.style.options}
            action = StyleAction(action.style, Boundary(**options))
        known = tuple(pattern for pattern in patterns if pattern is not None)
        level = resolver.links.levels.get(rule.span, 0)
        resolved.append(spec.PatternRule(known, action, rule.override, rule.span, rule.action.span, level))
    return tuple(resolved)


def _report_repeats(rule: ast.Rule, scope: Scope) -> None:
    seen: dict[str, Span] = {}
    for pattern in rule.patterns:
        first = Label(seen.setdefault(pattern.value, pattern.span), "first given here")
        if first.span != pattern.span:
            text, help = "this pattern is listed twice", f'remove one `"{pattern.value}"`'
            scope.report(codes.DUPLICATE, pattern.span, text, secondary=(first,), help=help)


def _pattern(text: ast.Text, resolver: Resolver) -> Pattern | None:
    """The pattern, or None after a report. Past the budget the rest is not read, which is reported once."""
    if resolver.num_alternatives > MAX_PLAN_ALTERNATIVES:
        return None
    parsed = parse_pattern(text)
    if not isinstance(parsed, Pattern):
        start, end, reason = parsed
        help, fix = _as_pattern(text)
        resolver.scope.report(codes.BAD_PATTERN, text.part(start, end), reason, help=help, fix=fix)
        return None
    resolver.num_alternatives += parsed.num_alternatives
    if resolver.num_alternatives > MAX_PLAN_ALTERNATIVES:
        reason = f"the patterns up to here have more than {MAX_PLAN_ALTERNATIVES} alternatives"
        resolver.scope.report(codes.BAD_PATTERN, text.span, reason, help="use `*` in place of braces")
        return None
    return parsed


def _as_pattern(text: ast.Text) -> tuple[str, Fix | None]:
    """Return what to write for a malformed pattern, with a fix if another notation explains it."""
    if (names := as_list(text.value)) is not None:
        return f"write a list: `{names}`", Fix(text.span, names, Applicability.UNSAFE)
    meant = as_pattern(text.value)
    if meant is None or not isinstance(parse_pattern(ast.Text(meant, text.span)), Pattern):
        return PATTERN_HELP, None
    fix = Fix(text.part(0, len(text.value)), meant, Applicability.UNSAFE)
    return f"write `{meant}`", fix
