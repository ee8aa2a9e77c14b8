"""The parameters that a value can refer to during resolving, and the findings so far."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planc.diagnostics import Applicability, Code, Diagnostic, Fix, Label
from planc.diagnostics.suggest import closest, is_slip
from planc.extend.declarations import Declaration
from planc.plan.arithmetic import evaluate
from planc.record import record
from planc.source import Span
from planc.syntax import ast

_MAX_LISTED = 20


@record
class ParamValue:
    """A parameter with its value; `via` lists what set it, outermost last (`--set tp_size=8`)."""

    param: ast.Param
    value: ast.Value
    via: tuple[OriginStep, ...]


@record
class OriginStep:
    """One step in how a value came to be.

    `kind` is written, overrides (what another file wrote), use (of a fragment), parameter, override (of a
    parameter, in a file), set, environment or default.
    """

    kind: str
    span: Span | None
    text: str


@record
class Registered:
    """A registration by a file of a plan's own code: its declaration, and the file it is in."""

    declaration: Declaration
    file: str
    digest: str
    statement: ast.Extension


Registry = Mapping[str, Mapping[str, Registered]]
"""The entries that a plan's own code registers, by kind and name."""


@record
class Links:
    """Facts that resolving a plan of several files needs.

    `origins` trace settings that another file's override, or a fragment, brought in. `levels` give the
    height of each rule's layer, with fragments below the block that uses them. `idle` are parameters that
    only unused statements read: a setting that was overridden, a fragment that is not used.
    `folders` has the directory of each included file, relative to the top plan's, by file name.
    `incomplete` are blocks that use a fragment which is not found: what they lack may be in it.
    """

    origins: Mapping[Span, tuple[OriginStep, ...]] = field(default_factory=dict)
    levels: Mapping[Span, int] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    folders: Mapping[str, str] = field(default_factory=dict)
    incomplete: frozenset[str] = frozenset()
    registry: Registry = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """Parameters by name, and the findings so far. Lives for one resolve.

    `broken` are the names of parameters whose own definition is at fault: what uses them is not judged.
    `statements` are the plan's, for helps that depend on other blocks; empty where overrides may change them.
    `is_whole` is false if some of them did not parse.
    """

    params: Mapping[str, ParamValue]
    broken: frozenset[str] = frozenset()
    diagnostics: list[Diagnostic] = field(default_factory=list)
    folders: Mapping[str, str] = field(default_factory=dict)
    statements: Sequence[ast.Statement] = ()
    is_whole: bool = True
    registry: Registry = field(default_factory=dict)
    used_files: set[str] = field(default_factory=set)
    """The files of the plan's own code of which something is used."""
    _unjudged: set[Span] = field(default_factory=set)

    def lookup(self, value: ast.Value) -> tuple[ast.Value, tuple[Label, ...]]:
        """The value behind a parameter's name, or of arithmetic, with labels on the places that named one."""
        if isinstance(value, ast.Arithmetic):
            return self._computed(value)
        if not isinstance(value, ast.Ref):
            return value, ()
        name = value.param_name
        if name in self.broken:
            self._unjudged.add(value.span)
        if name not in self.params:
            return value, ()
        return self.params[name].value, (Label(value.span, f"`{name}` is used here"),)

    def _computed(self, value: ast.Arithmetic) -> tuple[ast.Value, tuple[Label, ...]]:
        """The number that arithmetic gives, or the arithmetic itself after a report."""
        labels = tuple(label for ref in references(value) for label in self.lookup(ref)[1])
        if any(ref.param_name in self.broken for ref in references(value)):
            self._unjudged.add(value.span)
            return value, labels
        result = evaluate(value, lambda ref: self.lookup(ref)[0])
        if isinstance(result, ast.Number):
            return result, labels
        self.report(result.code, result.span, result.text, secondary=labels, help=result.help)
        # Once is enough, however often it is looked up.
        self._unjudged.update((value.span, result.span))
        return value, labels

    def visible(self, ref: ast.Ref) -> tuple[str, ...]:
        """The parameters that could replace a word, as they are written there."""
        prefix = f"{ref.alias}." if ref.alias else ""
        names = (name.removeprefix(prefix) for name in self.params if name.startswith(prefix))
        return tuple(name for name in names if "." not in name)

    def path(self, text: ast.Text) -> str:
        """A path as the top plan would write it: in an included file it starts at that file's folder."""
        folder = self.folders.get(text.span.file, "")
        if not folder or posixpath.isabs(text.value):
            return text.value
        return posixpath.normpath(posixpath.join(folder, text.value))

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
        if span not in self._unjudged:
            self.diagnostics.append(code.at(span, text, secondary=secondary, help=help, fix=fix))

    def unknown(
        self,
        code: Code,
        name: ast.Name,
        candidates: Sequence[str],
        *,
        text: str,
        help: str | None = None,
        within: str = "",
    ) -> None:
        """Reports a name that is none of `candidates`; offers the nearest, else `help`, else all of them.

        `within` is what all of them begin with, unsaid, and the name too.
        """
        written = name.text.removeprefix(within)
        # Names with different numbers differ on purpose: `a100_40gb` is not a slip of `h100_80gb`.
        alike = tuple(candidate for candidate in candidates if _digits(candidate) == _digits(written))
        near = closest(written, alike)
        if near is not None:
            # `adam` is not a slip of `adamw`: a whole word inside another may be intended.
            is_part = near.startswith(written) or written.startswith(near)
            is_safe = not is_part and is_slip(written, near)
            fix = Fix(name.span, within + near, Applicability.of(is_safe=is_safe))
            self.report(code, name.span, text, help=f"did you mean `{within}{near}`?", fix=fix)
            return
        if help is None and 0 < len(candidates) <= _MAX_LISTED:
            *others, last = (f"`{candidate}`" for candidate in candidates)
            help = f"use {', '.join(others)} or {last}" if others else f"use {last}"
        self.report(code, name.span, text, help=help)


def references(value: ast.Value) -> Iterator[ast.Ref]:
    """Every bare word in a value, in the order of the text."""
    match value:
        case ast.Ref():
            yield value
        case ast.Call(_, arguments, _):
            for argument in arguments:
                yield from references(argument.value)
        case ast.Items(values, _):
            for item in values:
                yield from references(item)
        case ast.Arithmetic(operands):
            for operand in operands:
                yield from references(operand)
        case _:
            return


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))
