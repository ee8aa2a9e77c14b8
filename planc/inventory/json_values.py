"""Values of parsed JSON as the types that are meant. InventoryError, naming the place, for others."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from planc.inventory.files import InventoryError

_DIGEST = re.compile(r"[0-9a-f]{64}")
_Value = TypeVar("_Value")


def fields_of(
    value: object, where: str, *, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, object]:
    if not isinstance(value, dict):
        raise error_at(where, "not an object")
    for key in required:
        if key not in value:
            raise error_at(where, f'the key "{key}" is missing')
    for key in value:
        if key not in required and key not in optional:
            raise error_at(where, f'unknown key "{key}"')
    return value


def array_of(value: object, where: str, *, of: Callable[[object, str], _Value]) -> tuple[_Value, ...]:
    if not isinstance(value, list):
        raise error_at(where, "not an array")
    return tuple(of(item, f"{where}[{index}]") for index, item in enumerate(value))


def items_of(value: object, where: str, *, number: int) -> tuple[object, ...]:
    """The items of an array of so many."""
    items = array_of(value, where, of=lambda item, _: item)
    if len(items) != number:
        raise error_at(where, f"not an array of {number}")
    return items


def strings_of(value: object, where: str) -> tuple[str, ...]:
    return array_of(value, where, of=string_of)


def pair_of(value: object, where: str) -> tuple[str, str]:
    strings = strings_of(value, where)
    if len(strings) != 2:
        raise error_at(where, "not a pair")
    return strings[0], strings[1]


def string_of(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise error_at(where, "not a string")
    return value


def true_of(value: object, where: str) -> bool:
    if value is not True:
        raise error_at(where, "must be true or absent")
    return True


def digest_of(value: object, where: str) -> str:
    if not _DIGEST.fullmatch(digest := string_of(value, where)):
        raise error_at(where, "not a SHA-256 in hexadecimal")
    return digest


def length_of(value: object, where: str) -> int:
    # A bool is an int in Python and would pass isinstance.
    if type(value) is not int or value < 0:
        raise error_at(where, "not a whole number")
    return value


def positive_of(value: object, where: str) -> int:
    if (number := length_of(value, where)) == 0:
        raise error_at(where, "not a positive whole number")
    return number


def error_at(where: str, message: str) -> InventoryError:
    return InventoryError(f"{where}: {message}", help="write the inventory again: planc inventory DIR --save")
