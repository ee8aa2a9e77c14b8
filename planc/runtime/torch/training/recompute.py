"""Activation checkpointing: which results of forward a module keeps, and which backward recomputes."""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import AbstractContextManager
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
from planc.modeling.private import TorchDispatchMode
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
Context = AbstractContextManager[Any]

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
            module.forward = offloader.wrap(module.forward, is_trained=functools.partial(_is_trained, module))
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

    @functools.wraps(inner)
    def forward(*arguments: Any, **keywords: Any) -> Any:
        # Compiled code without a backward refuses to recompute random ops, and attention counts as one.
        if not (torch.is_grad_enabled() and (_is_trained(module) or _need_gradient((arguments, keywords)))):
            return inner(*arguments, **keywords)
        return checkpoint(inner, *arguments, use_reentrant=False, **contexts, **keywords)

    module.forward = forward


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _need_gradient(values: Any) -> bool:
    """Whether any tensor of a call's arguments needs a gradient."""
    if isinstance(values, dict):
        return _need_gradient(tuple(values.values()))
    if isinstance(values, (tuple, list)):
        return any(_need_gradient(value) for value in values)
    return isinstance(values, Tensor) and values.requires_grad


def _contexts(mode: Literal["full", "selective"], *, keeps_routing: bool) -> dict[str, Any]:
    """The arguments of `checkpoint` that decide what it keeps."""
    if mode == "selective":
        return {"context_fn": _routed_selective_contexts if keeps_routing else _selective_contexts}
    # torch.compile supports a context function only if the call names one: `full` leaves it out.
    return {"context_fn": _routed_contexts} if keeps_routing else {}


def _selective_contexts() -> tuple[Context, Context]:
    """The contexts of one forward of a module, and of its recomputation in backward."""
    # Units of FSDP inside mark what they do for the profiler, and do other things when backward recomputes.
    SAC_IGNORED_OPS.update(_PROFILER_MARKS)
    found: tuple[Context, Context] = create_selective_checkpoint_contexts(_EverySecond())  # type: ignore[no-untyped-call]
    return found


def _routed_contexts() -> tuple[Context, Context]:
    """The contexts of a module with routers inside: experts are chosen in forward only."""
    chosen: list[Tensor] = []
    return _Choosing(chosen), _Chosen(chosen)


def _routed_selective_contexts() -> tuple[Context, Context]:
    pairs = zip(_routed_contexts(), _selective_contexts(), strict=True)
    forward, again = (_Nested(pair) for pair in pairs)
    return forward, again


class _Nested:
    """Several contexts as one, which can be entered again."""

    def __init__(self, contexts: tuple[Context, ...]) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


class _Choosing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps which experts routers choose. Not the probabilities: many routers divide them in place."""

    def __init__(self, chosen: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._chosen = chosen

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, op: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = op(*arguments, **(keywords or {}))
        if op in CHOICES:
            self._chosen.append(result[1].clone())
        return result


class _Chosen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives routers the experts that they chose in forward, with probabilities as recomputed."""

    def __init__(self, chosen: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._chosen = chosen
        self._num_taken = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __enter__(self) -> Any:
        self._num_taken = 0
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, op: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if op not in CHOICES:
            return op(*arguments, **(keywords or {}))
        scores, _, *rest = arguments
        dim = rest[0] if rest else (keywords or {}).get("dim", -1)
        chosen = self._chosen[self._num_taken]
        self._num_taken += 1
        return scores.gather(dim, chosen), chosen.clone()


class _EverySecond:
    """torchtitan's policy for one forward of a module: some ops, and every second matmul."""

    def __init__(self) -> None:
        self._num_matmuls: Counter[bool] = Counter()

    def __call__(
        self, context: SelectiveCheckpointContext, op: Any, *arguments: Any, **keywords: Any
    ) -> CheckpointPolicy:
        if op in MATMULS:
            # Up to torch 2.12 the recomputation calls the policy too, where the count starts again.
            self._num_matmuls[context.is_recompute] += 1
        is_kept = op in KEPT or (op in MATMULS and self._num_matmuls[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE
