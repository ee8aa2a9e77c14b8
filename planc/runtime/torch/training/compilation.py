"""torch.compile, module by module."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from planc.graph.ops import CompileModules
from planc.runtime.compilers import unusable_inductor
from planc.runtime.errors import RunError
from planc.runtime.torch.dropout.masking import Masking
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.parallel.sharded_modules import leave_untraced, local_parameters
from planc.runtime.torch.private import numbering_in_recomputed_code
from planc.runtime.torch.run import Run
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs, compiled_parts
from planc.runtime.torch.training.fused_loss import FusedLoss
from planc.runtime.torch.training.offloading import inner_forward, replace_inner_forward


def compile_modules(
    run: Run, op: CompileModules, model: nn.Module, pipeline: Pipeline | None, masking: Masking | None
) -> CompiledGraphs:
    """Compile each module when it first runs. Names of modules and parameters do not change.

    RunError if the backend can't build kernels: otherwise each rank would fail in its first forward.
    """
    if op.backend == "inductor" and (problem := unusable_inductor(run.device.type, os.environ)):
        text, help = problem
        raise RunError(text, help=help, is_shared=False)
    own = held(pipeline, op.modules)
    dispatched = run.graph.experts.modules if run.graph.experts else ()
    for fqn in held(pipeline, dispatched):
        # It exchanges as many rows as routers choose.
        leave_untraced(model.get_submodule(fqn))
    for fqn in own:
        _compile(model.get_submodule(fqn), op, drops=masking is not None)
    has_loss = op.loss and (pipeline is None or pipeline.num_stages - 1 in pipeline.own)
    parts = compiled_parts(len(own), has_loss=has_loss)
    when = "it first runs" if parts in (("1 module",), ("the loss",)) else "they first run"
    run.observer.noted(f"{' and '.join(parts)} will be compiled when {when}")
    loss = FusedLoss(functools.partial(_compiled, op=op)) if has_loss else None
    return CompiledGraphs(num_modules=len(own), loss=loss)


def _compiled(function: Callable[..., Any], *, op: CompileModules) -> Callable[..., Any]:
    found: Callable[..., Any] = torch.compile(
        function, backend=op.backend, mode=op.mode, fullgraph=op.fullgraph, dynamic=op.dynamic
    )
    return found


def _compile(module: nn.Module, op: CompileModules, *, drops: bool) -> None:
    # Only `forward`: hooks of FSDP and of the module's own edges run around it as they are.
    inner = _compiled(inner_forward(module), op=op)

    @functools.wraps(inner_forward(module))
    def forward(*arguments: Any, **keywords: Any) -> Any:
        with local_parameters(module), numbering_in_recomputed_code() if drops else nullcontext():
            return inner(*arguments, **keywords)

    replace_inner_forward(module, forward)
