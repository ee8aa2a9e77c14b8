"""Readers of values that name parts of the model: what is adapted, trained or frozen."""

from __future__ import annotations

from planc.import_configs.leaves import Value, written
from planc.import_configs.readers import Idle, Unread, flag, number, text

ALL_LINEAR = ("all-linear",)
"""A word in place of names: every linear layer but the head."""
_EVERY = ("all", "all-linear", "all_linear", "*")


def adapter(value: Value) -> str | None:
    """The kind of adapter; None for a training of the model's own parameters."""
    word = "none" if value in (None, False) else text(value).lower()
    if word in ("none", "full", ""):
        return None
    if word in ("lora", "qlora"):
        return "lora"
    raise Unread(f"a plan's adapters are lora, not {written(value)}")


def targets(value: Value) -> tuple[str, ...]:
    """The layers with adapters, by name; `*` is any part of one."""
    names = _names(value)
    return ALL_LINEAR if any(name in _EVERY for name in names) else names


def every_linear(value: Value) -> tuple[str, ...]:
    """All linear layers, of a flag that chooses them."""
    if flag(value):
        return ALL_LINEAR
    raise Idle("off: the file names the layers")


def module_names(value: Value) -> tuple[str, ...]:
    return _names(value)


def _names(value: Value) -> tuple[str, ...]:
    parts = value if isinstance(value, tuple) else tuple(text(value).split(","))
    names = tuple(text(part) for part in parts)
    for name in names:
        if not all(character.isalnum() or character in "._*-" for character in name):
            raise Unread(
                f"`{written(name)}` is not the name of a module: a plan's patterns have `*` and `**`"
            )
    return names


def whole_number(value: Value) -> int:
    """A whole number of any sign."""
    given = number(value)
    if given != int(given):
        raise Unread(f"`{written(value)}` is not a whole number")
    return int(given)


def four_bits(value: Value) -> bool:
    """Whether a number of bits is 4."""
    if number(value) == 4:
        return True
    raise Unread(f"a plan's frozen weights are in `model.dtype` or in 4 bits, not {written(value)}")
