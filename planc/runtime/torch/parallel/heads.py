"""Attentions that compute a rank's share of the heads."""

from __future__ import annotations

from planc.graph.ops import ShareHeads
from planc.modeling.head_counts import Share, cut_arguments, set_at, value_at
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.session import Session
from planc.runtime.torch.weights.build import STALE


def share_heads(session: Session, op: ShareHeads, position: Position) -> None:
    """Divide the attributes by which the code of attentions counts its heads, and cut arguments by head."""
    (mesh_dim,) = op.over
    mesh = session.submesh(mesh_dim)
    for fqn in session.held(op.modules):
        attention = session.model.get_submodule(fqn)
        for paths, number in _divisors(op, num_ranks=mesh.size()):
            for path in paths:
                value = value_at(attention, path)
                if value is None or value % number:
                    message = f"`{fqn}.{path}` is {value!r}, which {number} ranks can't share"
                    raise RunError(message, help=STALE)
                set_at(attention, path, value // number)
        for one in op.arguments:
            share = Share(mesh.get_local_rank(), mesh.size(), one.num_heads)
            cut_arguments(attention, ((one.argument, one.tensor_dim, one.is_per_sample),), share)


def _divisors(op: ShareHeads, *, num_ranks: int) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Attributes, and what they are divided by."""
    return (op.counts, num_ranks), (op.group_counts, op.copies), (op.kv_counts, num_ranks // op.copies)
