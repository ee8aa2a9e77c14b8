"""Documents: text with places to break, and the printer that decides which of them break.

After C. Lindig, "Strictly Pretty" (2000): a group is printed on one line if it fits with all that follows on
that line, else its lines break; groups are decided from the outside in and from left to right.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from planc.record import record

INDENT_COLUMNS = 2


@record
class Line:
    """A newline, or `flat` if its group is on one line. With None it is always a newline."""

    flat: str | None


@record
class Remark:
    """A comment at the end of a line. It takes no width: a long remark must not break what it is about."""

    text: str


@record
class IfBroken:
    """`broken` if the group breaks, `flat` if it is on one line."""

    broken: str
    flat: str


@record
class Concat:
    parts: tuple[Doc, ...]


@record
class Indent:
    inner: Doc


@record
class Group:
    """Made by `group`, which finds out whether something in it has to break."""

    inner: Doc
    is_broken: bool


Doc: TypeAlias = str | Line | Remark | IfBroken | Concat | Indent | Group

HARD_LINE = Line(None)
SOFT_LINE = Line("")
SPACE_LINE = Line(" ")


def concat(*parts: Doc) -> Concat:
    return Concat(parts)


def indent(*parts: Doc) -> Indent:
    return Indent(Concat(parts))


def group(*parts: Doc) -> Group:
    """Parts that share one line, or break together; a comment or a hard line forces it."""
    inner = Concat(parts)
    return Group(inner, _must_break(inner))


def _must_break(doc: Doc) -> bool:
    match doc:
        case str() | IfBroken():
            return False
        case Line(flat):
            return flat is None
        case Remark():
            return True
        case Concat(parts):
            return any(_must_break(part) for part in parts)
        case Indent(inner):
            return _must_break(inner)
        case Group(is_broken=is_broken):
            return is_broken
        case _:
            assert_never(doc)


@record
class _Item:
    """A document still to print: how deep its lines start, and whether it is on one line."""

    doc: Doc
    indent_columns: int
    is_flat: bool


def render(doc: Doc, *, width: int) -> str:
    """The text of a document, no line longer than `width` where breaking can avoid it."""
    pieces: list[str] = []
    column = 0
    margin = 0  # Written only before the next text, to keep empty lines empty.
    stack = [_Item(doc, 0, False)]
    while stack:
        item = stack.pop()
        text = ""
        match item.doc:
            case str(text):
                pass
            case Remark(remark):
                pieces.append(f"  {remark}")
            case IfBroken(broken, flat):
                text = flat if item.is_flat else broken
            case Line(flat) if item.is_flat and flat is not None:
                text = flat
            case Line():
                pieces.append("\n")
                column = margin = item.indent_columns
            case Concat(parts):
                stack.extend(_Item(part, item.indent_columns, item.is_flat) for part in reversed(parts))
            case Indent(inner):
                stack.append(_Item(inner, item.indent_columns + INDENT_COLUMNS, item.is_flat))
            case Group(inner, is_broken):
                is_flat = not is_broken and _fits(inner, stack, room=width - column)
                stack.append(_Item(inner, item.indent_columns, is_flat))
            case _:
                assert_never(item.doc)
        if text:
            pieces.append(" " * margin + text)
            column += len(text)
            margin = 0
    return "".join(pieces)


def _fits(doc: Doc, rest: list[_Item], *, room: int) -> bool:
    """Whether `doc` on one line, with what follows up to the next newline, takes at most `room` columns."""
    pending: list[tuple[Doc, bool]] = [(doc, True)]
    num_rest = len(rest)
    while room >= 0:
        if not pending:
            if num_rest == 0:
                return True
            num_rest -= 1
            pending.append((rest[num_rest].doc, rest[num_rest].is_flat))
        doc, is_flat = pending.pop()
        match doc:
            case str():
                room -= len(doc)
            case Remark():
                pass
            case IfBroken(broken, flat):
                room -= len(flat if is_flat else broken)
            case Line(flat):
                if flat is None or not is_flat:
                    return True
                room -= len(flat)
            case Concat(parts):
                pending.extend((part, is_flat) for part in reversed(parts))
            case Indent(inner):
                pending.append((inner, is_flat))
            case Group(inner, is_broken):
                pending.append((inner, not is_broken))
            case _:
                assert_never(doc)
    return False
