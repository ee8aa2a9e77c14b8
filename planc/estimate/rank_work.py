"""The work of one rank in a micro step: the sizes that all formulas use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from planc.devices.attention_kernels import ring_steps
from planc.estimate.gradient_flow import GradientFlow, everywhere, gradient_flow
from planc.estimate.layout import ParameterLayout, layouts
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import (
    Accumulate,
    AttachAttention,
    AttachDropout,
    BuildDistillationLoss,
    BuildLoss,
    BuildModel,
    BuildOptimizer,
    BuildPreferenceLoss,
    CheckpointActivations,
    CompileModules,
    ComputeLoss,
    Draw,
    FreezeParameters,
    FullyShard,
    LoadLoss,
    OpenData,
    Rows,
    ShardTensorParallel,
    SplitPipeline,
)
from planc.inventory.adapters import is_magnitude
from planc.inventory.footprint import NOTHING, ONE_OPERATION, Footprint, OwnCode
from planc.inventory.schema import Attention, Inventory, Kind, Module
from planc.record import record
from planc.styles import BY_NAME, StyleUse
from planc.styles.edges import FEATURES, SEQUENCE, Edge
from planc.vocab import DROP, DType, GroupDim, MeshDim, Replicate, ancestors, is_sharded, outwards, parent_of

AnOp = TypeVar("AnOp", bound=Op)


@record
class Core:
    """A layer, a part of one, the stem around layers or an attention, with what its own code keeps for
    backward, if that is known."""

    module: Module
    code: OwnCode | None
    attention: Attention | None
    """The attention of its own call of a kernel."""
    has_kernel: bool
    """Whether it is an attention, or around one."""
    is_layer: bool
    is_stem: bool
    """Whether it is what holds layers."""

    @property
    def is_part(self) -> bool:
        return not (self.is_layer or self.is_stem)

    @property
    def mixes_tokens(self) -> bool:
        return self.has_kernel or (self.code is not None and any(self.code.by_pair))


@record
class RankWork:
    """A graph and its model, with lookups for the formulas.

    `num_tokens` are a rank's tokens of one micro step before tensor parallelism shards any: micro_batch x
    sequence_length / cp. `times` micro steps make a step.
    """

    graph: Graph
    inventory: Inventory
    layouts: Mapping[str, ParameterLayout]
    styles: Mapping[str, StyleUse]
    """Styles by module fqn, if tensor parallelism shards over more than one rank."""
    edges: Mapping[str, tuple[Edge, ...]]
    """The transfers at the edges of these modules."""
    rows: Mapping[str, Rows]
    """The output features that a rank computes of layers with replicated parameters."""
    with_columns: frozenset[str]
    """Modules around a layer that computes its own columns of an output: their heads are sharded."""
    divides_sequence: bool
    """Whether the residual stream is sharded along the sequence over tp."""
    checkpointed: frozenset[str]
    selective: frozenset[str]
    """The checkpointed modules that keep results which are expensive to compute."""
    offloaded: tuple[str, ...]
    """The checkpointed modules whose input waits in the host's memory."""
    flow: GradientFlow
    """The reach of backward: what is checkpointed elsewhere is not recomputed, and not in `checkpointed`."""
    num_tokens: int
    sequence_length: int
    tokens_per_step: int
    """The tokens of all ranks."""
    times: int
    model_dtype: DType
    compute_dtype: DType
    """The dtype of activations: `fsdp.param_dtype`, or the model's."""
    reduce_dtype: DType
    """The dtype of gradient reduction: `fsdp.reduce_dtype`, or the compute dtype."""
    offloads: bool
    """Whether the shards of parameters and gradients, and the optimizer's state, are in host memory."""
    attention: AttachAttention
    is_compiled: bool
    """Whether any module is compiled."""
    fused: frozenset[str]
    """The modules that inductor compiles, and those inside."""
    optimizer: BuildOptimizer
    vocab_over: tuple[MeshDim, ...]
    loss_chunks: int
    """Parts of the tokens whose logits exist at a time."""
    fuses_loss: bool
    """Whether one kernel computes the loss of logits, and one their gradient."""
    has_own_loss: bool
    """Whether the plan's own code computes the loss, of logits of the whole vocabulary."""
    tp: int
    cp: int
    around: Mapping[str, str]
    """The checkpointed module around each module inside one."""
    owners: Mapping[str, str]
    """The owner of each parameter that is tied."""
    draws: Mapping[str, tuple[Draw, ...]]
    """The dropouts of modules."""
    ties: tuple[tuple[str, ...], ...]
    """The names of each weight that both ends of a pipeline have, the first stage's first."""
    deferred: frozenset[str]
    """The linear layers whose weights have gradients apart from their backward."""
    cores: Mapping[str, Core]
    """The modules whose own code is known, and attentions."""

    read_before: frozenset[str]
    """The norms that keep only their input, of which another norm before them keeps the same."""
    expert_load: int
    """The rows that this rank's experts get from all ranks, as a multiple of an equal share."""

    @property
    def has_loss_terms(self) -> bool:
        """True if cross entropy has other terms, which one function computes."""
        of_one_function = BuildLoss | BuildPreferenceLoss | BuildDistillationLoss
        return any(isinstance(op, of_one_function) for op in self.graph.setup)

    @property
    def num_samples(self) -> int:
        """Sequences of one micro step."""
        return self.num_tokens * self.cp // self.sequence_length

    def ring_steps(self, window: int | None) -> int:
        """The steps of a ring at which some rank sees a part of the shard that visits it."""
        hiding = window if window is not None and window < self.sequence_length else None
        is_headtail = self.attention.balance == "headtail"
        length = self.sequence_length // self.cp
        return len(ring_steps(self.cp, length=length, window=hiding, is_headtail=is_headtail))

    @property
    def loss_bytes(self) -> int:
        """Bytes of an element in the loss, which is never computed in less than float32."""
        return max(4, self.compute_dtype.size_bytes)

    def by_size(self, sizes: tuple[int, int]) -> int:
        """The bytes in the compute dtype, of those where elements have two bytes and where they have four."""
        narrow, wide = sizes
        return narrow + (wide - narrow) * (self.compute_dtype.size_bytes - 2) // 2

    @property
    def fsdp(self) -> FullyShard | None:
        """FSDP of the root, if it has more than experts of ranks of tp."""
        units = (op for op in self.graph.setup if isinstance(op, FullyShard))
        return next((op for op in units if ("",) in op.groups), None)

    def footprint(self, norm: Module) -> Footprint:
        """The tensors that a norm keeps for backward: its input alone, if it is fused."""
        return norm.footprint if self._is_apart(norm, norm.footprint) else ONE_OPERATION

    def activation(self, source: Module) -> Footprint:
        """The tensors that the activation function after a linear layer keeps for backward."""
        return source.activation if self._is_apart(source, source.activation) else ONE_OPERATION

    def _is_apart(self, module: Module, footprint: Footprint) -> bool:
        return module.fqn not in self.fused or footprint == NOTHING

    def module(self, fqn: str) -> Module:
        found = self.inventory.get(fqn)
        assert found is not None, f"{fqn} is a module of this inventory"
        return found

    def tp_shape(self, module: Module) -> tuple[int, ...] | None:
        """The shape of the weight that a rank computes with, a linear layer's as [out, in]; None without a
        weight."""
        found = self.layout(f"{module.fqn}.weight")
        if found is None:
            return None
        shape = found.tp_shape[::-1] if module.kind is Kind.CONV1D else found.tp_shape
        rows = self.rows.get(module.fqn)
        return (rows.num_own(self.tp), *shape[1:]) if rows else shape

    @property
    def with_gradients(self) -> Mapping[str, ParameterLayout]:
        """The layouts of the parameters that training gives a gradient."""
        return {fqn: one for fqn, one in self.layouts.items() if one.has_gradient}

    def has_gradient(self, fqn: str) -> bool:
        """Whether training gives a parameter a gradient."""
        found = self.layout(fqn)
        return found is not None and found.has_gradient

    def is_passed(self, fqn: str) -> bool:
        """Whether backward passes a module: its output has a gradient."""
        return fqn in self.flow.outputs

    def trains(self, module: Module, parameter: str = "weight") -> bool:
        """Whether a module's parameter is not frozen: for its gradient the module keeps its input."""
        found = self.layout(f"{module.fqn}.{parameter}")
        return found is None or not found.is_frozen

    def layout(self, fqn: str) -> ParameterLayout | None:
        """A parameter's layout; of one that is tied, its owner's."""
        return self.layouts.get(fqn) or self.layouts.get(self.owners.get(fqn, fqn))

    def dividing(self, layout: ParameterLayout) -> tuple[tuple[GroupDim, ...], ...]:
        """The mesh dims that shard a parameter and its gradient, grouped as its DTensor's mesh flattens
        them."""
        return tuple(
            mesh_dims
            for mesh_dims, placement in layout.placements
            if is_sharded(placement) and (mesh_dims != (MeshDim.TP,) or layout.module in self.styles)
        )

    @property
    def tied_layouts(self) -> tuple[ParameterLayout, ...]:
        """Layouts of the weights that the other end of a pipeline has too."""
        return tuple(self.layouts[fqn] for tie in self.ties for fqn in tie if fqn in self.layouts)

    def multiplies_again(self, module: Module) -> bool:
        """Whether a layer of DoRA computes twice: on its input, and on what dropout leaves of it."""
        return is_magnitude(module.fqn) and f"{parent_of(module.fqn)}.{DROP}" in self.draws

    def checkpoint_around(self, fqn: str) -> str | None:
        """The module around this one that backward recomputes."""
        return self.around.get(fqn)

    def region(self, fqn: str) -> str | None:
        """The module that backward recomputes: this one, or one around it."""
        return fqn if fqn in self.checkpointed else self.checkpoint_around(fqn)

    def heads(self, attention: Attention) -> tuple[int, int]:
        """Query heads and key-value heads on this rank; sharded if a layer inside computes columns."""
        parts = self.tp if attention.fqn in self.with_columns else 1
        return -(-attention.num_heads // parts), -(-attention.num_kv_heads // parts)


def rank_work(graph: Graph, inventory: Inventory, *, expert_load: int = 1) -> RankWork:
    """The work of a graph's rank 0. The inventory must be of the graph's model, or of a part of it."""
    ops = tuple(graph.ops())
    build, data = _first(ops, BuildModel), _first(ops, OpenData)
    attention, loop, loss = _first(ops, AttachAttention), _first(ops, Accumulate), _first(ops, ComputeLoss)
    # The root's dtype, which comes last: a unit of parameters kept in float32 is not cast.
    unit = next((op for op in reversed(ops) if isinstance(op, FullyShard)), None)
    compute = unit.param_dtype if unit and unit.param_dtype else build.dtype
    of_all = _sharding(ops)
    sharding = {fqn: op for fqn, op in of_all.items() if inventory.get(fqn) is not None}
    styles = {fqn: op.use for fqn, op in sharding.items()}
    parameters = {layout.fqn: layout for layout in layouts(graph, inventory)}
    flow = _flow(ops, inventory, parameters)
    recomputed = _recomputed(ops, flow)
    return RankWork(
        graph=graph,
        inventory=inventory,
        layouts=parameters,
        styles=styles,
        edges={fqn: op.edges for fqn, op in sharding.items()},
        rows={fqn: op.rows for fqn, op in sharding.items() if op.rows},
        with_columns=frozenset(
            ancestor
            for fqn, use in styles.items()
            if use.output == FEATURES and use.computes_on == Replicate()
            for ancestor in ancestors(fqn)
        ),
        # What shards the stream may be on another stage of a pipeline.
        divides_sequence=any(_shards_stream(op.use) for op in of_all.values()),
        checkpointed=frozenset(recomputed),
        selective=frozenset(fqn for fqn, mode in recomputed.items() if mode == "selective"),
        offloaded=tuple(fqn for fqn, mode in recomputed.items() if mode == "offload"),
        flow=flow,
        num_tokens=data.micro_batch * data.sequence_length // graph.size(MeshDim.CP),
        sequence_length=data.sequence_length,
        tokens_per_step=data.global_batch * data.sequence_length,
        times=loop.times,
        model_dtype=build.dtype,
        compute_dtype=compute,
        reduce_dtype=unit.reduce_dtype if unit and unit.reduce_dtype else compute,
        offloads=unit is not None and unit.cpu_offload,
        attention=attention,
        optimizer=_first(ops, BuildOptimizer),
        vocab_over=loss.vocab_over if inventory.vocab_size else (),
        loss_chunks=loss.chunks if inventory.vocab_size else 1,
        fuses_loss=any(isinstance(op, CompileModules) and op.fuses and op.loss for op in ops),
        has_own_loss=any(isinstance(op, LoadLoss) for op in ops),
        is_compiled=any(isinstance(op, CompileModules) for op in ops),
        fused=_fused(ops, inventory),
        tp=graph.size(MeshDim.TP),
        cp=graph.size(MeshDim.CP),
        around=dict(_around(inventory, recomputed)),
        owners={fqn: tie[0] for tie in reversed(inventory.ties) for fqn in tie},
        ties=next((op.ties for op in ops if isinstance(op, SplitPipeline)), ()),
        deferred=frozenset(fqn for op in ops if isinstance(op, SplitPipeline) for fqn in op.deferred),
        cores={one.module.fqn: one for one in _cores(inventory, attention.kind)},
        read_before=frozenset(_read_before(inventory)),
        expert_load=expert_load,
        draws={fqn: op.draws for op in ops if isinstance(op, AttachDropout) for fqn in op.modules},
    )


def _recomputed(ops: tuple[Op, ...], flow: GradientFlow) -> Mapping[str, str]:
    """The modes of the checkpointed modules that backward passes, in order."""
    wrapped = (op for op in ops if isinstance(op, CheckpointActivations))
    return {fqn: op.mode for op in wrapped for fqn in op.modules if fqn in flow.outputs}


def _around(inventory: Inventory, recomputed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for module in inventory.modules:
        if around := next((name for name in ancestors(module.fqn) if name in recomputed), None):
            yield module.fqn, around


def _flow(
    ops: tuple[Op, ...], inventory: Inventory, parameters: Mapping[str, ParameterLayout]
) -> GradientFlow:
    if not any(isinstance(op, FreezeParameters) for op in ops):
        return everywhere(inventory)
    names = {fqn for fqn, layout in parameters.items() if layout.has_gradient}
    names |= {name for tie in inventory.ties if tie[0] in names for name in tie}
    return gradient_flow(
        inventory,
        trained={parent_of(name) for name in names},
        is_stage=any(isinstance(op, SplitPipeline) for op in ops),
    )


def _fused(ops: tuple[Op, ...], inventory: Inventory) -> frozenset[str]:
    compiling = (op for op in ops if isinstance(op, CompileModules) and op.fuses)
    compiled = {fqn for op in compiling for fqn in op.modules}
    if not compiled:
        return frozenset()
    return frozenset(fqn for fqn in inventory.names() if not compiled.isdisjoint(outwards(fqn)))


def _cores(inventory: Inventory, kind: str) -> Iterator[Core]:
    attentions = {one.fqn: one for one in inventory.attentions}
    around = {name for fqn in attentions for name in outwards(fqn)}
    stems = {parent_of(block) for block in inventory.blocks}
    for module in inventory.modules:
        code = module.eager_code if kind == "eager" else module.own_code
        if code is not None or module.fqn in attentions:
            yield Core(
                module,
                code,
                attentions.get(module.fqn),
                has_kernel=module.fqn in around,
                is_layer=inventory.is_layer(module.fqn),
                is_stem=module.fqn in stems,
            )


def _read_before(inventory: Inventory) -> Iterator[str]:
    """Norms of whole hidden states: those of heads read parts of a tensor that have the same sources."""
    seen: set[tuple[str, ...]] = set()
    for module in inventory.modules:
        is_whole = any(one.shape == (inventory.hidden_size,) for one in module.parameters)
        if module.kind is Kind.NORM and is_whole and module.footprint.kept == ONE_OPERATION.kept:
            if module.sources in seen:
                yield module.fqn
            seen.add(module.sources)


def _sharding(ops: tuple[Op, ...]) -> dict[str, ShardTensorParallel]:
    return {
        fqn: op
        for op in ops
        if isinstance(op, ShardTensorParallel) and op.over and op.use.style != "replicate"
        for fqn in op.modules
    }


def _first(ops: tuple[Op, ...], kind: type[AnOp]) -> AnOp:
    found = next((op for op in ops if isinstance(op, kind)), None)
    assert found is not None, f"every graph has a {kind.__name__}"
    return found


def _shards_stream(use: StyleUse) -> bool:
    """Whether hidden states between layers are shards of the sequence from this module on."""
    style = BY_NAME[use.style]
    is_table = style.kinds == (Kind.EMBEDDING,)
    return (is_table and use.output == SEQUENCE) or (style.prepares and use.computes_on == SEQUENCE)
