"""Initial values of a plan's own model class that its modules' own methods do not give. Imports torch.

A run initializes module by module. What a constructor does to a module that it has built, such as to set the
head to zeros, is in no module's method, and a run would start from other values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from planc.inventory.probe.attentions import Observed
from planc.inventory.probe.causality import small_of
from planc.modeling.initialization import started, unset_tensors
from planc.modeling.placed_draws import RepeatedDraws

_INDEX = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")


def unset_of(observed: Observed, *, is_own: bool) -> frozenset[str]:
    """The parameters and buffers that a run would not start as the class does."""
    unset = frozenset(unset_tensors(observed.model))
    return unset | _overruled_starts(observed) if is_own else unset


def _overruled_starts(observed: Observed) -> frozenset[str]:
    """Return the parameters that the constructor starts from other values than a run does.

    Every draw is the same for the same shape and arguments, so equal values come from equal steps.
    """
    small = small_of(observed)
    if small is None:
        return frozenset()
    built, values = _built(small), dict(started(small))
    alone = dict(_by_modules_alone(deepcopy(small)))
    kinds = {
        _INDEX.sub("*", fqn)
        for fqn, parameter in built.items()
        if _is_known(parameter)
        and not _is_same(parameter, values.get(fqn))
        and not _is_same(parameter, alone.get(fqn))
    }
    names = (fqn for fqn, _ in observed.model.named_parameters())
    return frozenset(fqn for fqn in names if _INDEX.sub("*", fqn) in kinds)


def _built(small: PreTrainedModel) -> Mapping[str, Tensor]:
    """The parameters as the constructor leaves them; NaN for what nothing has been written to."""
    own = getattr(small, "_planc_own", type(small))
    with torch.random.fork_rng(devices=[]), torch.no_grad(), RepeatedDraws():
        model: nn.Module = own(small.config, **getattr(small, "_planc_arguments", {}))
    return {fqn: parameter.detach() for fqn, parameter in model.named_parameters()}


def _by_modules_alone(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters after `reset_parameters` of their own module, as the constructors of torch's call it."""
    for fqn, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            with torch.random.fork_rng(devices=[]), torch.no_grad(), RepeatedDraws():
                reset()
            for name, parameter in module.named_parameters(recurse=False):
                yield (f"{fqn}.{name}" if fqn else name), parameter.detach().clone()


def _is_known(tensor: Tensor) -> bool:
    return not bool(tensor.isnan().any())


def _is_same(tensor: Tensor, other: Tensor | None) -> bool:
    return (
        other is not None and tensor.shape == other.shape and torch.allclose(tensor, other.to(tensor.dtype))
    )
