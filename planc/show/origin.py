"""The origin of every value in a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planc.plan.blocks import BLOCKS, Shape
from planc.plan.keys import type_of
from planc.plan.nested import nested_field, present_keys
from planc.plan.scope import OriginStep
from planc.plan.spec import Plan
from planc.tables import render_table


def values(plan: Plan) -> dict[str, str]:
    """Each setting's value in plan syntax, by dotted path, in the order of the blocks."""
    records = ((kind, shape, getattr(plan, kind)) for kind, shape in BLOCKS.items())
    return {
        path: value
        for kind, shape, record in records
        if record is not None
        for path, value in _values(kind, shape, record)
    }


def _values(path: str, shape: Shape, record: Any) -> Iterator[tuple[str, str]]:
    for spec_field in present_keys(record):
        yield f"{path}.{spec_field.name}", type_of(spec_field).render(getattr(record, spec_field.name))
    for name in shape.nested:
        for label, inner in getattr(record, nested_field(shape.record, name)).items():
            found = shape.labelled(name, label)
            assert found is not None, "a resolved plan has known labels only"
            yield from _values(f"{path}.{name}.{label}", found, inner)


def chain(steps: tuple[OriginStep, ...]) -> tuple[str, ...]:
    """An origin as text, the winner first: `--set mesh.tp=4`, `llama.plan:12`, `param tp (llama.plan:3)`."""
    return tuple(_step(step) for step in steps)


def _step(step: OriginStep) -> str:
    place = f"{step.span.file}:{step.span.line}" if step.span else ""
    match step.kind:
        case "default":
            return "default"
        case "written":
            return place
        case "parameter":
            return f"param {step.text} ({place})"
        case "set" | "overrides" | "override":
            return step.text
        case "use":
            return f"{step.text} ({place})"
        case "environment":
            return f"environment {step.span.file if step.span else ''}: {step.text}"
        case kind:
            raise AssertionError(f"unhandled origin {kind}")


def origin_text(plan: Plan) -> str:
    """One line per setting: path, value, and the chain of its origin."""
    rows = [(path, value, " <- ".join(chain(plan.origins[path]))) for path, value in values(plan).items()]
    return render_table(rows, header=("setting", "value", "origin"))


def origin_data(plan: Plan) -> list[dict[str, Any]]:
    """Every setting with its value as written and its origin, the winner first."""
    return [
        {
            "path": path,
            "value": value,
            "origin": [
                {
                    "kind": step.kind,
                    "text": step.text,
                    "file": step.span.file if step.span else None,
                    "line": step.span.line if step.span else None,
                }
                for step in plan.origins[path]
            ],
        }
        for path, value in values(plan).items()
    ]
