"""TOML as leaves. The standard parser gives no positions, so a scan of its lines finds them."""

from __future__ import annotations

import re
import tomllib
from collections import Counter

from planc.import_configs.json_leaves import leaves_of
from planc.import_configs.leaf import Leaf, SourceError

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_AT = re.compile(r"(.*) \(at line (\d+), column \d+\)")


def toml_leaves(text: str) -> tuple[Leaf, ...]:
    """The leaves of a TOML text. SourceError for anything else."""
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise SourceError("keys are nested too deeply") from None
    except ValueError as error:
        at = _AT.fullmatch(str(error))
        raise SourceError(f"not TOML: {at[1] if at else error}", int(at[2]) if at else None) from None
    return tuple(leaves_of(document, _lines(text)))


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The lines of tables and keys: the first that looks like each."""
    lines: dict[tuple[str, ...], int] = {(): 1}
    table: tuple[str, ...] = ()
    num_tables: Counter[tuple[str, ...]] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = _path(header[2])
            if header[1] == "[[":
                num_tables[table] += 1
                table = (*table, str(num_tables[table] - 1))
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_path(key[1])), number)
    return lines


def _path(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))
