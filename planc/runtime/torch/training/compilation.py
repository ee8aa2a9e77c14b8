"""torch.compile, module by module."""

from __future__ import annotations

import functools
import os
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from planc.graph.ops import CompileModules
from planc.runtime.compilers import missing_compiler
from planc.runtime.errors import RunError
from planc.runtime.torch.dropout.masking import Masking
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.parallel.sharded_modules import local_parameters
from planc.runtime.torch.private import numbering_in_recomputed_code
from planc.runtime.torch.run import Run
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs
from planc.runtime.torch.training.offloading import inner_forward, replace_inner_forward


def compile_modules(
    run: Run, op: CompileModules, model: nn.Module, pipeline: Pipeline | None, masking: Masking | None
) -> CompiledGraphs:
    """Compile each module when it first runs. Names of modules and parameters do not change.

    RunError if the backend finds no compiler: otherwise each rank would fail in its first forward.
    """
    if op.backend == "inductor" and (missing := missing_compiler(run.device.type, os.environ)):
        text, help = missing
        raise RunError(text, help=help, is_shared=False)
    own = held(pipeline, op.modules)
    many = len(own)
    for fqn in own:
        _compile(model.get_submodule(fqn), op, drops=masking is not None)
    text = "1 module will be compiled when it first runs"
    run.observer.noted(text if many == 1 else f"{many} modules will be compiled when they first run")
    return CompiledGraphs(num_modules=many)


def _compile(module: nn.Module, op: CompileModules, *, drops: bool) -> None:
    # Only `forward`: hooks of FSDP and of the module's own edges run around it as they are.
    inner = torch.compile(
        inner_forward(module), backend=op.backend, mode=op.mode, fullgraph=op.fullgraph, dynamic=op.dynamic
    )

    @functools.wraps(inner_forward(module))
    def forward(*arguments: Any, **keywords: Any) -> Any:
        with local_parameters(module), numbering_in_recomputed_code() if drops else nullcontext():
            return inner(*arguments, **keywords)

    replace_inner_forward(module, forward)
