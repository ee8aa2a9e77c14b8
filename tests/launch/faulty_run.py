"""`planc.run`, where one rank does something bad as an op begins: for tests that start it with torchrun.

FAULT is `stop`, `linger`, `exit`, `crash`, `kill`, `sleep`, `raise`, `starve`, `skip`, `garble`, `crowd`,
`fill` or `drag`, and comes with rank, step and op: `stop 1 2 forward`. `kill` is for torchrun's first attempt
alone, `drag` is 0.2 s, in that step and all after it; what is garbled is the data, some steps of which may
have been read ahead; `fill` leaves no byte on the file system of the folder FILLED.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from pathlib import Path

import torch

from planc.cli.commands.run import main
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.state import Data
from tests.launch.faulty_run_fill import fill

FAULT, RANK, STEP, OP = os.environ["FAULT"].split()
_execute = TorchBackend.execute


def execute(self: TorchBackend, op: Op, position: Position) -> None:
    is_it = (os.environ["RANK"], str(position.step), op.name) == (RANK, STEP, OP)
    if is_it:
        if self.run.watch is not None:
            self.run.watch.enter(op, step=position.step, micro_step=position.micro_step)
        match FAULT:
            case "stop" | "linger":
                # Long enough for a beat, where ranks meet in the store.
                time.sleep(2.2 if FAULT == "linger" else 0)
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exit":
                os._exit(9)
            case "crash":
                # No core file in the folder that the tests run in.
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                os.kill(os.getpid(), signal.SIGSEGV)
            case "kill":
                if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                    os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(60)
            case "starve":
                size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (size + 2**26, size + 2**26))
                torch.zeros(2**26)
            case "crowd":
                size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                # Less than the stack of one thread.
                resource.setrlimit(resource.RLIMIT_AS, (size + 2**22, size + 2**22))
                # The library keeps the stacks of threads that have ended, and would give one of those.
                with contextlib.suppress(RuntimeError):
                    while True:
                        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            case "fill":
                fill(Path(os.environ["FILLED"]))
            case "skip":
                return
            case "garble":
                # Frozen: nothing but a fault changes it.
                object.__setattr__(self.state[Data].loader.source.dataset, "tokens", None)
            case "raise":
                raise ValueError("the tokenizer fell over")
    if FAULT == "drag" and position.step >= int(STEP) and (os.environ["RANK"], op.name) == (RANK, OP):
        time.sleep(0.2)
    _execute(self, op, position)


if __name__ == "__main__":
    TorchBackend.execute = execute  # type: ignore[method-assign]
    main()
