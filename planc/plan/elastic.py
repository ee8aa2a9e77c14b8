"""The `elastic` block: smaller meshes for a run that loses ranks."""

from __future__ import annotations

from planc.plan.keys import key, keyed
from planc.plan.scalars import Int
from planc.plan.types import List
from planc.vocab import MeshDim


@keyed
class ElasticSpec:
    """Smaller meshes on which a run may continue from its last checkpoint after it loses nodes.

    The tokens per step stay the same: fewer ranks accumulate more micro-batches.
    """

    on: tuple[MeshDim, ...]
    sizes: tuple[int, ...] = key(List(Int(1)), doc="further sizes of the mesh dim", example="[2, 1]")
    max_restarts: int = key(
        Int(1), unsaid=3, doc="number of times that torchrun restarts the ranks; `planc launch` writes it"
    )
