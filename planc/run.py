"""Run a plan on this rank: `torchrun --nproc-per-node N -m planc.run PLAN`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from planc.cli.commands.run import main
from planc.python.running import run


class _Module(ModuleType):
    """Importing this module puts it where `planc.run(plan)` looks for the function."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return run(*arguments, **options)


if __name__ == "__main__":
    main()
else:
    sys.modules[__name__].__class__ = _Module
