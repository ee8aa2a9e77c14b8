"""torch.compile, module by module."""

from __future__ import annotations

import os

from planc.graph.ops import CompileModules
from planc.runtime.compilers import missing_compiler
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.session import Session


def compile_modules(session: Session, op: CompileModules, position: Position) -> None:
    """Compile each module when it first runs. Names of modules and parameters do not change.

    RunError if the backend finds no compiler: otherwise each rank would fail in its first forward.
    """
    if op.backend == "inductor" and (missing := missing_compiler(session.device.type, os.environ)):
        text, help = missing
        raise RunError(text, help=help, is_shared=False)
    for fqn in op.modules:
        session.model.get_submodule(fqn).compile(
            backend=op.backend, mode=op.mode, fullgraph=op.fullgraph, dynamic=op.dynamic
        )
    many = len(op.modules)
    text = "1 module will be compiled when it first runs"
    session.observer.noted(text if many == 1 else f"{many} modules will be compiled when they first run")
