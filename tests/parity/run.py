"""Every launch shape against one process, as two tables: `python tests/parity/run.py [NAME]`.

Exits with 1 if any row fails. NAME keeps the rows whose shape or variant contains it.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Every rank imports the script that started it, and needs none of this.
    from tests.parity.tables import main

    sys.exit(main(sys.argv[1:]))
