"""The fullest moment of backward on the compute stream, by a walk through the modules in reverse.

Activations are freed as they are used; a recomputed module restores its own when backward reaches it.
Meanwhile there are gradients of activations, which live for a few operations, and of weights, which live
until their unit is reduced: FSDP2 copies them into one tensor of the reduce dtype, which stays until the next
unit is (torch's _fsdp_param_group.py, post_backward). The operations are transformers' and autograd's:

    linear                the gradient of its output, of its weight and of its input; where several read the
                          same input, one sum and the newest term; the weight, if it is stored in 4 bits
    activation function   as many bytes an element as the inventory has measured
    a gate times a value  the gradients of the product and of both factors
    attention             the gradients of its output, queries, keys and values
    norm                  as many bytes an element as the inventory has measured
    DoRA                  the gradients of a layer's output before and after its rows are scaled, and what
                          sums to the gradient of the rows' lengths
    stacked experts       the gradients of the rows that a projection reads and makes
    embedding             the gradient of a rank's rows; where they are the head's too, the head's, which has
                          waited, and the sum of both
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod

from planc.estimate.activations import (
    between_bytes,
    between_passing_bytes,
    context_bytes,
    core_bytes,
    cores_around,
    input_bytes,
    input_key,
    kept_inputs,
    norm_bytes,
    norm_tokens,
    region_input_bytes,
    scaled_bytes,
    weight_width,
)
from planc.estimate.attention_calls import compiled_pair_bytes
from planc.estimate.dropout import dropout_bytes
from planc.estimate.experts import experts_saved
from planc.estimate.gaps import last_units
from planc.estimate.kernels import kernel_bytes_in_backward
from planc.estimate.layout import ParameterLayout
from planc.estimate.parts import output_bytes, products
from planc.estimate.rank_work import RankWork
from planc.estimate.units import Unit
from planc.inventory.adapters import is_magnitude
from planc.inventory.schema import Inventory, Kind, Module
from planc.record import record
from planc.vocab import ancestors, outwards, parent_of

_FLOAT32_BYTES = 4
_UNPACKED_BYTES = 6
"""Bytes of an element of a quantized weight while it is computed."""
_Input = tuple[str, tuple[str, ...]]
"""The key of linear layers that read the same tensor: their parent and their sources."""


@record
class Moment:
    """Bytes on the compute stream in addition to the states, by purpose."""

    activations: int
    passing: int
    """Gradients of activations, and of the module that backward is in."""
    weights: int
    """Gradients that wait for their unit's reduction; without reduction, those of every module passed."""
    reducing: int
    gathered: int
    gaps: int = 0
    """Freed blocks that are too small for the reduced tensors."""

    @property
    def num_bytes(self) -> int:
        held = self.activations + self.passing + self.weights + self.reducing + self.gathered
        return held + self.gaps


def fullest_moment(work: RankWork, units: tuple[Unit, ...], *, kept: int, again: Mapping[str, int]) -> Moment:
    """The fullest moment of a micro step's backward; `kept` are the bytes that its forward keeps.

    `again` are the bytes that recomputation adds, by checkpointed module.

    Over several micro steps that reduce once, it is one of those that do not: as they leave as much in the
    reduce dtype as the last one copies, it makes no difference which.
    """
    walk = _Walk(work, units, kept, again)
    without_backward = Moment(kept, 0, 0, 0, 0)
    return max(walk.moments(), key=lambda moment: moment.num_bytes, default=without_backward)


def fullest_product(work: RankWork, units: tuple[Unit, ...], *, kept: int) -> Moment | None:
    """The fullest moment of the gradients of weights, if they are apart; `kept` are the bytes before it.

    As the walk has it, gradients wait where none are held from before. They follow a backward, which frees
    what it gathered.
    """
    stay = work.compute_dtype.size_bytes * sum(
        unit.num_gathered for unit in units if not unit.reshard_after_backward
    )
    moments: list[Moment] = []
    waiting = 0
    for gradient, freed in products(work):
        moments.append(Moment(kept, 0, waiting + gradient, 0, stay))
        kept -= freed
        waiting += gradient if work.times == 1 or any(unit.reduces_each for unit in units) else 0
    return max(moments, key=lambda moment: moment.num_bytes, default=None)


def _reversed_order(inventory: Inventory) -> tuple[Module, ...]:
    """Modules after their sources, in reverse order."""
    ordered: dict[str, Module] = {}
    seen: set[str] = set()

    def visit(module: Module) -> None:
        if module.fqn in seen:
            return
        seen.add(module.fqn)
        for name in (*module.sources, *module.returns):
            source = inventory.get(name)
            if source is not None:
                visit(source)
        ordered[module.fqn] = module

    for module in inventory.modules:
        visit(module)
    return tuple(reversed(ordered.values()))


