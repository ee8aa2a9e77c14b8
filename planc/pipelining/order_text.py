"""Orders as text, as a compiled plan's file has them: `0F0 0F1 0B0`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from planc.pipelining.orders import Action, Direction, Order

_ACTION = re.compile(r"(\d{1,6})([FBW])(\d{1,6})")


def order_text(order: Order) -> str:
    """The actions of one rank, first to last."""
    return " ".join(map(str, order))


def parse_order(text: str) -> Order:
    """The actions that a text has. ValueError for any other text."""
    return tuple(map(_parse_action, text.split(" "))) if text else ()


class _AsText:
    """Has pydantic read and write an order as its text."""

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[type], Any]) -> Any:
        # Imported by who reads a file: a check has no need of it.
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(
            parse_order,
            handler(str),
            serialization=core_schema.plain_serializer_function_ser_schema(
                order_text, return_schema=core_schema.str_schema()
            ),
        )


OrderAsText = Annotated[Order, _AsText()]
"""An order, which is a text in files."""


def _parse_action(text: str) -> Action:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text}` is not a stage, F, B or W, and a micro-batch, such as `0F1`")
    return Action(int(match[1]), Direction(match[2]), int(match[3]))
