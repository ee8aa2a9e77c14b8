"""The layers that a rehearsal runs: of equal layers, only a few need to run.

Two layers of a list are equal if their modules have the same types, shapes and settings, and the graph does
the same to them. Of each kind the first two and the last two run; what the rest would add is linear in their
number, which `measure.py` relies on and a test proves on full stacks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from torch import nn

from planc.graph import ops
from planc.graph.graph import AnyOp, Graph
from planc.modeling.layers import EqualLayers, equal_layers, layer_lists
from planc.runtime.torch.checkpoint.tensors import outline_of_all_stages


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers of a model by kind."""

    kinds: tuple[EqualLayers, ...]

    def dropped(self, *, keeping: str | None = None) -> frozenset[str]:
        """The layers that do not run; `keeping` runs in addition to those of each kind."""
        return frozenset({layer for kind in self.kinds for layer in kind.left_out} - {keeping})

    def all_but_one_of_each(self) -> frozenset[str]:
        """The layers that do not run if only failures matter."""
        return frozenset(layer for kind in self.kinds for layer in kind.layers[1:])

    @property
    def repeated(self) -> tuple[EqualLayers, ...]:
        """Kinds of which some layers are left out."""
        return tuple(kind for kind in self.kinds if kind.left_out)


def stack_of(model: nn.Module, graph: Graph) -> Stack:
    """The kinds of layers of a model on meta, before anything was done to it."""
    treatment = _treatment(graph)
    for layer, end in _ends_of_backward(model, graph):
        treatment[layer].append(end)
    kinds = equal_layers(model, treatment=lambda layer: _within(treatment, layer))
    return Stack(tuple(kind for kind in kinds if not _is_held_with_others(kind.layers[0], graph)))


def _ends_of_backward(model: nn.Module, graph: Graph) -> Iterator[tuple[str, str]]:
    """The layer of the lowest trained parameter, if no other module's is below it, and the layers below.

    Backward ends there, so other layers with the same treatment have more to do.
    """
    frozen = frozenset(graph.frozen)
    names = [name for name, _ in model.named_parameters()]
    lowest = next((index for index, name in enumerate(names) if name not in frozen), 0)
    for fqn, children in layer_lists(model):
        for child, _ in children.named_children():
            own = [index for index, name in enumerate(names) if name.startswith(f"{fqn}.{child}.")]
            if frozen and own and own[0] <= lowest:
                yield f"{fqn}.{child}", "before backward's end" if own[-1] < lowest else "backward's end"


def rehearsed_stack(model: nn.Module, graph: Graph) -> Stack:
    """The kinds of which a few layers need to run: not those with layers that share a message over replicas,
    whose length is not linear in the number of layers, nor layers whose parameters are gathered further ahead
    than by the layer before."""
    if any(isinstance(op, ops.PrefetchUnits) for op in graph.setup):
        return Stack(())
    stack = stack_of(model, graph)
    every = [layer for kind in stack.kinds for layer in kind.layers]
    frozen = frozenset(graph.frozen)
    trained = (pair for pair in model.named_parameters() if pair[0] not in frozen)
    sizes = [(name, parameter.dtype, parameter.nbytes) for name, parameter in trained]
    sums = (op for op in graph.step if isinstance(op, ops.AllReduceGradients))
    together: set[str] = set()
    for names in (names for op in sums for names in op.messages(sizes)):
        layers = [layer for layer in every if any(name.startswith(f"{layer}.") for name in names)]
        together.update(layers if len(layers) > 1 else ())
    return Stack(tuple(kind for kind in stack.kinds if together.isdisjoint(kind.layers)))


def by_stage(stack: Stack, split: ops.SplitPipeline) -> Stack:
    """The kinds of each stage of a pipeline."""
    pairs = product(split.stages, stack.kinds)
    found = (tuple(layer for layer in kind.layers if layer in stage) for stage, kind in pairs)
    return Stack(tuple(map(EqualLayers, filter(None, found))))


def _is_held_with_others(layer: str, graph: Graph) -> bool:
    """Whether a unit of FSDP holds a layer of the same list with anything else: then all must run."""
    inside = f"{layer.rpartition('.')[0]}."
    groups = (group for op in graph.setup if isinstance(op, ops.FullyShard) for group in op.groups)
    return any(len(group) > 1 and any(name.startswith(inside) for name in group) for group in groups)


