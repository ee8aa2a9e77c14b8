"""The graph itself, and the hash of its meaning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from planc.graph.op import Op
from planc.graph.ops import (
    OPS,
    Accumulate,
    AttachAdapters,
    BuildModel,
    CapExperts,
    FreezeParameters,
    InitMesh,
    QuantizeBase,
    ShardExperts,
    SplitPipeline,
)
from planc.pipelining.order_text import order_text
from planc.pipelining.orders import Action
from planc.record import record
from planc.vocab import MESH_DIMS, DType, ExpertDim, GroupDim, MeshDim

if TYPE_CHECKING:
    AnyOp: TypeAlias = Op
else:
    # pydantic distinguishes the ops of an artifact by this union, which a type checker can't read.
    AnyOp = Union[OPS]  # noqa: UP007


@record
class Graph:
    """Three op sequences: `setup` runs once, `step` once per optimizer step, `save` when its policy applies.

    `mesh` has every mesh dim with its size, outermost first. `name` is the plan's, and not part of the
    graph's meaning.
    """

    name: str
    mesh: tuple[tuple[MeshDim, int], ...]
    num_steps: int
    setup: tuple[AnyOp, ...]
    step: tuple[AnyOp, ...]
    save: tuple[AnyOp, ...]

    @property
    def world_size(self) -> int:
        product = 1
        for _, size in self.mesh:
            product *= size
        return product

    @property
    def init_mesh(self) -> InitMesh:
        """The first op of every verified graph."""
        found = self.setup[0]
        assert isinstance(found, InitMesh), "verified graphs start with mesh.init"
        return found

    @property
    def dp_size(self) -> int:
        """Ranks that see different samples."""
        return self.size(MeshDim.DP_REPLICATE) * self.size(MeshDim.DP_SHARD)

    def size(self, dim: GroupDim) -> int:
        """The ranks of a mesh dim, or of a factor of mesh dims."""
        if isinstance(dim, MeshDim):
            return dict(self.mesh)[dim]
        size = self._of_factors.size
        return size if dim is ExpertDim.EP else prod(map(self.size, self.mesh_dims(dim))) // size

    def stride(self, dim: GroupDim) -> int:
        """The difference in rank of neighbors along a dim."""
        if isinstance(dim, MeshDim):
            return prod(size for inner, size in self.mesh if MESH_DIMS.index(inner) > MESH_DIMS.index(dim))
        innermost = self.stride(self.mesh_dims(dim)[-1])
        return innermost if dim is ExpertDim.EP else innermost * self.size(ExpertDim.EP)

    def mesh_dims(self, dim: GroupDim) -> tuple[MeshDim, ...]:
        """The mesh dims, neighbors of each other, that a dim is or is a factor of."""
        return (dim,) if isinstance(dim, MeshDim) else self._of_factors.over

    @property
    def _of_factors(self) -> ShardExperts:
        op = self.experts
        assert op is not None, "only a graph with experts.shard has factors of mesh dims"
        return op

    @property
    def experts(self) -> ShardExperts | None:
        """The op that gives ranks different experts; None if all ranks hold all of them."""
        return next((op for op in self.setup if isinstance(op, ShardExperts)), None)

    @property
    def routes_shards(self) -> bool:
        """Whether each rank of tp sends experts the tokens of its own shard of sequences."""
        return self.experts is not None and MeshDim.TP in self.experts.over

    @property
    def capacity(self) -> CapExperts | None:
        """The op that limits the tokens of experts; None if they take all."""
        return next((op for op in self.setup if isinstance(op, CapExperts)), None)

    @property
    def adapters(self) -> AttachAdapters | None:
        """The op that adds adapters to layers."""
        return next((op for op in self.setup if isinstance(op, AttachAdapters)), None)

    @property
    def other_dtypes(self) -> dict[str, DType]:
        """The dtype of every parameter and buffer that is not of the model's dtype."""
        build = next(op for op in self.setup if isinstance(op, BuildModel))
        if self.adapters is None or self.adapters.dtype is None:
            return build.other_dtypes
        return build.other_dtypes | dict.fromkeys(self.adapters.parameters, self.adapters.dtype)

    @property
    def quantized(self) -> QuantizeBase | None:
        """The op that stores weights in 4 bits."""
        return next((op for op in self.setup if isinstance(op, QuantizeBase)), None)

    @property
    def frozen(self) -> tuple[str, ...]:
        """The names of the parameters that no step changes, also of their copies in other stages."""
        freezes = (op for op in self.setup if isinstance(op, FreezeParameters))
        names = tuple(name for op in freezes for name in op.parameters)
        ties = (tie for op in self.setup if isinstance(op, SplitPipeline) for tie in op.ties)
        return (*names, *(copy for first, *copies in ties if first in names for copy in copies))

    def ops(self) -> Iterator[Op]:
        """Every op in order, with bodies after the ops that contain them."""
        for op in (*self.setup, *self.step, *self.save):
            yield op
            if isinstance(op, Accumulate):
                yield from op.body


UNKNOWN_STEPS = 0
"""The steps of a plan that counts epochs, until its data is prepared. Such a graph is shown, never run."""


def plan_hash(graph: Graph) -> str:
    """The SHA-256 of the graph's meaning, whatever the plan's layout, comments, order, name and positions."""
    meaning = plain(graph, without=("name", "span"))
    text = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def plain(value: Any, *, without: tuple[str, ...] = ()) -> Any:
    """A graph, or a part of it, as JSON has it, without the fields of some names."""
    match value:
        case (Action(), *_):
            return order_text(value)
        case tuple():
            return [plain(item, without=without) for item in value]
        case _ if is_dataclass(value):
            names = (field.name for field in fields(value) if field.name not in without)
            return {name: plain(getattr(value, name), without=without) for name in names}
        case _:
            return value
