"""What a value can refer to while it is being resolved, and where findings are gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planc.diagnostics import Code, Diagnostic, Fix, Label
from planc.diagnostics.suggest import closest
from planc.plan import codes
from planc.source import Span
from planc.syntax import ast


@dataclass(frozen=True, slots=True)
class ParamValue:
    """A parameter with its value; `via` says what set it, outermost last (`--set tp_size=8`)."""

    param: ast.Param
    value: ast.Value
    via: tuple[OriginStep, ...]


@dataclass(frozen=True, slots=True)
class OriginStep:
    """One step in how a value came to be: `kind` is written, parameter, set, environment or default."""

    kind: str
    span: Span | None
    text: str


@dataclass(slots=True)
class Scope:
    """Parameters by name, and the findings so far. Lives for one resolve."""

    params: Mapping[str, ParamValue]
    diagnostics: list[Diagnostic] = field(default_factory=list)
    used_params: set[str] = field(default_factory=set)

    def lookup(self, value: ast.Value) -> tuple[ast.Value, tuple[Label, ...]]:
        """The value behind a parameter's name, with a label on the place that named it."""
        labels: tuple[Label, ...] = ()
        while isinstance(value, ast.Ref) and value.name.text in self.params:
            name = value.name.text
            labels = (*labels, Label(value.span, f"`{name}` is used here"))
            if name in {label.text.split("`")[1] for label in labels[:-1]}:
                return value, labels  # a parameter that names itself is reported by whoever wanted a value
            self.used_params.add(name)
            value = self.params[name].value
        return value, labels

    def report(
        self,
        code: Code,
        span: Span,
        text: str,
        *,
        secondary: tuple[Label, ...] = (),
        help: str | None = None,
        fix: Fix | None = None,
    ) -> None:
        self.diagnostics.append(code.at(span, text, secondary=secondary, help=help, fix=fix))

    def unknown(self, code: Code, name: ast.Name, candidates: tuple[str, ...], *, text: str) -> None:
        """Reports a name that is none of `candidates`, offering the nearest."""
        near = closest(name.text, candidates)
        help = f"did you mean `{near}`?" if near else f"one of: {', '.join(candidates)}"
        self.report(code, name.span, text, help=help, fix=Fix(name.span, near, is_safe=True) if near else None)

    def misplaced(self, statement: ast.Statement, where: str) -> None:
        self.report(codes.MISPLACED, statement.span, f"not inside {where}")
