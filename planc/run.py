"""The entry point of a run, `torchrun --nproc-per-node N -m planc.run PLAN`: `planc.cli.run` does it all."""

from __future__ import annotations

from planc.cli.run import main

if __name__ == "__main__":
    main()
