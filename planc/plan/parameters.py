"""The parameters that patterns name, those that are not trained, and attention sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planc.inventory.adapters import adapted_layer, adapted_stacks, stacks_of
from planc.inventory.schema import Inventory, Kind, Parameter
from planc.plan.pattern import parse_own
from planc.plan.spec import PatternRule, Plan
from planc.plan.style_actions import Frozen, Trained
from planc.source import NOWHERE, Span
from planc.styles.style import own_placement
from planc.vocab import DOWN, SINKS, UP, PackedShard, Placement, Shard, StridedShard, outwards


def sinks_of(inventory: Inventory) -> Mapping[str, str]:
    """The parameter that an attention passes as sinks, by the attention's fqn: it has no other of its own."""
    sinks = {}
    for attention in inventory.attentions:
        module = inventory.get(attention.fqn)
        if SINKS not in attention.extras or module is None or len(module.parameters) != 1:
            continue
        (parameter,) = module.parameters
        if parameter.shape == (attention.num_heads,):
            sinks[attention.fqn] = parameter.name
    return sinks


def frozen_parameters(
    plan: Plan, inventory: Inventory, ruled: Mapping[str, PatternRule[Frozen | Trained]]
) -> Mapping[str, Span]:
    """The frozen parameters in the model's order. What the model's own code freezes stays so.

    With adapters, those of the model itself that no rule of `freeze` trains.
    """
    spans: dict[str, Span] = {}
    for fqn, module, parameter in inventory.parameters():
        if parameter.name in module.frozen:
            spans[fqn] = plan.span("model.hf")
        elif fqn in ruled:
            spans |= {fqn: ruled[fqn].span} if isinstance(ruled[fqn].action, Frozen) else {}
        elif plan.adapter is not None and adapted_layer(fqn) is None:
            spans[fqn] = plan.adapter.span
    return spans


def own_parameters(inventory: Inventory) -> Mapping[str, Sequence[str]]:
    """The parameters that a group's pattern matches: by name, or by the module that owns them."""
    owned: dict[str, list[str]] = {}
    for fqn, module, _ in inventory.parameters():
        for name in (fqn, module.fqn):
            owned.setdefault(name, []).append(fqn)
    return owned


def parameters_inside(inventory: Inventory) -> Mapping[str, Sequence[str]]:
    """The parameters that a pattern of `freeze` matches: by name, or by a module around them."""
    inside: dict[str, list[str]] = {}
    for fqn, _, _ in inventory.parameters():
        for name in outwards(fqn):
            inside.setdefault(name, []).append(fqn)
    return inside


def own_placements(inventory: Inventory) -> Mapping[str, Mapping[str, Placement]]:
    """Parameters that the model's own plan places by their names: by module, then by local name.

    These modules are not layers: stacked experts, or what an attention module stores for each head. Sinks, of
    which planc's attention takes one for each head, need no plan.
    """
    owned: dict[str, tuple[str, Parameter]] = {
        f"{module.fqn}.{parameter.name}": (module.fqn, parameter)
        for module in inventory.modules
        if module.kind is Kind.OTHER and module.fqn
        for parameter in module.parameters
    }
    names = tuple(owned)
    placements: dict[str, dict[str, Placement]] = {}
    for text, style in inventory.tp_plan if names else ():
        for fqn in parse_own(text, NOWHERE).select(names):
            owner, parameter = owned[fqn]
            placement = own_placement(style, parameter.shape)
            if placement is not None:
                placements.setdefault(owner, {})[parameter.name] = placement
    for fqn, placed in placements.items():
        placed |= _of_adapters(inventory, fqn, placed)
    for fqn, name in sinks_of(inventory).items():
        placements.setdefault(fqn, {})[name] = Shard(0)
    return placements


def _of_adapters(
    inventory: Inventory, experts: str, placed: Mapping[str, Placement]
) -> Mapping[str, Placement]:
    """The placements of experts' adapters: outputs of B are sharded as those of the weights, inputs of A as
    their inputs. The other one of the two is whole."""
    adapted, placements = adapted_stacks(inventory), {}
    for stack in stacks_of(inventory, experts):
        of = placed.get(stack.name)
        if f"{experts}.{stack.name}" in adapted and isinstance(of, Shard | StridedShard | PackedShard):
            shards_outputs = (of.tensor_dim == 1) is not stack.is_transposed
            part, tensor_dim = (UP, 1) if shards_outputs else (DOWN, 2)
            placements[f"{stack.name}_{part}"] = replace(of, tensor_dim=tensor_dim)
    return placements
