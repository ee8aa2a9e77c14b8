"""Text from outside, made safe to show in a terminal or a log."""

from __future__ import annotations

from unicodedata import combining, east_asian_width


def visible(text: str) -> str:
    """The text with each character that prints nothing, or steers a terminal, replaced by U+FFFD."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def encodable(text: str, encoding: str) -> str:
    """The text with `?` for each character that the encoding lacks, which keeps the columns."""
    return text.encode(encoding, "replace").decode(encoding)


def num_cells(text: str) -> int:
    """Columns of a terminal that the text takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text
    )
