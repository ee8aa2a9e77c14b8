"""The work of a model's code outside of its modules' own forwards. Imports torch, for the probe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from planc.inventory.probe.equal_layers import passing
from planc.inventory.probe.forwards import NUM_TOKENS, run_again
from planc.vocab import parent_of

_SHARD = NUM_TOKENS // 2


def needing_all_tokens(model: PreTrainedModel, blocks: Sequence[str]) -> tuple[str, ...]:
    """The parents of blocks whose code outside of the layers does not work token by token.

    The embeddings outside of the layers give a shard of the tokens, and the layers what they get: then
    the head must get the shard. GPT-2 views its hidden states as the tokens that it began with.
    """
    head = model.get_output_embeddings()
    layers = [one for fqn, one in model.named_modules() if parent_of(fqn) in blocks]
    if head is None or not layers:
        return ()
    returned: dict[nn.Module, Any] = dict.fromkeys(layers)
    arrived: list[Tensor] = []
    with contextlib.ExitStack() as stack:

        def hook(handle: Any) -> None:
            stack.callback(handle.remove)

        for layer in layers:
            hook(layer.register_forward_hook(lambda one, _, output: returned.update({one: output})))
        run_again(model)
        stack.close()
        for fqn, module in model.named_modules():
            if isinstance(module, nn.Embedding) and not any(fqn.startswith(f"{block}.") for block in blocks):
                hook(module.register_forward_hook(_shard))
        for layer in layers:
            layer.forward = passing([returned[layer]])
            stack.callback(vars(layer).pop, "forward", None)
        hook(head.register_forward_pre_hook(lambda _, args: arrived.append(args[0])))
        with contextlib.suppress(Exception):  # the model's code may raise anything, before the head or behind
            run_again(model)
    is_shard = bool(arrived) and arrived[-1].ndim == 3 and arrived[-1].shape[:2] == (1, _SHARD)
    return () if is_shard else tuple(dict.fromkeys(parent_of(block) for block in blocks))


def _shard(_: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.narrow(1, 0, _SHARD) if output.ndim > 1 and output.shape[1] == NUM_TOKENS else output


def read_by_layers(model: PreTrainedModel, blocks: Sequence[str]) -> frozenset[str]:
    """The modules whose parameters a layer's own code reads, or code around the layers, not their forward."""
    owners: dict[int, set[str]] = {}
    for fqn, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), set()).add(fqn)
    inner = tuple(f"{fqn}." for fqn, _ in model.named_modules() if parent_of(fqn) in blocks)

    def is_on_stream(reader: str) -> bool:
        return not reader.startswith(inner)

    running: list[str] = []
    read: set[str] = set()

    class Reads(TorchFunctionMode):
        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if getattr(func, "__name__", "") != "__get__":
                for value in (*args, *(kwargs or {}).values()):
                    names = owners.get(id(value), set())
                    if names and names.isdisjoint(running) and is_on_stream(running[-1]):
                        read.update(names)
            return func(*args, **(kwargs or {}))

    with contextlib.ExitStack() as stack:
        for fqn, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(_entering(running, fqn)).remove)
            stack.callback(module.register_forward_hook(_leaving(running)).remove)
        with Reads():
            run_again(model)
    return frozenset(read)


def _entering(running: list[str], fqn: str) -> Callable[..., None]:
    return lambda *_: running.append(fqn)


def _leaving(running: list[str]) -> Callable[..., None]:
    def leave(*_: Any) -> None:
        running.pop()

    return leave
