"""Every name planc takes from a private part of PyTorch, one reason each. Nothing else imports them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
import torch.distributed._functional_collectives as functional_collectives
import torch.distributed.distributed_c10d as c10d
import torch.distributed.tensor._utils as dtensor_utils
import torch.utils._python_dispatch as python_dispatch
from torch import Tensor
from torch.distributed import Work
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Optimizer


def _renamed(name: str, *, before: str) -> Any:
    """A functional collective, under the name it had before torch 2.13 if this torch is older."""
    return getattr(functional_collectives, name if hasattr(functional_collectives, name) else before)


# Collectives that autograd can differentiate; the public ones cannot.
all_gather_autograd: Final[Any] = _renamed("all_gather_single_autograd", before="all_gather_tensor_autograd")
all_to_all_autograd: Final[Any] = functional_collectives.all_to_all_single_autograd
wait_tensor: Final[Any] = functional_collectives.wait_tensor
# Collectives that torch.compile traces, for the edges of tensor-parallel modules.
all_gather: Final[Any] = _renamed("all_gather_single", before="all_gather_tensor")
reduce_scatter: Final[Any] = _renamed("reduce_scatter_single", before="reduce_scatter_tensor")
all_reduce: Final[Any] = functional_collectives.all_reduce
all_to_all: Final[Any] = functional_collectives.all_to_all_single

# Treat many tensors in one call: a call for each takes as long as the work on a small one.
foreach_copy: Final[Any] = torch._foreach_copy_
foreach_mul: Final[Any] = torch._foreach_mul_
foreach_norm: Final[Any] = torch._foreach_norm

# Sees every op that is called below autograd, DTensor and FSDP, and by compiled modules: counts collectives.
TorchDispatchMode = python_dispatch.TorchDispatchMode
OpOverload: Final[Any] = torch._ops.OpOverload

# Functional collectives carry the name of their group, not the group.
resolve_process_group: Final[Any] = c10d._resolve_process_group  # type: ignore[attr-defined]

# Attention that also returns its log-sum-exp: ring attention merges blocks with it, but the public
# scaled_dot_product_attention does not return it.
flash_attention_cpu: Final[Any] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_attention_cpu_backward: Final[Any] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
flash_attention_cuda: Final[Any] = torch.ops.aten._scaled_dot_product_flash_attention
flash_attention_cuda_backward: Final[Any] = torch.ops.aten._scaled_dot_product_flash_attention_backward
efficient_attention: Final[Any] = torch.ops.aten._scaled_dot_product_efficient_attention
efficient_attention_backward: Final[Any] = torch.ops.aten._scaled_dot_product_efficient_attention_backward
# Which of its kernels the public function takes: asked before step 1, not found out in it.
fused_sdp_choice: Final[Any] = torch._fused_sdp_choice

# The position of a rank's block in the whole DTensor, including strided shards of FSDP over TP.
local_block: Final[Any] = dtensor_utils.compute_local_shape_and_global_offset
# The place of a strided shard is found out with tensors, which a rehearsal would make fake.
without_modes: Final[Any] = python_dispatch._disable_current_modes

# One mesh dim out of several, and several meshes over the same ranks: FSDP2 shards over (dp_shard, cp) as one
# dim, in addition to dp_replicate. The public slicing of flattened dims is deprecated.
flatten_mesh: Final[Any] = DeviceMesh._flatten
concatenate_meshes: Final[Any] = DeviceMesh._concatenate
# One mesh dim as two: of experts, a factor of it has different ones, and the other shards them.
split_mesh: Final[Any] = DeviceMesh._unflatten

# The timeout of a mesh's groups: they take torch's own half an hour, not that of the process group.
set_timeout: Final[Any] = c10d._set_pg_timeout

# The contents of CUDA memory, with stack traces of allocations: for pytorch.org/memory_viz. Written, and
# never read by planc.
record_memory_history: Final[Any] = torch.cuda.memory._record_memory_history
dump_memory_snapshot: Final[Any] = torch.cuda.memory._dump_snapshot


def numbering_in_recomputed_code() -> AbstractContextManager[object]:
    """Let compiled code that backward recomputes number its draws: its graph has the numbers as constants."""
    # Lazy: it takes a second to import, and only a plan that compiles needs it.
    import torch._dynamo.config

    patched: AbstractContextManager[object] = torch._dynamo.config.patch(
        skip_fwd_side_effects_in_bwd_under_checkpoint=True
    )
    return patched


def num_graphs() -> int:
    """The number of graphs that torch.compile has made in this process."""
    # Lazy: as above.
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def graph_breaks() -> Sequence[Any]:
    """Return this process's graph breaks in order, each with a `reason` and a `user_stack` of code lines."""
    # Lazy: as above.
    from torch._dynamo.utils import graph_break_reasons

    return graph_break_reasons


