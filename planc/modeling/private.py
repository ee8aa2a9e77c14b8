"""Every name that models are read and built with from a private part of PyTorch, one reason each."""

from __future__ import annotations

# A tensor without values, in a rehearsal.
from torch._subclasses.fake_tensor import FakeTensor

# Sees every op that is called, below autograd: probes, draws of weights and the rehearsal follow tensors so.
# Constants of a model are computed with values also where a rehearsal makes tensors without them.
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# The tensors of an op's arguments, however they are nested.
from torch.utils._pytree import tree_leaves, tree_map_only

with_values = _disable_current_modes

__all__ = ["FakeTensor", "TorchDispatchMode", "tree_leaves", "tree_map_only", "with_values"]
