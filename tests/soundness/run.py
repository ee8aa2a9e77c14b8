"""Edits of right plans against real runs: `python -m tests.soundness.run --jobs 2 --out edits`.

Exits with 1 if the static check lets an edit pass that does not compute what one device computes.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Every rank and every worker imports the script that started it, and needs none of this.
    from tests.soundness.command import main

    sys.exit(main(sys.argv[1:]))
