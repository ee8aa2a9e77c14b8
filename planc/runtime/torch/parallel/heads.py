"""Attentions that compute a rank's share of the heads."""

from __future__ import annotations

from torch import nn

from planc.graph.ops import ShareHeads
from planc.modeling.head_counts import Share, cut_arguments, set_at, value_at
from planc.runtime.errors import RunError
from planc.runtime.model_files import STALE
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.run import Run


def share_heads(run: Run, op: ShareHeads, mesh: Mesh, model: nn.Module, pipeline: Pipeline | None) -> None:
    """Divide the attributes by which the code of attentions counts its heads, and cut arguments by head."""
    (mesh_dim,) = op.over
    ranks = mesh.submesh(mesh_dim)
    for fqn in held(pipeline, op.modules):
        attention = model.get_submodule(fqn)
        for paths, number in _divisors(op, num_ranks=ranks.size()):
            for path in paths:
                value = value_at(attention, path)
                if value is None or value % number:
                    message = f"`{fqn}.{path}` is {value!r}, which {number} ranks can't share"
                    raise RunError(message, help=STALE)
                set_at(attention, path, value // number)
        for argument in op.arguments:
            share = Share(ranks.get_local_rank(), ranks.size(), argument.num_heads)
            cut_arguments(
                attention, ((argument.argument, argument.tensor_dim, argument.is_per_sample),), share
            )


def _divisors(op: ShareHeads, *, num_ranks: int) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Attributes, and what they are divided by."""
    return (op.counts, num_ranks), (op.group_counts, op.copies), (op.kv_counts, num_ranks // op.copies)
