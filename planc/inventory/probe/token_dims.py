"""Modules whose hidden states have one dimension of all tokens. Imports torch, for the probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from planc.inventory.probe.forwards import NUM_TOKENS


def watch_tokens(named: Mapping[str, nn.Module], flattened: set[str]) -> None:
    """Add the modules that take or return [tokens, features] as the model runs.

    Of modules without parameters inside, which no style is for, nothing is recorded.
    """

    def before(fqn: str, args: Any, kwargs: Any) -> None:
        states = args[0] if args else kwargs.get("hidden_states", kwargs.get("input"))
        if _is_flat(states):
            flattened.add(fqn)

    def after(fqn: str, output: Any) -> None:
        if _is_flat(output[0] if isinstance(output, tuple | list) and output else output):
            flattened.add(fqn)

    for fqn, module in named.items():
        if fqn and any(True for _ in module.parameters()):
            module.register_forward_pre_hook(
                lambda _, args, kwargs, fqn=fqn: before(fqn, args, kwargs), with_kwargs=True
            )
            module.register_forward_hook(lambda _, args, output, fqn=fqn: after(fqn, output))


def _is_flat(states: object) -> bool:
    """Whether a value has features for each token of the one sequence, and no dimension for the batch."""
    return (
        isinstance(states, Tensor)
        and states.ndim == 2
        and len(states) == NUM_TOKENS
        and states.is_floating_point()
    )
