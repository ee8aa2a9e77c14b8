"""The parameters that training gives no gradient, by the graph of one forward on the meta device. Imports
torch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from planc.inventory.probe.equal_layers import in_equal_layers
from planc.inventory.probe.forwards import run_again
from planc.record import record


@record
class WithoutGradients:
    """Names of parameters: those whose `requires_grad` is false, and others that no gradient reaches."""

    frozen: frozenset[str]
    unreached: frozenset[str]


def without_gradients(model: PreTrainedModel, instead: Mapping[str, str]) -> WithoutGradients:
    """`instead` has, for each layer that does not run, an equal one that does."""
    frozen = frozenset(name for name, one in _parameters(model).items() if not one.requires_grad)
    unreached: frozenset[str] = frozenset()
    # A model's own code may raise anything in a forward with gradients: then all count.
    with contextlib.suppress(Exception):
        unreached = _unreached(model, instead) - frozen
    return WithoutGradients(frozen, unreached)


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters(remove_duplicate=False))


def _unreached(model: PreTrainedModel, instead: Mapping[str, str]) -> frozenset[str]:
    """The parameters that are not in the graph of the logits."""
    logits: list[Tensor] = []
    hook = model.register_forward_hook(lambda _, args, output: logits.append(output.logits))
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
