"""Words of other tools, and their counterparts in a plan."""

from __future__ import annotations

from planc.record import record


@record
class Foreign:
    """The counterpart in a plan of a word of another tool.

    `line` is what to write in `block`, or at the top level if that is empty. Its value is in angle brackets
    if a value that the plan gives can take its place. Without a line, `why` states what planc has instead.
    `why` comes before the line, `also` after it, with the plan's value for `{value}`. With `same`, the line
    means exactly what the word means. With `factors`, the value of the line is the product of the word's own
    value and these settings. `has` lists the values that planc has, for a value that it does not have.
    A value in `off` asks for nothing, and so does `false` if the line takes no value, unless `both` is set.
    `rule` names the action, or the fragment, of rules that do what the word means.
    """

    block: str
    line: str
    why: str = ""
    also: str = ""
    same: bool = False
    factors: tuple[str, ...] = ()
    has: str = ""
    off: tuple[str, ...] = ()
    both: bool = False
    rule: str = ""


NONE = ("false", "0", "0.0", "none", "null", "None")


def absent(text: str, *, off: tuple[str, ...] = ()) -> Foreign:
    return Foreign("", "", why=text, off=off)