def last_compilations() -> Sequence[Any]:
    """The last compilations of this process, in order: each may have a `recompile_reason`."""
    # Lazy: as above.
    from torch._dynamo.utils import get_compilation_metrics

    return get_compilation_metrics()


def parameter_groups(unit: FSDPModule) -> Sequence[Any]:
    """The groups of parameters that a unit of FSDP gathers and reduces, each at once."""
    state: Any = fully_shard.state(unit)  # type: ignore[attr-defined]
    if hasattr(state, "_fsdp_param_groups"):
        groups: Sequence[Any] = state._fsdp_param_groups
        return groups
    # Before 2.13 a unit had one group, or none.
    return [state._fsdp_param_group] if state._fsdp_param_group else []


def on_local_parts(kind: type[Optimizer]) -> type[Optimizer]:
    """A kind of optimizer that updates this rank's parts of DTensors. Its state must be updated in place.

    DTensor's own handling of the lists of a fused kernel takes four times as long as the call itself, and
    the device waits for it.
    """

    class OnLocalParts(kind):  # type: ignore[valid-type, misc]
        def _init_group(self, group: dict[str, Any], *lists: list[Any]) -> bool:
            found: bool = super()._init_group(group, *lists)
            for members in lists:
                members[:] = (getattr(one, "_local_tensor", one) for one in members)
            return found

    # Traces and checkpoints name an optimizer by its class.
    OnLocalParts.__name__ = kind.__name__
    return OnLocalParts


@contextmanager
def dividing_gradients(optimizer: Optimizer, scale: Tensor) -> Iterator[None]:
    """Inside, a fused optimizer divides gradients as it reads them, as it does for torch's GradScaler."""
    optimizer.grad_scale = scale  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del optimizer.grad_scale  # type: ignore[attr-defined]


def end_backward_of(unit: FSDPModule) -> None:
    """Let a unit take in the gradients of its weights, and reduce them if it is to.

    FSDP reduces gradients of one dtype: those that backward has left were put in the dtype of reduction.
    """
    for group in parameter_groups(unit):
        reduces = group.reduce_grads
        for group.reduce_grads in (False, True) if reduces else (False,):
            group.post_backward()


def finish_backward(model: FSDPModule) -> None:
    """Let all units of FSDP take in, and reduce if they are to, gradients that came without a backward of
    their modules: what they do at the end of a backward. PyTorch's own pipelines call the same."""
    fully_shard.state(model)._root_post_backward_final_callback()  # type: ignore[attr-defined]


def forward_order(model: FSDPModule) -> Sequence[FSDPModule]:
    """The units of FSDP in the order in which their forwards ended, since the last backward of a step.

    FSDP gathers ahead by this order, which has no public name.
    """
    context = fully_shard.state(model)._comm_ctx  # type: ignore[attr-defined]
    return [group.modules[0] for group in context.post_forward_order]


# Where a thread waits for a collective to end, by owner and name: the work handles that torch.distributed
# returns, and DTensor's collectives, which planc's attention waits for under its own name.
WAITS: Final[Any] = (
    (Work, "wait"),
    (functional_collectives, "wait_tensor"),
    (sys.modules[__name__], "wait_tensor"),
)
