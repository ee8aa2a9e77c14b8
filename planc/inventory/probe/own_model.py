"""Requirements of a plan's own model class, as no list of models that work has it. Imports torch.

All of it is tried on a small model, whose sizes come from the class's own config: which modules let tokens
see others, too. A run initializes module by module. What a constructor does to a module that it has built,
such as to set the head to zeros, is in no module's method, and a run would start from other values.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from planc.inventory.files import InventoryError
from planc.inventory.probe.attentions import Observed
from planc.inventory.probe.causality import small_of
from planc.inventory.probe.small_attention import token_ids
from planc.modeling.initialization import started, unset_tensors
from planc.modeling.placed_draws import RepeatedDraws
from planc.modeling.private import tree_leaves, tree_map_only
from planc.vocab import parent_of

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
    return _mixing_modules(small, attending=attending)


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


_LENGTH = 19
"""Tokens: a number that no width has."""
_ATTENTION = "Attention"


@dataclass(slots=True)
class _Seen:
    """The first call of a module, and the outputs of all its calls."""

    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    outputs: list[Any] = field(default_factory=list)


def _mixing_modules(model: PreTrainedModel, *, attending: Sequence[nn.Module]) -> tuple[str, ...]:
    """The modules in whose own code a token sees others, each with the projections around it.

    `attending` call transformers' interface, and are left out. The empty name is the model's own code. Each
    module runs again with another first token, while those inside that mix give what they gave before.
    """
    ids = token_ids(model, length=_LENGTH)
    seen = _recorded(model, ids)
    named = dict(model.named_modules())
    inside: list[str] = [fqn for fqn, module in named.items() if module in attending]
    mixing: list[str] = []
    for fqn in sorted(seen, key=lambda name: name.count(".") if name else -1, reverse=True):
        if named[fqn] in attending:
            continue
        with _given(named, [name for name in inside if _is_in(name, fqn)], seen):
            if _mixes(named[fqn], seen[fqn], ids if not fqn else None):
                inside.append(fqn)
                mixing.append(fqn)
    return tuple(dict.fromkeys(_whole(fqn, named) for fqn in mixing))


def _recorded(model: nn.Module, ids: Tensor) -> Mapping[str, _Seen]:
    seen: dict[str, _Seen] = {}
    with contextlib.ExitStack() as stack:
        for fqn, module in model.named_modules():

            def note(_: nn.Module, args: Any, kwargs: Any, output: Any, fqn: str = fqn) -> None:
                seen.setdefault(fqn, _Seen((args, kwargs))).outputs.append(output)

            stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        with torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return seen


@contextlib.contextmanager
def _given(named: Mapping[str, nn.Module], fqns: Sequence[str], seen: Mapping[str, _Seen]) -> Iterator[None]:
    """Inside, modules give what they gave before, call by call."""
    with contextlib.ExitStack() as stack:
        for fqn in fqns:
            outputs = iter(seen[fqn].outputs)
            vars(named[fqn])["forward"] = lambda *args, outputs=outputs, **kwargs: next(outputs)
            stack.callback(vars(named[fqn]).pop, "forward", None)
        yield


def _mixes(module: nn.Module, seen: _Seen, ids: Tensor | None) -> bool:
    """Whether a later token's output changes with the first token."""
    args, kwargs = seen.arguments
    if ids is None:
        if not any(_has_tokens(leaf) for leaf in tree_leaves((args, kwargs))):
            return False
        args, kwargs = tree_map_only(Tensor, _with_other_first, (args, kwargs))
    else:
        other = ids.clone()
        other[:, 0] = ids[:, 0] + 1
        args, kwargs = (), {"input_ids": other, "attention_mask": torch.ones_like(ids), "use_cache": False}
    with torch.no_grad():
        outputs = module(*args, **kwargs)
    pairs = zip(_later(outputs), _later(seen.outputs[0]), strict=True)
    return any(
        leaf.shape != before.shape or not torch.allclose(leaf, before, atol=1e-6) for leaf, before in pairs
    )


def _has_tokens(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and _LENGTH in value.shape


def _with_other_first(value: Tensor) -> Tensor:
    if not _has_tokens(value):
        return value
    changed = value.clone()
    changed.select(value.shape.index(_LENGTH), 0).add_(1)
    return changed


def _later(outputs: Any) -> list[Tensor]:
    """The outputs of all tokens but the first; a tensor without a dimension of tokens, whole."""
    later = []
    for leaf in tree_leaves(outputs):
        if isinstance(leaf, Tensor):
            shape = leaf.shape
            later.append(leaf.narrow(shape.index(_LENGTH), 1, _LENGTH - 1) if _LENGTH in shape else leaf)
    return later


def _is_in(fqn: str, outer: str) -> bool:
    return fqn != outer and (not outer or fqn.startswith(f"{outer}."))


def _whole(fqn: str, named: Mapping[str, nn.Module]) -> str:
    """The module whose core a mixing one is: the outermost attention, or the first with projections."""
    around = [fqn]
    while "." in around[-1]:
        around.append(parent_of(around[-1]))
    named_so = [name for name in around if _ATTENTION in type(named[name]).__name__]
    if named_so:
        return named_so[-1]
    has_linear = (
        name for name in around if any(isinstance(part, nn.Linear) for part in named[name].modules())
    )
    return next(has_linear, fqn)
