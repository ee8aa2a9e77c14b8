"""Whether attention works on a share of its heads, tried on the meta device. Imports torch, for the probe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd
from typing import Any

from torch import Tensor, nn

from planc.inventory.probe.factor_trial import Counts, shared
from planc.inventory.probe.kinds import Linear, in_features
from planc.modeling.head_counts import Heads
from planc.record import record


@record
class Core:
    """An attention with the linear layers whose outputs it turns into queries, keys and values."""

    attention: nn.Module
    projections: tuple[Linear, ...]
    heads: Heads
    counts: Counts | None = None
    """The counts that a rank divides with the heads."""

    @property
    def parts(self) -> int:
        """The smallest number of ranks that could share the heads; 1 if they can't be shared."""
        common = gcd(*self.heads)
        return next((size for size in range(2, common + 1) if common % size == 0), 1)


def fixed_heads(
    cores: Sequence[Core], *, run: Callable[[], Mapping[nn.Module, Heads]]
) -> frozenset[nn.Module]:
    """The attentions that fail, or get other heads than their share, when projections return a share.

    `run` runs the model and returns the heads of each attention's call. Attentions of one class behave the
    same.
    """
    fixed: set[type[nn.Module]] = set()
    while True:
        tried = [core for core in cores if type(core.attention) not in fixed and core.parts > 1]
        failed = _failed(tried, run)
        if not failed:
            return frozenset(core.attention for core in cores if type(core.attention) in fixed)
        fixed |= failed


def take_shares(
    attentions: Mapping[nn.Module, Counts], *, heads: Heads, share: int, run: Callable[[], object]
) -> frozenset[nn.Module]:
    """The attentions that run on a share of the first layers' features, and give the last its share.

    All run together: none, if the model raises.
    """
    widths: dict[nn.Module, int] = {}

    def take_share(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output[..., : output.shape[-1] // share]

    def widen(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        value, *rest = args
        widths[module] = value.shape[-1]
        return (value.repeat_interleave(share, dim=-1), *rest)

    with contextlib.ExitStack() as stack:
        for attention, counts in attentions.items():
            stack.enter_context(shared(attention, counts, heads=heads, by=share))
            for name in counts.first:
                handle = attention.get_submodule(name).register_forward_hook(take_share)
                stack.callback(handle.remove)
            stack.callback(attention.get_submodule(counts.last).register_forward_pre_hook(widen).remove)
        try:
            run()
        except Exception:  # a model's own code may raise anything for unexpected shapes
            return frozenset()
    last = {attention: attention.get_submodule(counts.last) for attention, counts in attentions.items()}
    return frozenset(
        attention
        for attention, layer in last.items()
        if isinstance(layer, Linear) and widths.get(layer) == in_features(layer) // share
    )


def upstream(fqn: str, *, within: str, inputs: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The modules inside `within` that reach a module's input, by any number of steps.

    `inputs` names what feeds each module directly.
    """
    reaching: set[str] = set()
    waiting = [fqn]
    while waiting:
        for source in inputs.get(waiting.pop(), frozenset()):
            if source.startswith(f"{within}.") and source not in reaching:
                reaching.add(source)
                waiting.append(source)
    return frozenset(reaching)


def _failed(
    cores: Sequence[Core], run: Callable[[], Mapping[nn.Module, Heads]]
) -> frozenset[type[nn.Module]]:
    """The classes at fault in one run: that of the last attention entered, if the model raises."""
    entered: list[Core] = []
    with contextlib.ExitStack() as stack:
        for core in cores:
            stack.enter_context(_shared(core, entered))
        try:
            seen = run()
        except Exception:  # a model's own code may raise anything for unexpected shapes
            return frozenset((type(entered[-1].attention),)) if entered else frozenset()
    return frozenset(
        type(core.attention)
        for core in cores
        if seen.get(core.attention) != tuple(number // core.parts for number in core.heads)
    )


@contextlib.contextmanager
def _shared(core: Core, entered: list[Core]) -> Iterator[None]:
    """Inside, the attention's projections return the first share of their features."""

    def enter(module: nn.Module, args: Any) -> None:
        entered.append(core)

    def take_share(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output[..., : output.shape[-1] // core.parts]

    def widen(module: Linear, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        value, *rest = args
        return (value.new_empty((*value.shape[:-1], in_features(module))), *rest)

    own = dict(core.attention._parameters)
    counts = core.counts
    attributes: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if counts is not None:
        attributes = shared(core.attention, counts, heads=core.heads, by=core.parts)
    for name, parameter in own.items():
        if parameter is not None and parameter.shape == core.heads[:1]:
            # One number per head is sharded as the heads are.
            core.attention._parameters[name] = nn.Parameter(parameter[: parameter.shape[0] // core.parts])
    handles = [core.attention.register_forward_pre_hook(enter)]
    for module in core.attention.modules():
        if isinstance(module, Linear) and module in core.projections:
            handles.append(module.register_forward_hook(take_share))
        elif isinstance(module, Linear):
            handles.append(module.register_forward_pre_hook(widen))
    try:
        with attributes:
            yield
    finally:
        core.attention._parameters.update(own)
        for handle in handles:
            handle.remove()
