"""`planc.run`, where one rank does something bad as an op begins: for tests that start it with torchrun.

FAULT is `stop`, `linger`, `exit`, `sleep` or `raise`, and comes with rank, step and op: `stop 1 2 forward`.
"""

from __future__ import annotations

import os
import signal
import time

from planc.cli.run import main
from planc.graph.op import Op
from planc.runtime.backends.torch.backend import TorchBackend
from planc.runtime.interpreter import Position

FAULT, RANK, STEP, OP = os.environ["FAULT"].split()
_execute = TorchBackend.execute


def execute(self: TorchBackend, op: Op, position: Position) -> None:
    is_it = (os.environ["RANK"], str(position.step), op.name) == (RANK, STEP, OP)
    if is_it and self.session.watch is not None:
        self.session.watch.enter(op, step=position.step, micro_step=position.micro_step)
        match FAULT:
            case "stop" | "linger":
                # Long enough for a beat, where ranks meet in the store.
                time.sleep(2.2 if FAULT == "linger" else 0)
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exit":
                os._exit(9)
            case "sleep":
                time.sleep(60)
            case "raise":
                raise ValueError("the tokenizer fell over")
    _execute(self, op, position)


if __name__ == "__main__":
    TorchBackend.execute = execute  # type: ignore[method-assign]
    main()
