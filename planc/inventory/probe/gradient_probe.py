"""The parameters that training gives no gradient, and the values that pass from module to module.

The graph of one forward on the meta device shows both, and after which modules nothing is kept for backward.
Imports torch.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import PreTrainedModel

from planc.inventory.footprint import ONCE, Call
from planc.inventory.probe.attention_calls import AttentionCall
from planc.inventory.probe.equal_layers import also_in_equal_layers, in_equal_layers, with_equal_layers
from planc.inventory.probe.forwards import NUM_TOKENS, run_again
from planc.inventory.probe.kinds import kind_of, owns_parameters
from planc.inventory.probe.source_tracker import SourceTracker
from planc.inventory.schema import Attention, Kind, Routing
from planc.modeling.private import tree_leaves
from planc.modeling.tasks import output_of
from planc.record import record
from planc.vocab import ancestors, parent_of


@record
class Backward:
    """Names of parameters: those whose `requires_grad` is false, and others that no gradient reaches.

    `ends` counts the modules around one that end with it: what they keep was kept when it returned.
    """

    frozen: frozenset[str]
    unreached: frozenset[str]
    ends: Mapping[str, int]
    calls: Mapping[str, tuple[Call, ...]]
    """The calls of the modules that are not called once, with a row for each token."""
    attention_calls: Mapping[str, int]
    """The calls of the interface in one of an attention's, if there are several."""
    read: frozenset[str]
    """The modules whose outputs, or what follows from them, backward of their layer reads."""

    def facts(self, fqn: str) -> dict[str, Any]:
        """The fields of a module that follow from its calls."""
        calls, ends = self.calls.get(fqn, ONCE), self.ends.get(fqn, 0)
        return {"calls": calls, "ends": ends, "read_by_code": fqn in self.read}

    def counted(self, attentions: Iterable[Attention]) -> tuple[Attention, ...]:
        """The attentions with their numbers of calls."""
        return tuple(replace(core, calls=self.attention_calls.get(core.fqn, 1)) for core in attentions)


def backward_of(
    model: PreTrainedModel,
    instead: Mapping[str, str],
    *,
    blocks: Collection[str],
    attending: dict[nn.Module, AttentionCall],
) -> Backward:
    """`instead` has, for each layer that does not run, an equal one that does; `attending` is refilled."""
    frozen = frozenset(name for name, one in _parameters(model).items() if not one.requires_grad)
    unreached: frozenset[str] = frozenset()
    ends: dict[str, int] = {}
    calls: dict[str, tuple[Call, ...]] = {}
    attention_calls: dict[str, int] = {}
    read: frozenset[str] = frozenset()
    attending.clear()
    # A model's own code may raise anything in a forward with gradients: then all count.
    with contextlib.suppress(Exception), _watched(model, attending) as seen:
        unreached = _unreached(model, instead) - frozen
        ends = {fqn: number for fqn in seen.kept if (number := _num_ended(fqn, seen.kept, blocks))}
        ends = with_equal_layers(ends, instead)
        calls = {fqn: (*made,) for fqn, made in seen.calls.items() if (*made,) != ONCE}
        calls = with_equal_layers(calls, instead)
        attention_calls = {
            fqn: attending[module].number // len(seen.calls[fqn])
            for fqn, module in model.named_modules()
            if module in attending and fqn in seen.calls
        }
        attention_calls = with_equal_layers(attention_calls, instead)
        read = also_in_equal_layers(frozenset(_read(seen, blocks)), instead)
    return Backward(frozen, unreached, ends, calls, attention_calls, read)


@dataclass(slots=True)
class _Seen:
    """The calls of each module, and the tensors that had been kept for backward when it returned last."""

    calls: defaultdict[str, list[Call]] = field(default_factory=partial(defaultdict, list))
    kept: dict[str, int] = field(default_factory=dict)
    storages: list[int] = field(default_factory=list)
    """The storages of the tensors that were kept, in order."""
    tracker: SourceTracker = field(default_factory=SourceTracker)
    masking: set[str] = field(default_factory=set)
    """The modules whose outputs reach an attention other than in its queries, keys and values."""


@contextlib.contextmanager
def _watched(model: PreTrainedModel, attending: Mapping[nn.Module, AttentionCall]) -> Iterator[_Seen]:
    """Yield what is seen as the model runs."""
    seen = _Seen()

    def leave(fqn: str, module: nn.Module, args: Any, kwargs: Any, output: object) -> None:
        seen.kept[fqn] = len(seen.storages)
        if module in attending:
            seen.masking |= seen.tracker.sources(attending[module].others)
        if owns_parameters(module):
            seen.tracker.mark(output, sources=frozenset((fqn,)))
        if not any(True for _ in module.parameters()):
            return
        states = args[0] if args else kwargs.get("hidden_states", kwargs.get("input"))
        seen.calls[fqn].append(_call(module, states, output, hidden_size=model.config.hidden_size))

    def keep(tensor: Tensor) -> Tensor:
        seen.storages.append(tensor.untyped_storage()._cdata)
        return tensor

    with contextlib.ExitStack() as stack:
        stack.enter_context(saved_tensors_hooks(keep, lambda tensor: tensor))
        stack.enter_context(seen.tracker)
        for fqn, module in model.named_modules():
            stack.callback(module.register_forward_hook(partial(leave, fqn), with_kwargs=True).remove)
        yield seen


