"""Writes the parser's table before a wheel or an editable install is made, so that no process builds it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
TABLE = ROOT / "planc" / "syntax" / "table.py"


class TableHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(ROOT))
        try:
            from planc.syntax.grammar import table_text
        finally:
            sys.path.remove(str(ROOT))
        TABLE.write_text(table_text(), encoding="utf-8")