class _Walk:
    """The bytes held while backward passes the modules one by one."""

    def __init__(self, work: RankWork, units: tuple[Unit, ...], kept: int, again: Mapping[str, int]) -> None:
        self._work, self._all_units = work, units
        self._order = _reversed_order(work.inventory)
        self._element = work.compute_dtype.size_bytes
        self._experts = experts_saved(work)
        self._reduces = bool(units) and (work.times == 1 or units[0].reduces_each)
        self._waits = bool(units) or work.times == 1
        # Of two micro steps under FSDP the first has no gradients from before, and the last not the layers'.
        self._is_added = not units or work.times != 2
        self._live = kept
        self._weights: dict[Unit | None, int] = {}
        self._reducing = 0
        # Layers pass on the gradient of the hidden states, in addition to their own gradients.
        self._hidden = region_input_bytes(work, "")
        self._context = context_bytes(work)
        by_name = {name: unit for unit in units for name in unit.modules}
        self._units = {
            module.fqn: next((by_name[name] for name in (*outwards(module.fqn), "") if name in by_name), None)
            for module in self._order
            if module.parameters
        }
        # The root is gathered during all of backward, whatever it contains.
        self._gathered = {
            unit: self._element * unit.num_gathered
            for unit in units
            if not unit.reshard_after_forward or unit.modules == ("",)
        }
        self._last_of_unit = {unit: fqn for fqn, unit in self._units.items()}
        self._again = again
        # A checkpointed embedding saves nothing anyway, and keeps only token ids.
        self._regions = {fqn: region for fqn in self._units if (region := work.region(fqn)) in self._again}
        self._last_of_region = {region: fqn for fqn, region in self._regions.items()}
        linear = [module for module in self._order if module.is_linear]
        # Of layers in one module the outputs' gradients wait for each other.
        self._siblings = Counter(map(_siblings_key, linear))
        self._readers = Counter(input_key(work, module) for module in linear)
        self._kept_inputs = kept_inputs(work)
        self._entered: set[_Input] = set()
        self._left: set[str] = set()

    def moments(self) -> Iterator[Moment]:
        entered: set[str] = set()
        for module in self._order:
            region = self._regions.get(module.fqn)
            if region is not None and region not in entered:
                # The first that backward enters still has its input; the others' inputs come back.
                is_back = region in self._work.offloaded and bool(entered & {*self._work.offloaded})
                entered.add(region)
                self._live += self._again[region] + is_back * region_input_bytes(self._work, region)
            yield from self._module(module)
            if region is not None and self._last_of_region[region] == module.fqn:
                self._live -= region_input_bytes(self._work, region)

    def _module(self, module: Module) -> Iterator[Moment]:
        unit = self._units.get(module.fqn)
        if self._work.is_passed(module.fqn):
            yield from self._pass(module, unit)
        if unit is not None and self._last_of_unit[unit] == module.fqn:
            yield from self._reduce(unit)

    def _pass(self, module: Module, unit: Unit | None) -> Iterator[Moment]:
        self._enter_layer(module)
        if unit is not None and unit not in self._gathered:
            self._gathered[unit] = self._element * unit.num_gathered
        match module.kind:
            case Kind.LINEAR | Kind.CONV1D:
                yield from self._linear(module)
            case Kind.NORM:
                width = norm_tokens(self._work, module) * weight_width(module)
                yield self._now(self._work.by_size(self._work.footprint(module).passing) * width)
                self._live -= norm_bytes(self._work, module)
                self._weigh(module)
            case Kind.EMBEDDING:
                shared = self._shared(module)
                yield self._now(self._gradient(module) + shared * self._is_added)
                if not shared:
                    self._weigh(module)
                elif not self._waits:
                    self._weights.clear()
            case Kind.OTHER if is_magnitude(module.fqn):
                yield self._now(3 * scaled_bytes(self._work, module))
                self._live -= scaled_bytes(self._work, module)
                self._weigh(module)
            case _:
                self._weigh(module)
        self._live -= dropout_bytes(self._work, module.fqn)
        if (saved := self._experts.get(module.fqn)) is not None:
            # Gradients of stacked weights are as large as the weights, and wait with the rest.
            yield self._now(saved.passing)
            self._live -= saved.kept

    def _enter_layer(self, module: Module) -> None:
        """A layer's own code adds what its parts return: backward passes it first."""
        for name in ancestors(module.fqn):
            core = self._work.cores.get(name)
            if core is not None and core.is_layer and name not in self._left and self._work.is_passed(name):
                self._left.add(name)
                self._live -= core_bytes(self._work, core)

    def _linear(self, module: Module) -> Iterator[Moment]:
        """The last reader of an input frees it, unless the gradient of its weight is computed later."""
        key, siblings = input_key(self._work, module), _siblings_key(module)
        (rows, columns), token = self._work.tp_shape(module) or (0, 0), self._work.num_tokens * self._element
        outputs = self._siblings[siblings] * token * rows
        self._siblings[siblings] -= 1
        self._readers[key] -= 1
        is_deferred = module.fqn in self._work.deferred
        if self._work.loss_chunks > 1 and module is self._work.inventory.head:
            # Forward has computed its gradients, and backward casts their sums.
            is_cast = self._element < _FLOAT32_BYTES and self._work.trains(module)
            outputs = rows * columns * _FLOAT32_BYTES if is_cast else 0
        gradient = 0 if is_deferred else self._gradient(module)
        inputs = (1 if siblings not in self._entered else 2) * (module.fqn in self._work.flow.inputs)
        self._entered.add(siblings)
        if (layout := self._work.layout(f"{module.fqn}.weight")) is not None and layout.block:
            # Its codes become indices of two bytes and values of four, and these the weight.
            yield self._now(outputs + max(0, inputs - 1) * token * columns + _UNPACKED_BYTES * rows * columns)
            gradient = self._element * rows * columns
        yield self._now(outputs + gradient + inputs * token * columns)
        if is_deferred:
            self._live += output_bytes(self._work, module)
        else:
            self._weigh(module)
            if self._readers[key] == 0 and key in self._kept_inputs:
                self._live -= input_bytes(self._work, module)
        yield from self._before_linear(module)

    def _before_linear(self, module: Module) -> Iterator[Moment]:
        """The elementwise operations, or the attention, whose result a linear layer reads."""
        work = self._work
        passing = between_passing_bytes(work, module)
        if not (cores := cores_around(work, module)) and passing:
            yield self._now(passing)
        self._live -= between_bytes(work, module)
        for core in cores:
            if core.module.fqn not in self._left:
                self._left.add(core.module.fqn)
                num_bytes = core_bytes(work, core)
                if core.mixes_tokens or not passing:
                    kernel = kernel_bytes_in_backward(work, core.attention) if core.attention else 0
                    pairs = compiled_pair_bytes(work, core.attention) if core.attention else 0
                    passing = input_bytes(work, module) + num_bytes - pairs + self._context + kernel
                yield self._now(passing)
                self._live -= num_bytes

    def _gradient(self, module: Module) -> int:
        return self._element * sum(prod(one.tp_shape) for one in self._layouts(module) if one.has_gradient)

    def _layouts(self, module: Module) -> Iterator[ParameterLayout]:
        for parameter in module.parameters:
            found = self._work.layout(f"{module.fqn}.{parameter.name}")
            if found is not None:
                yield found

    def _shared(self, module: Module) -> int:
        """The gradient that an embedding shares with the head: autograd adds both parts in a third tensor."""
        layouts = (one for one in self._layouts(module) if one.fqn in self._work.owners and one.has_gradient)
        found = (one for one in layouts if self._work.module(one.module).kind is Kind.EMBEDDING)
        return self._element * sum(prod(one.tp_shape) for one in found)

    def _weigh(self, module: Module) -> None:
        """Gradients that are accumulated at once are not held separately; a shared head's gradient waits."""
        unit = self._units.get(module.fqn)
        if self._waits or self._shared(module):
            self._weights[unit] = self._weights.get(unit, 0) + self._gradient(module)

    def _reduce(self, unit: Unit) -> Iterator[Moment]:
        if unit.reshard_after_backward or self._work.times == 1:
            self._gathered.pop(unit, None)
        weights = self._weights.pop(unit, 0)
        if not self._reduces or not unit.num_reduced:
            return
        # The input of a reduction is freed before the next one is allocated; layers' inputs fit there.
        is_first = not self._reducing
        self._reducing = self._work.reduce_dtype.size_bytes * unit.num_scattered
        gaps = self._freed(unit) if is_first else 0
        yield self._now(min(weights, self._element * unit.num_gradients), gaps=gaps)

    def _freed(self, unit: Unit) -> int:
        """Free memory below the first unit's gradients: its parameters, and blocks that forward freed."""
        before = (other for name, other in last_units(self._work, self._all_units) if name == "last layer")
        found = {unit, *(other for other in before if other.reshard_after_forward)}
        sizes = (self._element * other.num_gathered for other in found)
        return sum(size for size in sizes if size < self._reducing)

    def _now(self, passing: int, *, gaps: int = 0) -> Moment:
        return Moment(
            self._live,
            passing + self._hidden,
            sum(self._weights.values()),
            self._reducing,
            sum(self._gathered.values()),
            gaps,
        )


def _siblings_key(module: Module) -> _Input:
    return parent_of(module.fqn), module.sources
