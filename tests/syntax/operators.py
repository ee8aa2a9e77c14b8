"""The slips that people make in a plan, each with the lines on which a finding is right.

Every operator breaks the file by itself. A finding is right on the line that was changed. Where a brace is
missing it is right at the head of its block, where one is doubled at either of the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

OUTSIDE_STRINGS = re.compile(r'"[^"]*"|#.*|(.)')
SETTING = re.compile(r"\s*(override )?[\w.]+ = \S")


@dataclass(eq=False)
class Row:
    """A line of a plan. Its identity stays when lines come and go around it."""

    text: str
    identity: object = field(default_factory=object)

    @property
    def is_setting(self) -> bool:
        return bool(SETTING.match(self.text)) and not self.text.endswith(("(", "["))

    @property
    def is_rule(self) -> bool:
        return " -> " in self.text

    @property
    def is_head(self) -> bool:
        return self.text.endswith("{")

    @property
    def is_closer(self) -> bool:
        return self.text.strip() == "}"

    @property
    def is_code(self) -> bool:
        return self.is_setting or self.is_rule or self.is_head or self.text.startswith("param ")

    def places(self, characters: str) -> list[int]:
        """Where one of these stands outside strings and comments."""
        return [m.start() for m in OUTSIDE_STRINGS.finditer(self.text) if m[1] and m[1] in characters]

    def put(self, place: int, text: str, *, instead_of: int = 0) -> None:
        self.text = self.text[:place] + text + self.text[place + instead_of :]


@dataclass
class Site:
    """A row to spoil, in its file. `touched` are rows that no other slip may concern."""

    rows: list[Row]
    row: Row
    random: Random
    touched: list[Row] = field(default_factory=list)

    @property
    def index(self) -> int:
        return self.rows.index(self.row)

    @property
    def indent(self) -> str:
        return re.match(r"\s*", self.row.text)[0]  # type: ignore[index]

    @property
    def statement(self) -> list[Row]:
        """The row with the others of its statement: a call may go over several lines."""
        start = end = self.index
        while self.rows[start - 1].text.endswith(("(", ",")):
            start -= 1
        while self.rows[end].text.endswith(("(", ",")):
            end += 1
        return self.rows[start : end + 1]

    def closer(self) -> Row | None:
        """The brace that closes the block of which the row is the head; None where another slip took it."""
        for row in self.rows[self.index + 1 :]:
            if row.text == f"{self.indent}}}":
                self.touched.append(row)
                return row
            if row.text.strip() and not row.text.startswith(f"{self.indent} "):
                return None
        return None

    def insert_after(self, row: Row, text: str) -> Row:
        new = Row(text)
        self.rows.insert(self.rows.index(row) + 1, new)
        return new


Operator = Callable[[Site], tuple[Row, ...] | None]
"""Spoils the row, and returns the rows on which a finding is right; None where it does not apply."""


def replace_one(
    pattern: str, replacement: str, *, when: Callable[[Row], bool] = lambda row: row.is_code
) -> Operator:
    """Replaces one match of a pattern, chosen at random among those that start outside strings."""

    def operator(site: Site) -> tuple[Row, ...] | None:
        row = site.row
        inside = {
            place
            for match in re.finditer(r'"[^"]*"|#.*', row.text)
            for place in range(match.start() + 1, match.end())
        }
        matches = [match for match in re.finditer(pattern, row.text) if match.start() not in inside]
        if not matches or not when(row):
            return None
        match = site.random.choice(matches)
        row.put(match.start(), match.expand(replacement), instead_of=len(match[0]))
        return (row,)

    return operator


def dropped_quote(site: Site) -> tuple[Row, ...] | None:
    places = [match.start() for match in re.finditer('"', site.row.text)]
    if not places or "#" in site.row.text:
        return None
    site.row.put(site.random.choice(places), "", instead_of=1)
    return (site.row,)


def stray_character(site: Site) -> tuple[Row, ...] | None:
    places = site.row.places(" ")
    if not places or not site.row.is_code:
        return None
    site.row.put(site.random.choice(places), site.random.choice("@$%&?^~|;"))
    return (site.row,)


def unclosed(site: Site) -> tuple[Row, ...] | None:
    places = site.row.places(")]")
    if not places or not site.row.is_code:
        return None
    site.row.put(site.random.choice(places), "", instead_of=1)
    return (site.row,)


def wrong_bracket(site: Site) -> tuple[Row, ...] | None:
    places = site.row.places("()[]")
    if not places or not site.row.is_code:
        return None
    place = site.random.choice(places)
    others = "([{" if site.row.text[place] in "([" else ")]}"
    site.row.put(place, site.random.choice(others.replace(site.row.text[place], "")), instead_of=1)
    return (site.row,)


def two_on_a_line(site: Site) -> tuple[Row, ...] | None:
    rows, row = site.rows, site.row
    following = rows[site.index + 1] if site.index + 1 < len(rows) else None
    if following is None or not (row.is_setting or row.is_rule) or "#" in row.text or row.text.endswith(","):
        return None
    if not (following.is_setting or following.is_rule):
        return None
    row.text = f"{row.text} {following.text.strip()}"
    site.touched.append(following)
    rows.remove(following)
    return (row,)


def missing_brace(site: Site) -> tuple[Row, ...] | None:
    closer = site.closer()
    if not site.row.is_head or closer is None:
        return None
    site.rows.remove(closer)
    return (site.row,)


def missing_opening_brace(site: Site) -> tuple[Row, ...] | None:
    if not site.row.is_head or site.closer() is None:
        return None
    site.row.text = site.row.text.removesuffix(" {")
    return (site.row,)


def brace_on_next_line(site: Site) -> tuple[Row, ...] | None:
    if not site.row.is_head or site.closer() is None:
        return None
    site.row.text = site.row.text.removesuffix(" {")
    return (site.row, site.insert_after(site.row, f"{site.indent}{{"))


def yaml_block(site: Site) -> tuple[Row, ...] | None:
    closer = site.closer()
    if not site.row.is_head or closer is None or " " in site.row.text.strip().removesuffix(" {"):
        return None
    site.rows.remove(closer)
    site.row.text = site.row.text.removesuffix(" {") + ":"
    return (site.row,)


def doubled_brace(site: Site) -> tuple[Row, ...] | None:
    if not site.row.is_closer:
        return None
    return (site.row, site.insert_after(site.row, site.row.text))


def extra_brace_inside(site: Site) -> tuple[Row, ...] | None:
    following = site.rows[site.index + 1] if site.index + 1 < len(site.rows) else None
    if not site.row.is_setting or following is None or not (following.is_setting or following.is_closer):
        return None
    site.touched.append(following)
    return (site.insert_after(site.row, f"{site.indent}}}"),)


def extra_brace_at_end(site: Site) -> tuple[Row, ...] | None:
    if not (site.row.is_setting or site.row.is_rule) or not site.indent or "#" in site.row.text:
        return None
    site.row.text += " }"
    return (site.row,)


def wrong_closer(site: Site) -> tuple[Row, ...] | None:
    if not site.row.is_closer:
        return None
    site.row.text = site.row.text.replace("}", site.random.choice(")]"))
    return (site.row,)


def c_comment(site: Site) -> tuple[Row, ...] | None:
    if not site.row.is_code or "#" in site.row.text:
        return None
    site.row.text += " // as before"
    return (site.row,)


def c_comment_alone(site: Site) -> tuple[Row, ...] | None:
    if not site.row.is_code or not site.rows[site.index - 1].is_code:
        return None
    return (site.insert_after(site.rows[site.index - 1], f"{site.indent}// don't {{change}} this"),)


def _is_setting(row: Row) -> bool:
    return row.is_setting


def _is_plain(row: Row) -> bool:
    return (row.is_setting or row.is_rule) and "#" not in row.text


OPERATORS: Mapping[str, Operator] = {
    "dropped quote": dropped_quote,
    "dropped =": replace_one(r" = ", " ", when=lambda row: row.is_setting or row.text.startswith("param ")),
    "`:` for `=`": replace_one(r"^(\s*[\w.]+) = ", r"\1: ", when=_is_setting),
    "`:=` for `=`": replace_one(r"^(\s*[\w.]+) = ", r"\1 := ", when=_is_setting),
    "no value": replace_one(r" = [^#(]*$", " =", when=_is_setting),
    "dropped ->": replace_one(r" -> ", " ", when=lambda row: row.is_rule),
    "`=>` for `->`": replace_one(r"->", "=>", when=lambda row: row.is_rule),
    "`=` for `->`": replace_one(r"->", "=", when=lambda row: row.is_rule),
    "stray character": stray_character,
    "typo: param": replace_one(r"^param ", "parm "),
    "typo: on": replace_one(r" on ", " onn "),
    "typo: use, import": replace_one(r"^(\s*)(use|import|extends) ", r"\1\2d ", when=lambda row: True),
    "unclosed list or call": unclosed,
    "missing comma": replace_one(r", ", " ", when=lambda row: row.is_code),
    "two on a line": two_on_a_line,
    "wrong bracket": wrong_bracket,
    "wrong closing bracket": wrong_closer,
    "missing }": missing_brace,
    "missing {": missing_opening_brace,
    "{ on the next line": brace_on_next_line,
    "{{": replace_one(r"\{$", "{{", when=lambda row: row.is_head),
    "} twice": doubled_brace,
    "} among settings": extra_brace_inside,
    "} after a setting": extra_brace_at_end,
    "( for {": replace_one(r"\{$", "(", when=lambda row: row.is_head),
    "YAML block": yaml_block,
    "JSON member": replace_one(r"^(\s*)(\w+) = (.*)$", r'\1"\2": \3,', when=_is_plain),
    "block = {": replace_one(r" \{$", " = {", when=lambda row: row.is_head and " on " not in row.text),
    "block: {": replace_one(r" \{$", ": {", when=lambda row: row.is_head and " on " not in row.text),
    "single quotes": replace_one(r'"([^"]*)"', r"'\1'", when=lambda row: row.is_code and "#" not in row.text),
    "// at the end": c_comment,
    "// alone": c_comment_alone,
    "; at the end": replace_one(r"$", ";", when=_is_plain),
    "`and` for comma": replace_one(r"(on \w+), ", r"\1 and "),
    "tuple": replace_one(r"= \[([^\]]*)\]", r"= (\1)"),
}
