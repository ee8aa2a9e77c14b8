"""Requirements of a plan's own model class, as no list of models that work has it. Imports torch.

All of it is tried on a small model, whose sizes come from the class's own config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor, nn
from transformers import PreTrainedModel

from planc.inventory.files import InventoryError
from planc.inventory.probe.attentions import Observed
from planc.inventory.probe.causality import small_of
from planc.inventory.probe.token_mixing import mixing_modules

_INDEX = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")


def own_attentions_of(observed: Observed) -> tuple[str, ...]:
    """The modules in whose own code tokens see others. InventoryError if planc can't work with the class."""
    name = type(observed.model).__name__
    _require_registered(observed.model)
    try:
        small = small_of(observed)
        mixing = None if small is None else _mixing(small)
    except Exception as error:  # a class may raise anything
        raise InventoryError(
            f"{name} can't be built and run with small sizes, by which planc tries it: "
            f"{type(error).__name__}: {error}",
            help="compute all sizes from `hidden_size`, `num_attention_heads`, `num_key_value_heads`, "
            "`intermediate_size`, `vocab_size` and `num_hidden_layers` of the config",
        ) from error
    if mixing is None:
        raise InventoryError(
            f"{name} has no list of layers", help="keep its layers in an nn.ModuleList of `num_hidden_layers`"
        )
    if "" in mixing:
        raise InventoryError(
            f"the forward of {name} itself lets tokens see others, outside of its modules",
            help="move that code into a module of its own, such as a layer",
        )
    kinds = {_INDEX.sub("*", fqn) for fqn in mixing}
    return tuple(fqn for fqn, _ in observed.model.named_modules() if _INDEX.sub("*", fqn) in kinds)


def _mixing(small: PreTrainedModel) -> tuple[str, ...]:
    attending = [module for module in small.modules() if _attends(module, small)]
    return mixing_modules(small, attending=attending)


def _attends(module: nn.Module, model: nn.Module) -> bool:
    """Whether a module's code calls transformers' attention interface."""
    code = getattr(type(module).forward, "__code__", None)
    return module is not model and code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def _require_registered(model: nn.Module) -> None:
    """InventoryError for a tensor that no run would set, as it is neither a parameter nor a buffer."""
    for fqn, name in _loose(model):
        place = f"{fqn}.{name}" if fqn else name
        raise InventoryError(
            f"`{place}` of {type(model).__name__} is a tensor that is neither a parameter nor a buffer",
            help=f"write `self.register_buffer({name!r}, ..., persistent=False)`, or compute it in `forward`",
        )


def _loose(model: nn.Module) -> Iterator[tuple[str, str]]:
    for fqn, module in model.named_modules():
        yield from ((fqn, name) for name, value in vars(module).items() if isinstance(value, Tensor))
