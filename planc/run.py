"""Run a plan on this rank: `torchrun --nproc-per-node N -m planc.run PLAN`."""

from __future__ import annotations

from planc.cli.commands.run import main

if __name__ == "__main__":
    main()
