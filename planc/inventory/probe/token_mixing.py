"""Modules of a model that let tokens see others, tried on a small one. Imports torch, for the probe."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from planc.inventory.probe.small_attention import token_ids
from planc.modeling.private import tree_leaves, tree_map_only
from planc.vocab import parent_of

_LENGTH = 19
"""Tokens: a number that no width has."""
_ATTENTION = "Attention"


@dataclass(slots=True)
class _Seen:
    """The first call of a module, and the outputs of all its calls."""

    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    outputs: list[Any] = field(default_factory=list)


def mixing_modules(model: PreTrainedModel, *, attending: Sequence[nn.Module]) -> tuple[str, ...]:
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
