"""Patterns in the notation of regular expressions, of paths and of shells, as a plan writes them."""

from __future__ import annotations

import re

_NUMBER = r"(?:\\d|\[0-9\]|\\w|\[\^\.\]|\.)[+*]|\\d|\[0-9\]"
_STEPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^\^|\$$"), ""),
    (re.compile(r"\\\."), "."),
    # `.*` alone behind a dot is a plan's own `*`.
    (re.compile(rf"(?:(?<=\.)|^)\(?(?:{_NUMBER})\)?(?=\.|$)"), "*"),
    (re.compile(r"\.?\[([0-9]+)-([0-9]+)\]"), r".{\1..\2}"),
    (re.compile(r"\.?\[([0-9]+)\]"), r".\1"),
    (re.compile(r"\.?\[:?\]"), ".*"),
    (re.compile(r"\(\??:?([A-Za-z0-9_*]+(?:\|[A-Za-z0-9_*]+)+)\)"), r"{\1}"),
    (re.compile(r"<([A-Za-z0-9_]+)>|\{\{([A-Za-z0-9_]+)\}\}"), r"*"),
    (re.compile(r"\{([0-9]+) *(?:-|:|\.\.\.|,? *\.\.\.,?) *([0-9]+)\}"), r"{\1..\2}"),
    (re.compile(r"\{([0-9]+)\.\.=([0-9]+)\}"), r"{\1..\2}"),
    (re.compile(r"/|::"), "."),
    (re.compile(r"\?|%d|#"), "*"),
    (re.compile(r"(?<![{0-9. ])\.{2,}|\.{2,}(?![0-9. ])"), "."),
    (re.compile(r"^[\s.]+|[\s.]+$"), ""),
    (re.compile(r"(?<=[A-Za-z0-9_]) +(?=[A-Za-z0-9_*{])"), "."),
)
_RANGE = re.compile(r"\{ *([0-9]+) *\.\. *([0-9]+) *\}")


def as_pattern(text: str) -> str | None:
    """The same in a plan's notation, if it was in another; it need not be a pattern yet."""
    found = text
    for written, meant in _STEPS:
        found = written.sub(meant, found)
    found = re.sub(r"\{[^{}]*\}", lambda brace: brace.group().replace("|", ","), found)
    found = _RANGE.sub(lambda match: _upward(int(match[1]), int(match[2])), found)
    return found if found not in (text, "") else None


def _upward(low: int, high: int) -> str:
    return f"{{{min(low, high)}..{max(low, high)}}}"


def as_list(text: str) -> str | None:
    """`["model.layers.*", "lm_head"]` for `{model.layers.*,lm_head}`: names of several parts are listed."""
    if not re.fullmatch(r"\{[^{}]*\.[^{}]*\}", text) or "," not in text:
        return None
    names = (f'"{one.strip()}"' for one in text[1:-1].split(","))
    return f"[{', '.join(names)}]"
