"""Types composed of other types: lists, calls, placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, replace
from typing import Any, Protocol, runtime_checkable

from planc import vocab
from planc.diagnostics import Applicability, Fix
from planc.plan import codes
from planc.plan.foreign_words import argument_meant
from planc.plan.keys import example, key, keyed, keys, type_of
from planc.plan.scalars import Int, ValueType, listed, wrong_type
from planc.plan.scope import Scope
from planc.plan.spellings import is_none_word, style_word
from planc.record import record
from planc.syntax import ast


def convert_field(spec_field: Field[Any], value: ast.Value, scope: Scope) -> Any:
    """The value of a key or an argument, as its type converts it; findings without help get an example."""
    num_before = len(scope.diagnostics)
    converted = type_of(spec_field).convert(value, scope)
    shown, described = example(spec_field), type_of(spec_field).describe(mark="`")
    help = f"write a value such as `{spec_field.name} = {shown}`" if shown else f"write {described}"
    scope.diagnostics[num_before:] = [
        replace(one, help=help) if one.help is None and one.code in _OF_A_VALUE else one
        for one in scope.diagnostics[num_before:]
    ]
    return converted


_OF_A_VALUE = (codes.WRONG_TYPE, codes.OUT_OF_RANGE)


def calls_of(wanted: ValueType) -> Mapping[str, type[Any]]:
    """The calls that a type takes, by name, with their arguments; empty for types that take none."""
    return wanted.calls if isinstance(wanted, TakesCalls) else {}


@runtime_checkable
class TakesCalls(Protocol):
    """A type of which some values are written as calls."""

    @property
    def calls(self) -> Mapping[str, type[Any]]:
        """The arguments of each call, by its name."""


@record
class Optional:
    """A value or the word `none`."""

    inner: ValueType

    @property
    def calls(self) -> Mapping[str, type[Any]]:
        return calls_of(self.inner)

    def convert(self, value: ast.Value, scope: Scope) -> Any:
        if isinstance(value, ast.Ref) and value.name.text == "none":
            return NONE
        if _is_other_none(value, scope):
            fix = Fix(value.span, "none", Applicability.SAFE)
            wrong_type(self, value, scope, (), help="write `none`", fix=fix)
            return None
        num_before = len(scope.diagnostics)
        converted = self.inner.convert(value, scope)
        found = scope.diagnostics[num_before:]
        # Zero is how other tools write that there is none.
        if [one.code for one in found] == [codes.OUT_OF_RANGE] and _is_zero(value, scope):
            scope.diagnostics[num_before:] = [replace(found[0], help="write `none` to turn it off")]
        return converted

    def describe(self, *, mark: str = "") -> str:
        return f"{self.inner.describe(mark=mark)}, or {mark}none{mark}"

    def render(self, value: Any) -> str:
        return "none" if value is None else self.inner.render(value)


@record
class OrAuto:
    """A value or the word `auto`."""

    inner: ValueType

    @property
    def calls(self) -> Mapping[str, type[Any]]:
        return calls_of(self.inner)

    def convert(self, value: ast.Value, scope: Scope) -> Any:
        if isinstance(value, ast.Ref) and value.name.text == "auto" and value.param_name not in scope.params:
            return "auto"
        return self.inner.convert(value, scope)

    def describe(self, *, mark: str = "") -> str:
        return f"{self.inner.describe(mark=mark)}, or {mark}auto{mark}"

    def render(self, value: Any) -> str:
        return "auto" if value == "auto" else self.inner.render(value)


def _is_other_none(value: ast.Value, scope: Scope) -> bool:
    """Whether a word is another language's `none`, and no parameter's name."""
    if not isinstance(value, ast.Ref) or value.param_name in scope.params:
        return False
    return is_none_word(value.name.text)


def _is_zero(value: ast.Value, scope: Scope) -> bool:
    written, _ = scope.lookup(value)
    return isinstance(written, ast.Number) and written.value == 0


class _None:
    """The value that `Optional` returns for `none`, because None means that a finding was reported."""


NONE = _None()


@record
class List:
    """A list. With `name_of`, no two of its items have one name."""

    of: ValueType
    length: int | None = None
    name_of: Callable[[Any], str] | None = None

    def convert(self, value: ast.Value, scope: Scope) -> tuple[Any, ...] | None:
        value, labels = scope.lookup(value)
        if not isinstance(value, ast.Items) or self.length not in (None, len(value.values)):
            wrong_type(self, value, scope, labels)
            return None
        converted = tuple(self.of.convert(item, scope) for item in value.values)
        return None if None in converted or self._has_twice(converted, value, scope) else converted

    def _has_twice(self, items: tuple[Any, ...], written: ast.Items, scope: Scope) -> bool:
        names = [] if self.name_of is None else list(map(self.name_of, items))
        for place, name in enumerate(names):
            if name in names[:place]:
                text, help = f"`{name}` is in the list twice", f"remove one `{name}`"
                scope.report(codes.DUPLICATE, written.values[place].span, text, help=help)
                return True
        return False

    def describe(self, *, mark: str = "") -> str:
        number = f" of {self.length}" if self.length else ""
        return f"a list{number}, each {self.of.describe(mark=mark)}"

    def render(self, value: tuple[Any, ...]) -> str:
        return f"[{', '.join(self.of.render(item) for item in value)}]"


@record
class Variant:
    """One of several records, written as a call: `cosine(warmup = 10 steps)`, or bare when nothing is given.

    As with a choice, a parameter can't replace the name. `noun` names what the records are, for messages.
    `from_text` gives the call to write for a string, and whether the string can't mean anything else.
    """

    cases: Mapping[str, type[Any]]
    noun: str = "value"
    from_text: Callable[[str], tuple[str, bool]] | None = None

    @property
    def calls(self) -> Mapping[str, type[Any]]:
        return self.cases

    def convert(self, value: ast.Value, scope: Scope) -> Any:
        match value:
            case ast.Ref(name):
                arguments: tuple[ast.Argument, ...] = ()
            case ast.Call(name, arguments, _):
                pass
            case _:
                self._report(value, scope)
                return None
        if name.text not in self.cases:
            text = f"`{name.text}` is not {_article(self.noun)} {self.noun}"
            meant = style_word(name.text, known=self.cases)
            help = f"write `{meant}`" if meant else None
            scope.unknown(codes.UNKNOWN_ACTION, name, tuple(self.cases), text=text, help=help)
            return None
        return convert_arguments(self.cases[name.text], name, arguments, scope)

    def _report(self, value: ast.Value, scope: Scope) -> None:
        """Reports what is neither a name nor a call: a name in quotes, or a string that a call takes."""
        if not isinstance(value, ast.Text):
            wrong_type(self, value, scope, ())
        elif value.value in self.cases:
            fix = Fix(value.span, value.value, Applicability.SAFE)
            wrong_type(self, value, scope, (), help=f"write `{value.value}` without quotes", fix=fix)
        elif self.from_text is not None:
            call, is_safe = self.from_text(value.value)
            sure = Fix(value.span, call, Applicability.SAFE) if is_safe else None
            wrong_type(self, value, scope, (), help=f"write `{self.noun} = {call}`", fix=sure)
        else:
            wrong_type(self, value, scope, ())

    def describe(self, *, mark: str = "") -> str:
        return listed(f"{mark}{name}{mark}" for name in self.cases)

    def render(self, value: Any) -> str:
        name = next(name for name, case in self.cases.items() if case is type(value))
        return render_call(name, value)


@record
class Rest:
    """All positional arguments of a call: `text("a/*.txt", "b/*.txt")`."""

    of: ValueType

    def convert(self, value: ast.Value, scope: Scope) -> tuple[Any, ...] | None:
        assert isinstance(value, ast.Items), "only a call's positional arguments reach this type"
        if not value.values:
            scope.report(
                codes.WRONG_ARGUMENTS, value.span, f"expected at least one argument: {self.of.describe()}"
            )
            return None
        converted = tuple(self.of.convert(item, scope) for item in value.values)
        return None if None in converted else converted

    def describe(self, *, mark: str = "") -> str:
        return f"{self.of.describe(mark=mark)}, or several"

    def render(self, value: tuple[Any, ...]) -> str:
        return ", ".join(self.of.render(item) for item in value)


@record
class Placement:
    """`Shard(1)` or `Replicate()`; `Partial()` is an intermediate state that a plan can't request."""

    def convert(self, value: ast.Value, scope: Scope) -> vocab.Placement | None:
        found: vocab.Placement | None = Variant(PLACEMENT_CASES, "placement").convert(value, scope)
        return vocab.Shard(found.tensor_dim) if isinstance(found, ShardWritten) else found

    def describe(self, *, mark: str = "") -> str:
        return f"{mark}Shard(tensor_dim){mark} or {mark}Replicate(){mark}"

    def render(self, value: vocab.Placement) -> str:
        return str(value)


