"""Checks a plan from Python, says what is wrong with it, and prints its execution graph.

python examples/check_and_compile.py plans/quickstart.plan
"""

from __future__ import annotations

import sys
from pathlib import Path

from planc.api import check_plan
from planc.diagnostics.human import HumanRenderer
from planc.graph.text import to_text


def main() -> int:
    checked = check_plan(Path(sys.argv[1]))
    print(HumanRenderer(checked.sources).render(checked.diagnostics), end="")
    if checked.graph is None:
        return 1
    print(to_text(checked.graph), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
