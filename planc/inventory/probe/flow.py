"""The values that pass from module to module in one forward. Imports torch, for the probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from torch import nn

from planc.inventory.probe.gradient_probe import layer_around
from planc.inventory.schema import Routing
from planc.vocab import ancestors


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