def convert_arguments(
    record: type[Any], name: ast.Name, arguments: tuple[ast.Argument, ...], scope: Scope
) -> Any:
    """An instance of `record` from a call's arguments, or None after reporting every error."""
    known = {spec_field.name: spec_field for spec_field in keys(record)}
    given, is_sound = _assign(known, name, arguments, scope)
    converted: dict[str, Any] = {}
    for spec_field in known.values():
        if spec_field.name in given:
            value = convert_field(spec_field, given[spec_field.name], scope)
            is_sound = is_sound and value is not None
            converted[spec_field.name] = None if value is NONE else value
        elif spec_field.metadata["default"] is not MISSING:
            converted[spec_field.name] = spec_field.metadata["default"]
        elif is_sound:
            # After another finding this argument may be there, under a name with a slip in it.
            help = f"add {type_of(spec_field).describe()}"
            if not spec_field.metadata["positional"]:
                help = f"add `{spec_field.name} = {example(spec_field) or '...'}`"
            scope.report(
                codes.WRONG_ARGUMENTS, name.span, f"`{name.text}` needs `{spec_field.name}`", help=help
            )
            is_sound = False
    return record(**converted) if is_sound else None


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def _assign(
    known: Mapping[str, Field[Any]], name: ast.Name, arguments: tuple[ast.Argument, ...], scope: Scope
) -> tuple[dict[str, ast.Value], bool]:
    """Arguments by field name, positional ones under the positional field; and whether all were sound."""
    positional = next((f for f in known.values() if f.metadata["positional"]), None)
    loose = [argument for argument in arguments if argument.name is None]
    named = [(argument.name, argument) for argument in arguments if argument.name is not None]
    given_names = {written.text for written, _ in named}
    takes_rest = positional is not None and isinstance(type_of(positional), Rest)
    given: dict[str, ast.Value] = {}
    if positional is not None and takes_rest:
        if loose or all(written.text != positional.name for written, _ in named):
            given[positional.name] = ast.Items(tuple(argument.value for argument in loose), name.span)
        loose = []
    elif positional is not None and loose:
        given[positional.name] = loose.pop(0).value
    is_sound = not loose
    for argument in loose:
        scope.report(codes.WRONG_ARGUMENTS, argument.span, _too_many(name, known, positional))
    for written, argument in named:
        if written.text not in known:
            none = f"`{name.text}` does not take arguments"
            text = f"`{name.text}` has no argument `{written.text}`" if known else none
            meant = argument_meant(written.text)
            if meant is not None and meant in given_names:
                scope.report(codes.WRONG_ARGUMENTS, written.span, text, help=f"remove it: `{meant}` is given")
            elif meant is not None and meant in known:
                help = f"write `{meant} = ...`"
                fix = Fix(written.span, meant, Applicability.SAFE)
                scope.report(codes.WRONG_ARGUMENTS, written.span, text, help=help, fix=fix)
            else:
                scope.unknown(codes.WRONG_ARGUMENTS, written, tuple(known), text=text)
        elif takes_rest and positional is not None and written.text == positional.name:
            help = f"write `{name.text}(...)` without `{written.text} =`"
            scope.report(
                codes.WRONG_ARGUMENTS, argument.span, f"`{written.text}` can't be passed by name", help=help
            )
        elif written.text in given:
            help = f"remove one `{written.text} = ...`"
            scope.report(codes.DUPLICATE, argument.span, f"`{written.text}` is given twice", help=help)
        else:
            given[written.text] = argument.value
            continue
        is_sound = False
    return given, is_sound


def _too_many(name: ast.Name, known: Mapping[str, Field[Any]], positional: Field[Any] | None) -> str:
    if not known:
        return f"`{name.text}` does not take arguments"
    if positional is not None:
        return f"`{name.text}` takes only one positional argument"
    return f"`{name.text}` takes its arguments by name: {listed(f'`{one}`' for one in known)}"


def render_call(name: str, record: Any) -> str:
    """`cosine(warmup = 10 steps, min_factor = 0.1)`, every argument written out."""
    texts = []
    for spec_field in keys(type(record)):
        text = type_of(spec_field).render(getattr(record, spec_field.name))
        texts.append(text if spec_field.metadata["positional"] else f"{spec_field.name} = {text}")
    return f"{name}({', '.join(texts)})"


@keyed
class ShardWritten:
    tensor_dim: int = key(Int(-8, 7), doc="the tensor dimension to shard", positional=True)


PLACEMENT_CASES: Mapping[str, type[Any]] = {"Shard": ShardWritten, "Replicate": vocab.Replicate}
