"""Every name that models are read and built with from a private part of PyTorch, one reason each."""

from __future__ import annotations

# Sees every op that is called, below autograd: probes, draws of weights and the rehearsal follow tensors so.
from torch.utils._python_dispatch import TorchDispatchMode

# The tensors of an op's arguments, however they are nested.
from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["TorchDispatchMode", "tree_leaves", "tree_map_only"]
