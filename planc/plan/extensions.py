"""Values that a plan's own code gives: `loss = focal(gamma = 2.0)`, where a file registers `focal`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planc.diagnostics import Label, has_errors
from planc.extend.declarations import Declaration, Parameter
from planc.extend.decorators import MODEL, Kind
from planc.extend.reference import Argument, Extension
from planc.plan import codes
from planc.plan.scalars import Bool, Float, Int, Text, ValueType, wrong_type
from planc.plan.scope import Registered, Scope
from planc.plan.types import Variant
from planc.record import record
from planc.syntax import ast


@record
class _Anything:
    """A number, a string, true, false, or a list of these."""

    def convert(self, value: ast.Value, scope: Scope) -> Argument | None:
        value, labels = scope.lookup(value)
        match value:
            case ast.Items(values):
                items = tuple(self.convert(item, scope) for item in values)
                return None if None in items or any(isinstance(item, tuple) for item in items) else items  # type: ignore[return-value]
            case ast.Number(int()):
                return Int().convert(value, scope)
            case ast.Number():
                return Float().convert(value, scope)
            case ast.Text() | ast.Bool():
                return value.value
            case _:
                wrong_type(self, value, scope, labels)
                return None

    def describe(self, *, mark: str = "") -> str:
        return "a number, a string, a bool or a list"

    def render(self, value: Argument) -> str:
        match value:
            case bool():
                return Bool().render(value)
            case int():
                return Int().render(value)
            case float():
                return Float().render(value)
            case str():
                return Text().render(value)
            case _:
                return f"[{', '.join(map(self.render, value))}]"


_ANYTHING = _Anything()
_TYPES: Mapping[str, ValueType] = {"float": Float(), "int": Int(), "bool": Bool(), "str": Text()}
"""The annotations that a value is held to; of others planc knows nothing."""


@record
class OrExtension:
    """One of planc's own values, or what the plan's own code registers as a kind."""

    kind: Kind
    inner: Variant
    make: Callable[[Extension, Declaration], Any] = lambda extension, declaration: extension
    """The plan's value of it."""
    code_of: Callable[[Any], Extension] = lambda value: value
    """The extension of what `make` has made."""

    @property
    def calls(self) -> Mapping[str, type[Any]]:
        return self.inner.calls

    def convert(self, value: ast.Value, scope: Scope) -> Any:
        registered = scope.registry.get(self.kind.word, {})
        match value:
            case ast.Ref(name):
                arguments: tuple[ast.Argument, ...] = ()
            case ast.Call(name, arguments, _):
                pass
            case _:
                return self.inner.convert(value, scope)
        if name.text in registered:
            return self._own(name, arguments, registered[name.text], scope)
        if registered and name.text not in self.inner.cases:
            candidates = (*self.inner.cases, *registered)
            text = f"`{name.text}` is not {self.kind.noun}"
            scope.unknown(codes.UNKNOWN_ACTION, name, candidates, text=text)
            return None
        return self.inner.convert(value, scope)

    def describe(self, *, mark: str = "") -> str:
        return f"{self.inner.describe(mark=mark)}, or what an `extension` registers"

    def render(self, value: Any) -> str:
        if type(value) in self.inner.cases.values():
            return self.inner.render(value)
        code = self.code_of(value)
        arguments = ", ".join(f"{name} = {_ANYTHING.render(given)}" for name, given in code.arguments)
        return f"{code.entry}({arguments})" if arguments else code.entry

    def _own(
        self, name: ast.Name, arguments: tuple[ast.Argument, ...], registered: Registered, scope: Scope
    ) -> Any:
        scope.used_files.add(registered.file)
        if name.text in self.inner.cases:
            text = f"`{name.text}` is planc's own {self.kind.word}, and `{registered.file}` registers it too"
            first = Label(registered.statement.path.span, "registered by this file")
            help = "register it by another name"
            scope.report(codes.DUPLICATE, name.span, text, secondary=(first,), help=help)
            return None
        given = _given(name, arguments, registered.declaration, scope)
        if given is None:
            return None
        extension = Extension(
            kind=self.kind.word,
            entry=name.text,
            file=registered.file,
            digest=registered.digest,
            arguments=given,
        )
        return self.make(extension, registered.declaration)


