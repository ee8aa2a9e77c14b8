"""The graph as text and as Mermaid, for `planc show --graph`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from planc.graph.graph import Graph, plan_hash
from planc.graph.op import Op
from planc.graph.ops import Accumulate, ComputeReference, Evaluate, MatrixGroup, ParameterGroup
from planc.pipelining.order_text import order_text
from planc.pipelining.orders import Action
from planc.styles.style import StyleUse

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def summarise(names: Sequence[str]) -> tuple[str, ...]:
    """Names with runs of layer numbers folded: `model.layers.{0..31}.mlp.up_proj`. Keeps first-seen order."""
    return tuple(fold(names))


def fold(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Names grouped by their `summarise` form."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(_NUMBER.sub("{}", name, count=1), []).append(name)
    return {_folded(family, members): tuple(members) for family, members in families.items()}


def _folded(family: str, members: Sequence[str]) -> str:
    if len(members) == 1 or members[0] == family:
        return members[0]
    return family.replace("{}", _runs(int(_NUMBER.findall(name)[0]) for name in members), 1)


def _runs(numbers: Iterable[int]) -> str:
    """`{0..3,7}` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return "{" + ",".join(str(low) if low == high else f"{low}..{high}" for low, high in runs) + "}"


def to_text(graph: Graph) -> str:
    """One op per line, with its place in the plan; then the experimental PyTorch features that they use."""
    lines = [f'graph "{graph.name}" world={graph.world_size} hash={plan_hash(graph)[:12]}']
    for title, ops in (("setup", graph.setup), ("step", graph.step), ("save", graph.save)):
        lines.append(f"{title}:")
        lines.extend(_lines(ops, "  "))
    if found := {op.name: op.unstable for op in graph.ops() if op.unstable}:
        lines.append("unstable:")
        lines.extend(f"  {name:<24} {what}" for name, what in found.items())
    return "\n".join(lines) + "\n"


def _lines(ops: Sequence[Op], indent: str) -> Iterator[str]:
    for op in ops:
        arguments = " ".join(_arguments(op))
        text = f"{indent}{op.name:<24} {arguments}".rstrip()
        place = f"{op.span.file}:{op.span.line}" if op.span else ""
        yield f"{text:<110} {place}".rstrip()
        if isinstance(op, Accumulate | Evaluate | ComputeReference):
            yield from _lines(op.body, indent + "  ")


def _arguments(op: Op) -> Iterator[str]:
    for op_field in fields(op):
        if op_field.name in ("op", "span", "body"):
            continue
        value = getattr(op, op_field.name)
        if value not in (None, (), ""):
            yield f"{op_field.name}={_value(op_field.name, value)}"


def _value(name: str, value: Any) -> str:
    match value:
        case StyleUse():
            return f"{value.style}({value.input} -> {value.computes_on} -> {value.output})"
        case bool():
            return str(value).lower()
        case str():
            return value[:12] if name.endswith("digest") else value
        case (ParameterGroup(), *_):
            return ",".join(map(_parameter_group, value))
        case ((Action(), *_), *_):
            return ",".join(map(order_text, value))
        case tuple() if name == "groups" and value and isinstance(value[0][0], str):
            return _groups(value)
        case tuple() if value and all(isinstance(item, str) for item in value):
            return ",".join(summarise(value))
        case tuple():
            return "(" + ", ".join(_pair(item) for item in value) + ")"
        case _:
            return str(value)


def _groups(groups: Sequence[Sequence[str]]) -> str:
    if all(len(group) == 1 for group in groups):
        return ",".join(name or "<root>" for name in summarise([group[0] for group in groups]))
    return ",".join("[" + ",".join(summarise(group)) + "]" for group in groups)


def _parameter_group(group: ParameterGroup) -> str:
    names = ",".join(summarise(group.parameters))
    options = f"weight_decay={group.weight_decay} lr={group.lr}"
    if isinstance(group, MatrixGroup):
        fused = "".join(f" {fqn}={'+'.join(map(str, widths))}" for fqn, widths in _shortly(group.widths))
        options = f"muon {options}{f' parts:{fused}' if fused else ''}"
    return f"[{options}: {names}]"


def _shortly(fused: Sequence[tuple[str, tuple[int, ...]]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The widths of fused matrices, with one name for those of all layers."""
    by_widths: dict[tuple[int, ...], list[str]] = {}
    for fqn, widths in fused:
        by_widths.setdefault(widths, []).append(fqn)
    for widths, fqns in by_widths.items():
        yield ",".join(summarise(fqns)), widths


def _pair(item: Any) -> str:
    if isinstance(item, tuple) and len(item) == 2:
        key, value = item
        if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
            return f"{key}: {','.join(summarise(value))}"
        return f"{key}={value}"
    return str(item)


def to_mermaid(graph: Graph) -> str:
    """A flow chart: setup, the step loop, and saves next to it."""
    lines = ["flowchart TD"]
    for title, ops in (("setup", graph.setup), ("step", graph.step), ("save", graph.save)):
        lines.append(f"  subgraph {title}")
        lines.extend(f"    {title}{index}[{op.name}]" for index, op in enumerate(ops))
        lines.extend(f"    {title}{index} --> {title}{index + 1}" for index in range(len(ops) - 1))
        for index, op in enumerate(ops):
            if isinstance(op, Accumulate):
                body = " --> ".join(f"micro{number}[{inner.name}]" for number, inner in enumerate(op.body))
                lines.append(f"    {title}{index} -- x{op.times} --> {body} --> {title}{index}")
        lines.append("  end")
    lines.append(f"  setup{len(graph.setup) - 1} --> step0")
    lines.append(f"  step{len(graph.step) - 1} -- next step --> step0")
    if graph.save:
        lines.append(f"  step{len(graph.step) - 1} --> save0")
    return "\n".join(lines) + "\n"
