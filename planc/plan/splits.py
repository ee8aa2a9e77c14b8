"""A split of a dataset or parts of splits, as `datasets` reads it: `train[:10%]+test[5:]`.

Its grammar is here again: a check must not wait for that library's import, nor need it.
"""

from __future__ import annotations

import re

from planc.plan import codes
from planc.plan.scalars import Text
from planc.plan.scope import Scope
from planc.record import record
from planc.syntax import ast

_BOUND = r"(?:(?P<{0}>-?[\d_]+)(?P<{0}_percent>%)?)?"
_PART = re.compile(
    rf"\w+(?:\.\w+)*(?P<slice>\[{_BOUND.format('first')}:{_BOUND.format('last')}\])?(?:\((?P<rounding>[^)]*)\))?"
)
_ROUNDINGS = ("closest", "pct1_dropremainder")


@record
class Split:
    def convert(self, value: ast.Value, scope: Scope) -> str | None:
        text = Text().convert(value, scope)
        if text is None or (problem := split_problem(text)) is None:
            return text
        help = "write a name, or a part of it such as `train[:10%]` or `train[100:200]`"
        scope.report(codes.OUT_OF_RANGE, value.span, f"`{text}` is not a split: {problem}", help=help)
        return None

    def describe(self, *, mark: str = "") -> str:
        return Text().describe(mark=mark)

    def render(self, value: str) -> str:
        return Text().render(value)


def split_problem(text: str) -> str | None:
    """Explain why `datasets` would not read a split; None if it would."""
    roundings = []
    for part in re.split(r"\s*\+\s*", text):
        match = _PART.fullmatch(part)
        if match is None:
            return f"`{part}` is neither a name nor a part such as `train[:10%]`"
        bounds = [bound for bound in (match["first"], match["last"]) if bound]
        is_percent = bool(match["first_percent"] or match["last_percent"])
        try:
            numbers = [int(bound) for bound in bounds]
        except ValueError:
            return f"a bound of `{part}` is not a number"
        if is_percent and any(abs(number) > 100 for number in numbers):
            return f"a bound of `{part}` is beyond 100 %"
        if match["rounding"] is not None and match["rounding"] not in _ROUNDINGS:
            return f"the rounding of `{part}` is neither {' nor '.join(_ROUNDINGS)}"
        if match["rounding"] is not None and not is_percent:
            return f"`{part}` has a rounding and no percent"
        roundings.append((match["rounding"] or _ROUNDINGS[0]) if is_percent else None)
    return _mixed(roundings)


def _mixed(roundings: list[str | None]) -> str | None:
    """Each part is compared with the first one alone, as `datasets` does."""
    first = roundings[0]
    if first is not None and any(rounding not in (None, first) for rounding in roundings):
        return "its parts have different roundings"
    return None
