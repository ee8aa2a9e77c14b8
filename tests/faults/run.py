"""Every fault of the matrix: `python -m tests.faults.run`, or `--only kills power` for some rows.

Exits with 1 if a fault is not survived as planc promises.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Every rank imports the script that started it, and needs none of this.
    from tests.faults.command import main

    sys.exit(main(sys.argv[1:]))
