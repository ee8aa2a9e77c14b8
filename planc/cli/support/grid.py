"""The points of `planc sweep --grid`: every combination of the values of some settings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from planc.cli.support.exits import UsageError
from planc.record import record

MAX_POINTS = 10_000
_RANGE = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})", re.ASCII)
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.,=+-]")


@record
class Point:
    """One combination, as settings for `--set`; `name` is its directory."""

    name: str
    settings: tuple[str, ...]


def points(axes: Sequence[str]) -> tuple[Point, ...]:
    """The points of axes such as `optimizer.lr=1e-4,3e-4` and `model.seed=0..2`, the last varying fastest.

    UsageError for an axis without values, for two of one setting, and for too many points.
    """
    parsed = [_axis(text) for text in axes]
    names = [path for path, _ in parsed]
    if twice := next((path for path in names if names.count(path) > 1), None):
        raise UsageError(f"--grid has {twice} twice")
    combined = []
    for values in itertools.product(*(values for _, values in parsed)):
        settings = tuple(f"{path}={value}" for path, value in zip(names, values, strict=True))
        combined.append(Point(_UNUSUAL.sub("_", ",".join(map(_short, settings))), settings))
        if len(combined) > MAX_POINTS:
            raise UsageError(f"--grid has more than {MAX_POINTS} points")
    names = [point.name for point in combined]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two points of --grid would have the directory {twice}")
    return tuple(combined)


def _axis(text: str) -> tuple[str, list[str]]:
    path, equals, values = text.partition("=")
    if not (equals and path.strip() and values.strip()):
        raise UsageError(f"--grid {text}: write PATH=VALUE,VALUE or PATH=FIRST..LAST")
    ends = _RANGE.fullmatch(values.strip())
    if ends is not None:
        first, last = map(int, ends.groups())
        if last < first or last - first >= MAX_POINTS:
            raise UsageError(f"--grid {text}: the range must go up, to at most {MAX_POINTS} values")
        return path.strip(), [str(value) for value in range(first, last + 1)]
    parts = [part.strip() for part in _split(values)]
    if not all(parts):
        raise UsageError(f"--grid {text}: a value is empty")
    return path.strip(), parts


def _split(values: str) -> list[str]:
    """Values between commas that are in no bracket or string: `adamw(lr = 1e-3, eps = 1e-8),sgd`."""
    parts, depth, in_text = [""], 0, False
    for character in values:
        in_text ^= character == '"'
        if not in_text:
            depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0 and not in_text:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _short(setting: str) -> str:
    """`lr=1e-4` of `optimizer.lr=1e-4`."""
    path, _, value = setting.partition("=")
    return f"{path.rpartition('.')[2]}={value}"
