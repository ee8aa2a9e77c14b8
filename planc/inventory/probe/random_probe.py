"""Detect whether training a model draws random numbers, by a run on the meta device. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedConfig, PreTrainedModel

from planc.inventory.files import InventoryError
from planc.inventory.randomness import random_fields

_DRAWS_IN_VAIN = frozenset(("phimoe",))
"""Model types that draw without effect: without jitter, there is one candidate to choose from."""


def drawing_fields(
    model: PreTrainedModel,
    *,
    config: PreTrainedConfig,
    build: Callable[[PreTrainedConfig], PreTrainedModel],
    run: Callable[[PreTrainedModel], None],
) -> tuple[str, ...]:
    """The fields of the config by which training draws random numbers.

    `build` makes a model from a config, and `run` runs a forward. InventoryError for a model that draws
    without those fields too.
    """
    if not _draws(model, run):
        return ()
    fields, quiet = random_fields(config.to_dict()), deepcopy(config)
    for name in fields:
        setattr(quiet, name, 0.0)
    if config.model_type not in _DRAWS_IN_VAIN and _draws(build(quiet), run):
        where = f", even if {', '.join(fields)} are 0" if fields else ""
        raise InventoryError(
            f"{type(model).__name__} draws random numbers in training, which differ between meshes{where}",
            help="set the probabilities in config.json to 0, or use a model that draws none",
        )
    return fields


def _draws(model: PreTrainedModel, run: Callable[[PreTrainedModel], None]) -> bool:
    """Whether a forward in training mode draws any; the model is left in evaluation mode."""
    model.train()
    try:
        with _Draws() as seen:
            run(model)
    finally:
        model.train(False)
    return bool(seen.are_any)


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices every op that takes its values from a generator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.are_any = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.are_any |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))