@record
class OnlyExtension:
    """The type of an extension of a kind of which planc has none itself."""

    kind: Kind
    make: Callable[[Extension, Declaration], Any] = lambda extension, declaration: extension
    code_of: Callable[[Any], Extension] = lambda value: value

    def convert(self, value: ast.Value, scope: Scope) -> Any:
        word = self.kind.word
        if isinstance(value, ast.Ref | ast.Call) and not scope.registry.get(word):
            text = f"no `extension` of this plan registers a {word}"
            help = 'add `extension "my_code.py"`, with a function that it registers'
            scope.report(codes.UNKNOWN_ACTION, value.span, text, help=f"{help}  (planc explain extension)")
            return None
        return self._any.convert(value, scope)

    def describe(self, *, mark: str = "") -> str:
        return f"a {self.kind.word} that an `extension` registers"

    def render(self, value: Any) -> str:
        return self._any.render(value)

    @property
    def _any(self) -> OrExtension:
        return OrExtension(self.kind, Variant({}, self.kind.word), self.make, self.code_of)


MODEL_CLASS = OnlyExtension(MODEL)


def _given(
    name: ast.Name, arguments: tuple[ast.Argument, ...], declaration: Declaration, scope: Scope
) -> tuple[tuple[str, Argument], ...] | None:
    """The arguments in the order of the parameters: their order in a plan means nothing."""
    parameters = {parameter.name: parameter for parameter in declaration.parameters}
    values: dict[str, Any] = {}
    for argument in arguments:
        if argument.name is None:
            text, help = f"`{name.text}` takes its arguments by name", "write `name = value`"
            scope.report(codes.WRONG_ARGUMENTS, argument.span, text, help=help)
            return None
        written = argument.name
        if written.text not in parameters:
            text = f"`{name.text}` has no argument `{written.text}`"
            scope.unknown(codes.WRONG_ARGUMENTS, written, tuple(parameters), text=text)
            return None
        if written.text in values:
            text, help = f"`{written.text}` is given twice", f"remove one `{written.text} = ...`"
            scope.report(codes.DUPLICATE, argument.span, text, help=help)
            return None
        num_before, wanted = len(scope.diagnostics), _type(parameters[written.text])
        values[written.text] = wanted.convert(argument.value, scope)
        help = f"write `{written.text} = ...` with {wanted.describe(mark='`')}"
        scope.diagnostics[num_before:] = [
            replace(one, help=help) if one.help is None else one for one in scope.diagnostics[num_before:]
        ]
    if missing := [
        key for key, parameter in parameters.items() if parameter.is_required and key not in values
    ]:
        text, help = f"`{name.text}` needs `{missing[0]}`", f"add `{missing[0]} = ...`"
        scope.report(codes.WRONG_ARGUMENTS, name.span, text, help=help)
        return None
    if None in values.values():
        return None
    return tuple((key, values[key]) for key in parameters if key in values)


def _type(parameter: Parameter) -> ValueType:
    return _TYPES.get(parameter.annotation, _ANYTHING)


def report_unused_code(scope: Scope) -> None:
    """Report files of code of which a plan without other errors uses nothing."""
    if has_errors(scope.diagnostics):
        return
    files = {part.file: part for of_kind in scope.registry.values() for part in of_kind.values()}
    for file, registered in files.items():
        if file not in scope.used_files:
            names = [
                name for of_kind in scope.registry.values() for name, at in of_kind.items() if at.file == file
            ]
            text, help = f"the plan uses nothing of `{file}`", f"use `{names[0]}`, or remove this line"
            scope.report(codes.UNUSED_EXTENSION, registered.statement.span, text, help=help)
