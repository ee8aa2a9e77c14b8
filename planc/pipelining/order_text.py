"""Orders as text, which a compiled plan holds: `0F0 0F1 0B0`."""

from __future__ import annotations

import re

from planc.pipelining.orders import Action, Direction, Order

_ACTION = re.compile(r"(\d{1,6})([FBW])(\d{1,6})")


def order_text(order: Order) -> str:
    """The actions of one rank, first to last."""
    return " ".join(map(str, order))


def parse_order(text: str) -> Order:
    """The actions that a text has. ValueError for any other text."""
    return tuple(map(_parse_action, text.split(" "))) if text else ()


def _parse_action(text: str) -> Action:
    found = _ACTION.fullmatch(text)
    if found is None:
        raise ValueError(f"`{text}` is not a stage, F, B or W, and a micro-batch, such as `0F1`")
    return Action(int(found[1]), Direction(found[2]), int(found[3]))
