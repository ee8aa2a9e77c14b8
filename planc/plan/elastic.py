"""The `elastic` block: what a run may shrink to when ranks are lost."""

from __future__ import annotations

from planc.plan.scalars import Int
from planc.plan.types import List, key
from planc.record import record
from planc.vocab import MeshDim


@record
class ElasticSpec:
    """Smaller meshes that a run may go on with, after nodes are lost, from its last checkpoint.

    A step's tokens stay as they are: fewer ranks accumulate more micro-batches.
    """

    on: tuple[MeshDim, ...]
    sizes: tuple[int, ...] = key(
        List(Int(1)), doc="sizes that the dim may have besides the mesh's own", example="[2, 1]"
    )
    max_restarts: int = key(
        Int(1), default=3, doc="how often torchrun starts the ranks again; `planc launch` writes it"
    )
