"""The entry point of a run: `torchrun --nproc-per-node N -m planc.run PLAN`; `planc.cli.run` does the work."""

from __future__ import annotations

import sys

from planc.cli.run import main

if __name__ == "__main__":
    sys.exit(main())
