"""Attentions that compute a rank's share of the heads."""

from __future__ import annotations

from planc.graph.ops import ShareHeads
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.session import Session
from planc.runtime.torch.weights.build import STALE


def share_heads(session: Session, op: ShareHeads, position: Position) -> None:
    """Divide the attributes by which the code of attentions counts its heads."""
    (mesh_dim,) = op.over
    num_ranks = session.submesh(mesh_dim).size()
    for fqn in op.modules:
        for path in op.counts:
            owner, _, name = path.rpartition(".")
            module = session.model.get_submodule(f"{fqn}.{owner}" if owner else fqn)
            value = getattr(module, name, None)
            if type(value) is not int or value % num_ranks:
                raise RunError(
                    f"`{fqn}.{path}` is {value!r}, which {num_ranks} ranks can't share",
                    help=STALE,
                )
            setattr(module, name, value // num_ranks)