def _call(module: nn.Module, states: object, output: object, *, hidden_size: int) -> Call:
    """A call of the one sequence. What takes no hidden states has a row for each token."""
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    without_gradients = tensors != [] and not any(leaf.requires_grad for leaf in tensors)
    if not (isinstance(states, Tensor) and states.is_floating_point()):
        return Call(without_gradients=without_gradients)
    has_rows = states.shape[-1:] == (hidden_size,) or kind_of(module) in (Kind.LINEAR, Kind.CONV1D)
    rows = divmod(prod(states.shape[:-1]), NUM_TOKENS) if has_rows else (1, 0)
    is_constant = not (without_gradients or states.requires_grad)
    return Call(*rows, without_gradients, is_constant)


def _num_ended(fqn: str, kept: Mapping[str, int], blocks: Collection[str]) -> int:
    """Count the modules from one to the outermost in its layer that had kept as much when they returned."""
    inside = tuple(takewhile(lambda around: around not in blocks, ancestors(fqn)))
    if inside == ancestors(fqn):
        return 0
    # Lists are not called.
    called = (level for level, around in enumerate(inside, start=1) if around in kept)
    return max(takewhile(lambda level: kept[inside[level - 1]] == kept[fqn], called), default=0)


def _read(seen: _Seen, blocks: Collection[str]) -> Iterator[str]:
    """Yield the modules whose outputs reach an attention's mask, which its backward reads, or what is kept
    between their return and that of their layer."""
    yield from seen.masking
    reached = seen.tracker.by_storage()
    for fqn, start in seen.kept.items():
        layer = layer_around(fqn, blocks)
        later = seen.storages[start : seen.kept[layer]] if layer is not None else ()
        if any(fqn in reached.get(storage, ()) for storage in later):
            yield fqn


def layer_around(fqn: str, blocks: Collection[str]) -> str | None:
    """The layer that a module is inside."""
    return next((name for name in ancestors(fqn) if parent_of(name) in blocks), None)


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters(remove_duplicate=False))


def _unreached(model: PreTrainedModel, instead: Mapping[str, str]) -> frozenset[str]:
    """The parameters that are not in the graph of the logits."""
    logits: list[Tensor] = []
    hook = model.register_forward_hook(lambda _, args, output: logits.append(output_of(output)))
    try:
        run_again(model, with_gradients=True)
    finally:
        hook.remove()
    reached = _leaves(logits[-1].grad_fn)
    parameters = _parameters(model)
    found = {name for name, one in parameters.items() if id(one) not in reached}
    left_out = tuple(f"{fqn}." for fqn in instead)
    ran = (name for name in found if not name.startswith(left_out))
    return frozenset((*ran, *in_equal_layers(found, instead)))


def _leaves(root: Any) -> set[int]:
    """The ids of the tensors whose gradients a backward from here would add up."""
    leaves: set[int] = set()
    seen, waiting = {root}, [root]
    while waiting:
        node = waiting.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.add(id(leaf))
        nodes = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= nodes
        waiting += nodes
    return leaves


@dataclass(slots=True)
class Flow:
    """One forward's record, by module fqn; `order` is that of registration."""

    order: Mapping[str, int]
    inputs: dict[str, frozenset[str]] = field(default_factory=dict)
    routings: dict[str, Routing] = field(default_factory=dict)
    outputs: dict[str, frozenset[str]] = field(default_factory=dict)
    reading: set[str] = field(default_factory=set)  # modules whose own code asks for values of tensors
    cores: dict[str, frozenset[str]] = field(default_factory=dict)
    """The modules that reach the queries, keys and values of each attention."""
    written: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()
    renumbered: frozenset[str] = frozenset()
    flattened: set[str] = field(default_factory=set)
    passing: set[str] = field(default_factory=set)
    """Modules that own no parameters and pass their hidden states on."""
    hidden: dict[str, frozenset[str]] = field(default_factory=dict)
    """The modules that reach the hidden states of those without parameters."""
    passing_others: set[str] = field(default_factory=set)
    """Modules that own no parameters and pass another argument on."""
    activations: dict[str, nn.Module] = field(default_factory=dict)
    """The activation function that reads a linear layer's output."""

    def bypassed(self, fqn: str) -> int:
        """The number that `Module.bypassed` has."""
        inputs = self.inputs.get(fqn, frozenset())

        def reads_others(container: str) -> bool:
            is_inside = any(source.startswith(f"{container}.") for source in inputs)
            return bool(inputs) and not is_inside and not inputs & self.hidden[container]

        followed = takewhile(self.hidden.__contains__, ancestors(fqn))
        return sum(1 for _ in takewhile(reads_others, followed))

    def taken_in_layers(self, blocks: tuple[str, ...]) -> frozenset[str]:
        """The modules whose outputs another of their layer takes."""
        layers = {fqn: layer_around(fqn, blocks) for fqn in self.order}
        taken = ((source, fqn) for fqn, sources in self.inputs.items() for source in sources)
        return frozenset(source for source, fqn in taken if layers[source] == layers[fqn])

    def leave_out(self, fqns: Iterable[str]) -> None:
        """Forget modules that training does not call, whatever evaluation does."""
        idle = frozenset(fqns)
        for recorded in (self.inputs, self.outputs):
            for fqn in recorded:
                recorded[fqn] = frozenset() if fqn in idle else recorded[fqn] - idle

    def in_order(self, fqns: frozenset[str]) -> tuple[str, ...]:
        return tuple(sorted(fqns, key=self.order.__getitem__))
