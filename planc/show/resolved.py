"""A fully resolved plan: every default written out, every parameter replaced by its value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from planc.fmt.format import format_source
from planc.graph.text import summarise
from planc.inventory.schema import Kind
from planc.plan.bind import BoundPlan, decided
from planc.plan.blocks import BLOCKS, Shape
from planc.plan.facts import SIZES
from planc.plan.keys import keys, type_of
from planc.plan.nested import nested_field, present_keys
from planc.plan.quantities import BYTES
from planc.plan.scalars import Quantity
from planc.plan.spec import Expectation, PatternRule
from planc.plan.style_actions import STYLE_ACTIONS, StyleAction
from planc.plan.types import Variant, render_call
from planc.record import record
from planc.solve import is_solved
from planc.source import SourceFile
from planc.styles import BY_NAME
from planc.styles.style import use
from planc.syntax.write import number, rule
from planc.vocab import StridedShard

_MIXED = re.compile(r"\{([0-9.]+(?:,[0-9.]+)+)\}")


def resolved_text(bound: BoundPlan) -> str:
    """A valid plan with the same meaning (equal `plan_hash`) and relative paths, formatted as by `fmt`.

    The rules of the model's own plan follow `auto` as comments, since real rules would need `override`.
    Those that planc found replace it.
    """
    blocks = [
        "\n".join(_block(kind, shape, getattr(bound.plan, kind), bound))
        for kind, shape in BLOCKS.items()
        if getattr(bound.plan, kind) is not None
    ]
    if bound.plan.expectations or bound.plan.waived:
        blocks.append("\n".join(_expect(bound)))
    if bound.plan.extensions:
        blocks.insert(0, "\n".join(f'extension "{file}"' for file in bound.plan.extensions))
    text = "\n\n".join(blocks) + "\n"
    formatted, _ = format_source(SourceFile(bound.plan.name, text))
    return (
        formatted if formatted is not None else text
    )  # a text beyond the limits is not a plan, formatted or not


def _block(kind: str, shape: Shape, record: Any, bound: BoundPlan) -> Iterator[str]:
    on = f" on {', '.join(record.on)}" if shape.on else ""
    yield f"{kind}{on} {{"
    if kind == "train" and record.epochs is not None:
        yield f"  # steps: {'known after `planc data prepare`' if record.steps is None else record.steps}"
        record = replace(record, steps=None)
    if kind == "compile":
        # Unsaid, it is only of a loss that can be compiled.
        record = replace(record, loss=bound.plan.compiles_loss)
    yield from (f"  {setting}" for setting in _settings(record))
    if kind == "data" and record.packing == "none":
        yield "  # padding: the token that ends a document"
    for name in shape.nested:
        for label, inner in getattr(record, nested_field(shape.record, name)).items():
            yield f'  {name} "{label}" {{ {", ".join(_settings(inner))} }}'
    for name, of in shape.directives.items():
        given = getattr(record, name)
        if given is not None and is_solved(bound.plan, bound.inventory):
            yield from (f"  {_rule(one, shape)}" for one in _solved(bound))
        elif given is not None:
            is_plain = all(getattr(given, key.name) == key.metadata["default"] for key in keys(of))
            yield f"  {name if is_plain else Variant({name: of}).render(given)}"
            yield from _automatic(bound)
    for one in _flat(record, bound) if shape.actions is not None else ():
        yield f"  {_rule(one, shape)}"
    yield "}"


def _settings(record: Any) -> Iterator[str]:
    for spec_field in present_keys(record):
        yield f"{spec_field.name} = {type_of(spec_field).render(getattr(record, spec_field.name))}"


def _solved(bound: BoundPlan) -> Iterator[_Flat]:
    """The rules that planc found: as a plan writes them, they stay when planc finds others."""
    for one in bound.auto.rules:
        yield _Flat((one.pattern,), StyleAction(BY_NAME[one.style], one.boundary), override=False)


def _automatic(bound: BoundPlan) -> Iterator[str]:
    by_style: dict[str, list[str]] = {}
    for fqn, assignment in bound.styles.items():
        if assignment.rule is None:
            by_style.setdefault(assignment.style.name, []).append(fqn)
    for style, fqns in by_style.items():
        for names in summarise(fqns):
            yield f'  # auto: "{names}" -> {style}'


@record
class _Flat:
    """A rule in the form for one file."""

    patterns: tuple[str, ...]
    action: Any
    override: bool


def _flat(record: Any, bound: BoundPlan) -> Iterator[_Flat]:
    """The rules of a block. If files override each other's rules, each rule has the names that it decides."""
    rules: tuple[PatternRule[Any], ...] = record.rules
    if len({one.level for one in rules if one.override}) < 2:
        for one in rules:
            yield _Flat(tuple(pattern.text for pattern in one.patterns), one.action, one.override)
        return
    beside_auto = getattr(record, "auto", None) is not None
    for decision, names in decided(rules, bound.selections):
        patterns = tuple(_MIXED.sub(_spelt_out, text) for text in summarise(names))
        lists = (patterns,) if len(decision.patterns) > 1 else ((pattern,) for pattern in patterns)
        is_override = decision.override and beside_auto
        yield from (_Flat(one, decision.action, is_override) for one in lists)


def _spelt_out(brace: re.Match[str]) -> str:
    """`{0,2,3}` for `{0,2..3}`: a pattern can't combine a range with numbers."""
    parts = (part.partition("..") for part in brace.group(1).split(","))
    runs = (range(int(low), int(high or low) + 1) for low, _, high in parts)
    return f"{{{','.join(str(number) for run in runs for number in run)}}}"


def _rule(flat: _Flat, shape: Shape) -> str:
    return f"{'override ' if flat.override else ''}{rule(flat.patterns, _action(flat.action, shape))}"


def _action(action: Any, shape: Shape) -> str:
    if isinstance(action, StyleAction):
        return render_call(action.style.name, _style_call(action))
    assert shape.actions is not None, "only blocks with actions have rules"
    name = next(name for name, record in shape.actions.items() if record is type(action))
    return render_call(name, action)


def _style_call(action: StyleAction) -> Any:
    """The style's call with its resolved placements, for the reader."""
    settled = use(action.style, action.boundary)
    options = {
        "input": settled.input,
        "output": settled.output,
        "desired": settled.computes_on,
        "sequence_dim": settled.sequence_dim,
        "parts": _parts(action),
        "widths": action.boundary.widths,
    }
    return STYLE_ACTIONS[action.style.name](**{name: options[name] for name in action.style.options})


def _parts(action: StyleAction) -> int | None:
    """The number of equal projections in a layer; None where their widths are listed."""
    weight = action.style.placements(Kind.LINEAR, action.boundary).get("weight")
    return weight.split_factor if isinstance(weight, StridedShard) else None


def _expect(bound: BoundPlan) -> Iterator[str]:
    yield "expect {"
    for expectation in bound.plan.expectations:
        yield f"  {_expectation(expectation)}"
    for waiver in bound.plan.waived:
        yield from (f"  # waived: {_expectation(expectation)}" for expectation in waiver.expectations)
    yield "}"


def _expectation(expectation: Expectation) -> str:
    return f"{expectation.subject} {expectation.operator} {_expected(expectation)}"


def _expected(one: Expectation) -> str:
    """The value, with the unit that a size must have."""
    if one.subject not in SIZES:
        return _number(one.value)
    is_whole = one.value == int(one.value)
    return Quantity(BYTES).render(int(one.value)) if is_whole else f"{number(one.value)} B"


def _number(value: int | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return number(value) if isinstance(value, float) else f"{value:_}" if value >= 10_000 else str(value)
