"""Every architecture through planc: `python -m tests.models.run`, or `--only llama qwen3` for some rows.

Exits with 1 if a plan that `planc check` accepts fails, or does not compute what one process computes.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Every rank and every worker imports the script that started it, and needs none of this.
    from tests.models.command import main

    sys.exit(main(sys.argv[1:]))
