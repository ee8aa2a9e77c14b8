"""A day, as ISO 8601 writes it."""

from __future__ import annotations

from datetime import date

from planc.plan import codes
from planc.plan.scalars import Text
from planc.plan.scope import Scope
from planc.record import record
from planc.syntax import ast


@record
class Date:
    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        text = Text().convert(value, scope)
        if text is None:
            return None
        try:
            day = date.fromisoformat(text)
        except ValueError:
            scope.report(
                codes.OUT_OF_RANGE,
                value.span,
                f"`{text}` is not a date",
                help='write it as in `"2026-01-31"`',
            )
            return None
        return day.isoformat()

    def describe(self, *, mark: str = "") -> str:
        return "a date in quotes"

    def render(self, value: str) -> str:
        return f'"{value}"'
