"""Frozen, slotted dataclasses that cost little to define."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

_Class = TypeVar("_Class", bound=type[Any])


@overload
def record(cls: _Class) -> _Class: ...


@overload
def record(*, kw_only: bool) -> Callable[[_Class], _Class]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: Any = None, *, kw_only: bool = False) -> Any:
    """What `@dataclass(frozen=True, slots=True)` makes of a class, ten times as fast.

    `dataclass` compiles six methods for every class; doing so for the 190 that a check meets took longer than
    the check. Here `__init__` alone is compiled, when it is first called. Fields are as ever, and so are
    `replace`, `fields`, `asdict` and patterns of `match`.
    """
    return _record(cls, kw_only=kw_only) if cls else lambda cls: _record(cls, kw_only=kw_only)


def _record(cls: type[Any], *, kw_only: bool) -> Any:
    # Without a docstring, `dataclass` would write the signature into one, which takes as long as the rest.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    values = _getter([one.name for one in fields(made) if one.compare])

    def __init__(self: object, *args: object, **kwargs: object) -> None:
        made.__init__ = _compiled_init(made)
        made.__init__(self, *args, **kwargs)

    def __eq__(self: object, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:
        return hash(values(self))

    made.__init__, made.__eq__, made.__hash__ = __init__, __eq__, __hash__
    made.__repr__, made.__setattr__, made.__delattr__ = _repr, _refuse, _refuse
    made.__setstate__ = _restore
    return made


def _getter(names: list[str]) -> Callable[[object], object]:
    """Reads all of the attributes: a tuple of their values, or the value of a single one."""
    return attrgetter(*names) if names else lambda self: ()


def _compiled_init(cls: type[Any]) -> Callable[..., None]:
    """`__init__` with the fields as its parameters. A frozen object is filled through its class's slots."""
    scope: dict[str, Any] = {"MISSING": MISSING}
    taken = [one for one in fields(cls) if one.init]
    for one in taken:
        scope[f"set_{one.name}"] = getattr(cls, one.name).__set__
        scope[f"default_{one.name}"], scope[f"make_{one.name}"] = one.default, one.default_factory
    by_place = [_parameter(one) for one in taken if not one.kw_only]
    by_name = [_parameter(one) for one in taken if one.kw_only]
    lines = (
        f"def __init__({', '.join(('self', *by_place, *(('*', *by_name) if by_name else ())))}):",
        *(f" set_{one.name}(self, {_value(one)})" for one in taken),
        " self.__post_init__()" if hasattr(cls, "__post_init__") else " pass",
    )
    exec("\n".join(lines), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _parameter(one: Field[Any]) -> str:
    is_required = one.default is MISSING and one.default_factory is MISSING
    return one.name if is_required else f"{one.name}=default_{one.name}"


def _value(one: Field[Any]) -> str:
    if one.default_factory is MISSING:
        return one.name
    return f"make_{one.name}() if {one.name} is MISSING else {one.name}"


def _repr(self: Any) -> str:
    values = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({values})"


def _restore(self: object, state: tuple[None, Mapping[str, object]]) -> None:
    """Fills a copied or unpickled object, for which plain assignment would be refused."""
    for name, value in state[1].items():
        object.__setattr__(self, name, value)


def _refuse(self: object, name: str, *value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to or delete field {name!r}")
