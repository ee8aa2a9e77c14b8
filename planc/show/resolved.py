"""A plan with nothing left unsaid: every default written out, every parameter replaced by its value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planc.graph.text import summarise
from planc.plan.bind import BoundPlan
from planc.plan.resolve import BLOCKS, Shape
from planc.plan.spec import STYLE_ACTIONS, PatternRule, StyleAction
from planc.plan.types import keys, render_call, type_of
from planc.styles.model import use


def resolved_text(bound: BoundPlan) -> str:
    """A valid plan that means the same (equal `plan_hash`), its relative paths included.

    What `auto` became stands below it as comments, since a rule would have to say `override`.
    """
    blocks = [
        "\n".join(_block(kind, shape, getattr(bound.plan, kind), bound))
        for kind, shape in BLOCKS.items()
        if getattr(bound.plan, kind) is not None
    ]
    if bound.plan.expectations:
        blocks.append("\n".join(_expect(bound)))
    return "\n\n".join(blocks) + "\n"


def _block(kind: str, shape: Shape, record: Any, bound: BoundPlan) -> Iterator[str]:
    on = f" on {', '.join(record.on)}" if shape.on else ""
    yield f"{kind}{on} {{"
    for spec_field in keys(type(record)):
        yield f"  {spec_field.name} = {type_of(spec_field).render(getattr(record, spec_field.name))}"
    for directive in shape.directives:
        if getattr(record, directive) is not None:
            yield f"  {directive}"
            yield from _automatic(bound)
    for rule in record.rules if shape.actions is not None else ():
        yield f"  {_rule(rule, shape)}"
    yield "}"


def _automatic(bound: BoundPlan) -> Iterator[str]:
    by_style: dict[str, list[str]] = {}
    for fqn, assignment in bound.styles.items():
        if assignment.rule is None:
            by_style.setdefault(assignment.style.name, []).append(fqn)
    for style, fqns in by_style.items():
        for names in summarise(fqns):
            yield f'  # auto: "{names}" -> {style}'


def _rule(rule: PatternRule[Any], shape: Shape) -> str:
    texts = [f'"{pattern.text}"' for pattern in rule.patterns]
    patterns = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return f"{'override ' if rule.override else ''}{patterns} -> {_action(rule.action, shape)}"


def _action(action: Any, shape: Shape) -> str:
    if isinstance(action, StyleAction):
        return render_call(action.style.name, _style_call(action))
    assert shape.actions is not None, "only blocks with actions have rules"
    name = next(name for name, record in shape.actions.items() if record is type(action))
    return render_call(name, action)


def _style_call(action: StyleAction) -> Any:
    """The style's call with the placements that it settles on, so that a reader sees them."""
    settled = use(action.style, action.boundary)
    options = {
        "input": settled.input,
        "output": settled.output,
        "desired": settled.computes_on,
        "sequence_dim": settled.sequence_dim,
    }
    return STYLE_ACTIONS[action.style.name](**{name: options[name] for name in action.style.options})


def _expect(bound: BoundPlan) -> Iterator[str]:
    yield "expect {"
    for expectation in bound.plan.expectations:
        value = expectation.value
        number = f"{value:_}" if isinstance(value, int) and value >= 10_000 else repr(value)
        yield f"  {expectation.subject} {expectation.operator} {number}"
    yield "}"
