"""Activation checkpointing: which results of forward a module keeps, and which backward recomputes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Set
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from planc.graph.ops import CheckpointActivations
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.run import Run
from planc.runtime.torch.training.offloading import Offloader
from planc.vocab import outwards

_aten: Any = torch.ops.aten
MATMULS = frozenset((_aten.mm.default, _aten.addmm.default))
"""Linear layers, without a bias and with one. Of each module every second one is recomputed."""
KEPT = frozenset(
    (
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_fused_attention_overrideable.default,
        # Sums over tensor-parallel ranks are not sent a second time.
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    )
)
"""Ops that are expensive for the bytes of their results."""
CHOICES = frozenset((_aten.topk.default,))
"""Ops by which routers choose experts."""


_PROFILER_MARKS = (
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
)


def checkpoint_activations(
    run: Run, op: CheckpointActivations, model: nn.Module, pipeline: Pipeline | None
) -> None:
    """Make each module recompute its forward in backward. Names of modules do not change."""
    offloader = Offloader(run.device)
    experts = run.graph.experts.modules if run.graph.experts else ()
    for fqn in held(pipeline, op.modules):
        module = model.get_submodule(fqn)
        if op.mode == "offload":
            module.forward = offloader.wrap(module.forward)
        else:
            keeps_routing = any(fqn in outwards(name) for name in experts)
            recompute(module, mode=op.mode, keeps_routing=keeps_routing)


def recompute(module: nn.Module, *, mode: Literal["full", "selective"], keeps_routing: bool = False) -> None:
    """Make a module recompute its forward in backward, if there is one: all of it, or its cheap ops.

    With `keeps_routing` tokens go where they went before. Where two experts are nearly equal, a recomputed
    router may choose the other one; then a rank would wait for rows that no rank sends.
    """
    contexts = _contexts(mode, keeps_routing=keeps_routing)
    # Only `forward` is wrapped: the hooks of tensor parallelism and FSDP run around it, once.
    inner = module.forward

    def is_trained() -> bool:
        return any(parameter.requires_grad for parameter in module.parameters())

    @functools.wraps(inner)
    def forward(*arguments: Any, **keywords: Any) -> Any:
        # Compiled code without a backward refuses to recompute random ops, and attention counts as one.
        if not (torch.is_grad_enabled() and (is_trained() or _need_gradient((arguments, keywords)))):
            return inner(*arguments, **keywords)
        return checkpoint(inner, *arguments, use_reentrant=False, **contexts, **keywords)

    module.forward = forward


def _need_gradient(values: Any) -> bool:
    """Whether any tensor of a call's arguments needs a gradient."""
    if isinstance(values, dict):
        return _need_gradient(tuple(values.values()))
    if isinstance(values, (tuple, list)):
        return any(_need_gradient(value) for value in values)
    return isinstance(values, Tensor) and values.requires_grad


def _contexts(mode: Literal["full", "selective"], *, keeps_routing: bool) -> dict[str, Any]:
    """The arguments of `checkpoint` that decide what it keeps."""
    kept = CHOICES if keeps_routing else frozenset()
    if mode == "selective":
        return {"context_fn": functools.partial(_selective_contexts, lambda: _EverySecond(KEPT | kept))}
    # torch.compile supports a context function only if the call names one: `full` leaves it out.
    return {"context_fn": functools.partial(_selective_contexts, lambda: [*kept])} if kept else {}


def _selective_contexts(policy: Callable[[], Any]) -> Any:
    """The contexts of one forward of a module, and of its recomputation in backward."""
    # Units of FSDP inside mark what they do for the profiler, and do other things when backward recomputes.
    SAC_IGNORED_OPS.update(_PROFILER_MARKS)
    return create_selective_checkpoint_contexts(policy())  # type: ignore[no-untyped-call]


class _EverySecond:
    """torchtitan's policy for one forward of a module: some ops, and every second matmul."""

    def __init__(self, kept: Set[object]) -> None:
        self._kept = kept
        self._num_matmuls: Counter[bool] = Counter()

    def __call__(
        self, context: SelectiveCheckpointContext, op: Any, *arguments: Any, **keywords: Any
    ) -> CheckpointPolicy:
        if op in MATMULS:
            # Up to torch 2.12 the recomputation calls the policy too, where the count starts again.
            self._num_matmuls[context.is_recompute] += 1
        is_kept = op in self._kept or (op in MATMULS and self._num_matmuls[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE
