"""Mutated plans against real runs: `python -m tests.mutants.run --limit 1000 --jobs 2 --out mutants`.

Exits with 1 if any depth lets a plan pass that does not compute what one device computes.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Every rank and every worker imports the script that started it, and needs none of this.
    from tests.mutants.command import main

    sys.exit(main(sys.argv[1:]))
