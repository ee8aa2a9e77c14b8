"""Print how many pairs of commands were tried, what one wrote given to the other, and which broke."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from planc.tables import render_table
from tests.loops.pairs import SLOW, Pair, pairs, prepared


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = prepared(Path(name))
        tried: list[Pair] = list(pairs(folder, quick=False))
    broken = [pair for pair in tried if pair.problem]
    print(render_table([(pair.producer, pair.consumer, pair.problem or "passes") for pair in tried]))
    print(f"{len(tried)} pairs of commands tried, {len(SLOW)} consumers of them slow: {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
