"""Tables as text, and the formats of sizes and shapes."""

from __future__ import annotations

from collections.abc import Sequence

SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

Row = tuple[str, str]
"""A heading and its text."""


def render_table(
    rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), right: Sequence[int] = (), indent: str = ""
) -> str:
    """Rows as lines with aligned columns; `right` are the columns that align to the right."""
    lines = [[printable(cell) for cell in row] for row in (*([header] if header else []), *rows)]
    if not lines:
        return ""
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))]
    text = ""
    for row in lines:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        text += f"{indent}{'  '.join(cells)}".rstrip() + "\n"
    return text


def printable(text: str) -> str:
    """The text with control characters escaped: names from a file must not control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def format_bytes(size_bytes: int) -> str:
    """`1.5 GiB`, three significant digits at least; exact below 1024."""
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit + 1 < len(SIZE_UNITS):
        value, unit = value / 1024, unit + 1
    if unit == 0:
        return f"{size_bytes} B"
    return f"{value:.2f} {SIZE_UNITS[unit]}" if value < 100 else f"{value:.0f} {SIZE_UNITS[unit]}"


def format_shape(shape: Sequence[int]) -> str:
    """`[4096, 1024]`."""
    return f"[{', '.join(str(size) for size in shape)}]"


def format_number(number: int) -> str:
    """`804_992`, as plans write it."""
    return f"{number:_}"


def format_seconds(seconds: float) -> str:
    """Three digits, with the unit that suits the size: `1.46 s`, `350 ms`."""
    if seconds >= 1000:
        return f"{format_number(round(seconds))} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def plural(number: int, noun: str, many: str = "") -> str:
    """`1 module`, `3 modules`; `many` is a plural that is not the noun and an `s`."""
    return f"{format_number(number)} {noun if number == 1 else many or f'{noun}s'}"


def every_step(interval: int) -> str:
    """`every step`, `every 3 steps`."""
    return "every step" if interval == 1 else f"every {interval} steps"


def interval(*, steps: int | None = None, seconds: int | None = None) -> str | None:
    """`every 3 steps`, or `every 30 min` in the largest unit of which it is a whole number."""
    if steps is not None or seconds is None:
        return every_step(steps) if steps is not None else None
    unit, size = next((u, size) for u, size in (("h", 3600), ("min", 60), ("s", 1)) if seconds % size == 0)
    return f"every {seconds // size} {unit}"
