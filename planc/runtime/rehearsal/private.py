"""Every name the rehearsal takes from a private part of PyTorch, one reason each."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
import torch._subclasses.fake_impls as fake_impls
import torch.distributed.tensor._redistribute as dtensor_redistribute
import torch.distributed.tensor._sharding_prop as dtensor_sharding_prop
import torch.distributed.tensor.debug as dtensor_debug
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import get_default_op_list, min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

# Importing it registers the "fake" backend: collectives that return at once, for a world of any size.
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

# What fake tensors do in place of an op whose own shape function is wrong or missing.
fake_implementations: Final[dict[Any, Any]] = fake_impls.op_implementations_dict

# Where DTensor tries an op out to learn the shape of its result; a rank does not compute it.
ShardingPropagator: Final[Any] = dtensor_sharding_prop.ShardingPropagator

# Where FSDP ends a backward: it frees what units hold until then, in no layer's backward.
fsdp_state: Final[Any] = FSDPState

# DTensor remembers how it sharded each op, meshes and their groups included; equal meshes of the next world
# would meet the last world's groups.
clear_sharding_cache: Final[Any] = dtensor_debug._clear_sharding_prop_cache
clear_redistribute_cache: Final[Any] = dtensor_redistribute.clear_redistribute_planner_cache

# Dynamo traces nothing while a mode follows what is dispatched.
disable_current_modes: Final[Any] = _disable_current_modes

# How torch.compile divides a module into forward and backward before inductor gets them, and which of their
# ops inductor fuses.
min_cut_partition: Final[Any] = functools.partial(min_cut_rematerialization_partition, compiler="inductor")
partitioner_ops: Final[Any] = get_default_op_list


def is_in_backward() -> bool:
    """Whether autograd calls this, as it does what backward recomputes."""
    return torch._C._current_graph_task_id() != -1


def inductor_decompositions() -> Any:
    """The ops that inductor takes apart. Imports inductor, which takes a second."""
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


__all__ = [
    "FakeStore",
    "FakeTensor",
    "FakeTensorMode",
    "ShardingPropagator",
    "aot_autograd",
    "clear_redistribute_cache",
    "clear_sharding_cache",
    "disable_current_modes",
    "fake_implementations",
    "fsdp_state",
    "inductor_decompositions",
    "is_in_backward",
    "min_cut_partition",
    "partitioner_ops",
]
