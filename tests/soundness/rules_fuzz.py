"""Random rule sets of every architecture against real runs: `python -m tests.soundness.rules_fuzz --seed 1`.

Exits with 1 if the static check accepts rules with which a model does not train as in one process.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Every rank and every worker imports the script that started it, and needs none of this.
    from tests.soundness.rules_command import main

    sys.exit(main(sys.argv[1:]))