def _treatment(graph: Graph) -> dict[str, list[object]]:
    """Return what setup does to each module and parameter, by fqn."""
    treatment: dict[str, list[object]] = defaultdict(list)
    for index, op in enumerate(graph.setup):
        match op:
            case ops.ShardTensorParallel():
                # Two ops that do the same to different modules are equal; the modules themselves differ
                # enough.
                for fqn in op.modules:
                    treatment[fqn].append((op.name, op.use, op.parameters))
            case ops.AttachDropout():
                for fqn in op.modules:
                    treatment[fqn].append((op.name, op.draws))
            case ops.ShareHeads():
                for fqn in op.modules:
                    treatment[fqn].append((op.name, op.counts, op.arguments))
            case ops.ShardExperts() | ops.CapExperts() | ops.AttachAdapters() | ops.QuantizeBase():
                for fqn in op.modules:
                    treatment[fqn].append((op.name,))
            case ops.CheckpointActivations(mode=mode) | ops.CompileModules(mode=mode):
                for fqn in op.modules:
                    treatment[fqn].append((op.name, mode))
            case ops.FullyShard(groups=groups):
                for (fqn,) in (group for group in groups if len(group) == 1):
                    treatment[fqn].append((op.name, index))
            case ops.FreezeParameters(parameters=parameters):
                for fqn in parameters:
                    treatment[fqn].append((op.name,))
            case ops.BuildOptimizer(groups=groups):
                for group in groups:
                    for fqn in group.parameters:
                        treatment[fqn].append((op.name, group.weight_decay, group.lr))
    return treatment


def _within(treatment: dict[str, list[object]], layer: str) -> tuple[object, ...]:
    """Return what setup does inside one layer, by names relative to it."""
    prefix = f"{layer}."
    return tuple(
        (fqn.removeprefix(layer), *done)
        for fqn, done in treatment.items()
        if fqn == layer or fqn.startswith(prefix)
    )


def outline(model: nn.Module) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and shape of each parameter of a model that is not sharded."""
    return outline_of_all_stages(dict(model.named_parameters()), stages=None)


def drop_layers(model: nn.Module, dropped: frozenset[str]) -> None:
    """Takes layers out of their lists. The others keep their names."""
    for layer in dropped:
        parent, _, name = layer.rpartition(".")
        del model.get_submodule(parent)._modules[name]


def shortened(graph: Graph, dropped: frozenset[str], *, num_steps: int, num_micro_steps: int) -> Graph:
    """The graph without the dropped layers, for a few steps of few micro steps and a save at their end."""
    kept = [_without(op, dropped) for op in graph.setup]
    times = next(op.times for op in graph.step if isinstance(op, ops.Accumulate))
    cap = min(times, num_micro_steps)
    setup = (
        replace(op, global_batch=op.global_batch // times * cap) if isinstance(op, ops.OpenData) else op
        for op in kept
        if op is not None
    )
    step = (_fewer(op, cap) if isinstance(op, ops.Accumulate) else op for op in graph.step)
    save = (replace(op, at_end=True) if isinstance(op, ops.SaveCheckpoint) else op for op in graph.save)
    return replace(graph, num_steps=num_steps, setup=tuple(setup), step=tuple(step), save=tuple(save))


def _fewer(op: ops.Accumulate, times: int) -> ops.Accumulate:
    """The op for the first micro-batches."""
    left = (tuple(action for action in order if action.micro_batch < times) for order in op.orders)
    return replace(op, times=times, orders=tuple(left))


def _without(op: AnyOp, dropped: frozenset[str]) -> AnyOp | None:
    """The op without dropped names; None if nothing is left to do."""
    match op:
        case ops.AttachAdapters():
            modules, stacked = (_names(names, dropped) for names in (op.modules, op.stacked))
            return replace(op, modules=modules, stacked=stacked) if modules else None
        case (
            ops.InitAdapters()
            | ops.LoadAdapters()
            | ops.QuantizeBase()
            | ops.AttachDropout()
            | ops.ShardTensorParallel()
            | ops.ShareHeads()
            | ops.ShardExperts()
            | ops.CapExperts()
            | ops.CheckpointActivations()
            | ops.CompileModules()
        ):
            modules = _names(op.modules, dropped)
            return replace(op, modules=modules) if modules else None
        case ops.FullyShard():
            groups = tuple(group for group in op.groups if _names(group, dropped))
            return replace(op, groups=groups) if groups else None
        case ops.BalanceExperts():
            layers = tuple(layer for layer in op.layers if _names(layer[:2], dropped))
            return replace(op, layers=layers) if layers else None
        case ops.FreezeParameters() | ops.NameBase():
            parameters = _names(op.parameters, dropped)
            return replace(op, parameters=parameters) if parameters else None
        case ops.PrefetchUnits():
            return replace(op, units=_names(op.units, dropped))
        case ops.SplitPipeline():
            stages = tuple(_names(stage, dropped) for stage in op.stages)
            return replace(op, stages=stages, deferred=_names(op.deferred, dropped))
        case ops.BuildOptimizer():
            left = (replace(one, parameters=_names(one.parameters, dropped)) for one in op.groups)
            return replace(op, groups=tuple(group for group in left if group.parameters))
        case _:
            return op


def _names(names: tuple[str, ...], dropped: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in names if not _is_within(name, dropped))


def _is_within(name: str, dropped: frozenset[str]) -> bool:
    """Whether a name, or any that holds it, is dropped."""
    parts = name.split(".")
    return any(".".join(parts[:end]) in dropped for end in range(1, len(parts) + 1))
