"""The lattice against one process, as a table by mesh: `python tests/lattice/run.py [NAME ...]`.

Exits with 1 if any cell fails. NAMEs keep the parts whose name contains one of them: `4 ranks`, `bfloat16`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Every rank imports the script that started it, and needs none of this.
    from tests.lattice.table import main

    sys.exit(main(sys.argv[1:]))
