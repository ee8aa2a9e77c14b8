"""Frozen, slotted dataclasses that cost little to define."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

_Class = TypeVar("_Class", bound=type[Any])


@overload
def record(cls: _Class) -> _Class: ...


@overload
def record(*, kw_only: bool) -> Callable[[_Class], _Class]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: Any = None, *, kw_only: bool = False) -> Any:
    """Make a class as `@dataclass(frozen=True, slots=True)` does, twenty times as fast.

    `dataclass` compiles six methods for every class and takes their annotations apart; doing so for the 230
    classes that a check meets took longer than the check. Here `__init__` alone is compiled, once for all
    classes of one shape, and what `replace`, `fields` and `asdict` read is made when they first ask.
    There is no `InitVar`.
    """
    return _record(cls, kw_only=kw_only) if cls else lambda cls: _record(cls, kw_only=kw_only)


def _record(cls: type[Any], *, kw_only: bool) -> Any:
    own = _own_fields(cls, kw_only=kw_only)
    every: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        every.update(vars(base).get(_RECORD_FIELDS, {}))
    inherited = set(every)
    every.update(own)
    taken = tuple(every.values())
    values = _getter([one.name for one in taken if one.compare])

    def __eq__(self: object, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:
        return hash(values(self))

    # A class gets slots when it is made, so it is made again.
    namespace = {name: value for name, value in vars(cls).items() if name not in own and name not in _OF_DICT}
    namespace |= {
        "__doc__": cls.__doc__ or cls.__name__,
        "__slots__": tuple(name for name in own if name not in inherited),
        "__match_args__": tuple(one.name for one in taken if one.init and not one.kw_only),
        "__eq__": __eq__,
        "__hash__": __hash__,
        "__repr__": _repr,
        "__setattr__": _refuse,
        "__delattr__": _refuse,
        "__setstate__": _restore,
        _RECORD_FIELDS: own,
        **{name: _OfDataclass(cls, name) for name in _OF_DATACLASS},
    }
    metaclass: Any = type(cls)
    made = metaclass(cls.__name__, cls.__bases__, namespace)
    made.__qualname__ = cls.__qualname__
    made.__init__ = _init(made, [one for one in taken if one.init])
    return made


_RECORD_FIELDS = "__record_fields__"
_OF_DICT = ("__dict__", "__weakref__")
_OF_DATACLASS = ("__dataclass_fields__", "__dataclass_params__")


def _own_fields(cls: type[Any], *, kw_only: bool) -> dict[str, Field[Any]]:
    """The fields that the class itself declares, by name."""
    own: dict[str, Field[Any]] = {}
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        if str(annotation).removeprefix("typing.").startswith("ClassVar"):
            continue
        value = vars(cls).get(name, MISSING)
        one: Field[Any] = value if isinstance(value, Field) else field(default=value)
        one.name = name
        one.kw_only = kw_only if one.kw_only is MISSING else one.kw_only
        own[name] = one
    return own


class _OfDataclass:
    """An attribute of a class for the functions of `dataclasses`, made by `dataclass` on first access."""

    def __init__(self, declared: type[Any], name: str) -> None:
        self._declared = declared
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        if self._name not in vars(self._declared):
            dataclass(init=False, repr=False, eq=False)(self._declared)
        return getattr(self._declared, self._name)


def _getter(names: list[str]) -> Callable[[object], object]:
    """Reads all of the attributes: a tuple of their values, or the value of a single one."""
    return attrgetter(*names) if names else lambda self: ()


def _init(cls: type[Any], taken: Sequence[Field[Any]]) -> Callable[..., None]:
    """`__init__` with the fields as its parameters. A frozen object is filled through its class's slots."""
    by_place = [one for one in taken if not one.kw_only]
    by_name = [one for one in taken if one.kw_only]
    scope: dict[str, Any] = {"MISSING": MISSING}
    made_anew = []
    for place, one in enumerate((*by_place, *by_name)):
        scope[f"set_{place}"] = getattr(cls, one.name).__set__
        if one.default_factory is not MISSING:
            scope[f"make_{place}"] = one.default_factory
            made_anew.append(place)
    code = _init_code(len(by_place), len(by_name), tuple(made_anew), hasattr(cls, "__post_init__"))
    names = ("self", *(one.name for one in by_place), *(one.name for one in by_name))
    made = FunctionType(code.replace(co_varnames=names), scope, "__init__")
    made.__defaults__ = tuple(one.default for one in by_place if _has_default(one))
    made.__kwdefaults__ = {one.name: one.default for one in by_name if _has_default(one)}
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _has_default(one: Field[Any]) -> bool:
    """A field with a default factory has the default MISSING."""
    return one.default is not MISSING or one.default_factory is not MISSING


@functools.cache
def _init_code(
    num_by_place: int, num_by_name: int, made_anew: tuple[int, ...], has_post_init: bool
) -> CodeType:
    """The code of an `__init__` whose fields are only numbered: many classes differ in their names alone."""
    names = [f"field_{place}" for place in range(num_by_place + num_by_name)]
    by_name = ("*", *names[num_by_place:]) if num_by_name else ()
    lines = [f"def __init__({', '.join(('self', *names[:num_by_place], *by_name))}):"]
    for place, name in enumerate(names):
        value = f"make_{place}() if {name} is MISSING else {name}" if place in made_anew else name
        lines.append(f" set_{place}(self, {value})")
    lines.append(" self.__post_init__()" if has_post_init else " pass")
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    code: CodeType = scope["__init__"].__code__
    return code


def _repr(self: Any) -> str:
    values = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({values})"


def _restore(self: object, state: tuple[None, Mapping[str, object]]) -> None:
    """Fills a copied or unpickled object, for which plain assignment would be refused."""
    for name, value in state[1].items():
        object.__setattr__(self, name, value)


def _refuse(self: object, name: str, *value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to or delete field {name!r}")
