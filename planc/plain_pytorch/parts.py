"""The definitions that scripts are generated from. planc copies them as text and never imports this file.

A definition in a script brings along the definitions that it uses.
"""

from __future__ import annotations

import codecs
import glob
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn.functional import scaled_dot_product_attention
from torch.optim import Optimizer
from transformers import AttentionInterface, PreTrainedModel

from planc.modeling.placed_draws import Whole, replaced_truncation


class PrepareInput(ParallelStyle):
    """Redistributes a module's hidden states, passed by position or by name, before it runs."""

    def __init__(self, arriving: Placement, desired: Placement) -> None:
        super().__init__()
        self.arriving, self.desired = arriving, desired

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def prepare(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            if arguments:
                return (self._move(arguments[0], device_mesh), *arguments[1:]), keywords
            moved = self._move(keywords["hidden_states"], device_mesh)
            return arguments, {**keywords, "hidden_states": moved}

        module.register_forward_pre_hook(prepare, with_kwargs=True)
        return module

    def _move(self, tensor: Tensor, mesh: DeviceMesh) -> Tensor:
        return DTensor.from_local(tensor, mesh, (self.arriving,), run_check=False).redistribute(
            placements=(self.desired,)
        )


def shard_fully(targets: Sequence[Any], **options: Any) -> None:
    """Shard FSDP2 units, each one module or several that are gathered together.

    Gradients are summed, not averaged, because the loss is divided by the tokens of all ranks.
    """
    for target in targets:
        fully_shard(target, **options)
        for module in target if isinstance(target, list) else [target]:
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)


def register_attention(compute: Callable[..., Tensor]) -> str:
    """Register an attention that is only causal, over the whole sequence; return its name."""

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        options = {"a mask": attention_mask, "a sliding window": sliding_window, "capped scores": softcap}
        for what, given in (options | {"dropout": dropout or None, "sinks": s_aux}).items():
            if given is not None:
                raise ValueError(f"this script's attention does not support {what}")
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return compute(query, key, value, scale).transpose(1, 2).contiguous(), None

    AttentionInterface.register("causal", attend)
    return "causal"


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """[batch, heads, sequence, head_dim]."""
    grouped = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)


def ulysses_attention(mesh: DeviceMesh) -> Callable[..., Tensor]:
    """Causal attention on a sharded sequence: ranks exchange it for shards of the heads, and back."""
    size, group = mesh.size(), mesh.get_group()

    def exchange(tensor: Tensor, given: int, taken: int) -> Tensor:
        outgoing = torch.stack(tensor.chunk(size, given))
        arrived: Any = all_to_all_single_autograd(outgoing, None, None, group)
        arrived = wait_tensor(arrived)  # type: ignore[no-untyped-call]
        return torch.cat(arrived.unbind(), taken)

    def compute(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        repeats = max(1, size // key.shape[1])
        key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
        query, key, value = (exchange(tensor, 1, 2) for tensor in (query, key, value))
        return exchange(causal_attention(query, key, value, scale), 2, 1)

    return compute


def derived_seed(*parts: object) -> int:
    """Derive a 63-bit seed from its purpose."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def key_of_draw(seed: int, inside: str, name: str, number: int) -> int:
    """The key of a tensor's draws, which are numbered from 0; `inside` is its module's name and a dot."""
    return derived_seed(seed, "init", inside + name, number)


def keep_in_float32(model: nn.Module, names: Sequence[str]) -> None:
    """Cast tensors on the meta device."""
    for name in names:
        fqn, _, own = name.rpartition(".")
        module = model.get_submodule(fqn)
        tensor = getattr(module, own).float()
        setattr(module, own, nn.Parameter(tensor) if own in module._parameters else tensor)


def drawn(model: Any, fqns: Sequence[str], *, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Draw the full tensors of the named modules by the model's own initialization.

    Each element's draw follows from its place in a tensor of this name, so the mesh does not change it.
    """
    # Casting the whole model would round tensors that its code creates in float32, as rotary frequencies.
    with torch.device("meta"):
        named = dict(type(model)._from_config(model.config).named_modules())
    for fqn in fqns:
        module = named[fqn]
        empty: dict[str, Tensor] = {}
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is not None:
                    unset = torch.empty(tensor.shape, dtype=tensor.dtype)
                    own[name] = empty[name] = nn.Parameter(unset) if own is module._parameters else unset
        draws = Whole(empty, partial(key_of_draw, seed, f"{fqn}." if fqn else ""))
        holders = [".".join(fqn.split(".")[:end]) for end in range(len(fqn.split(".")), 0, -1)]
        for holder in dict.fromkeys((*holders, "")):
            torch.manual_seed(derived_seed(seed, "init", holder))
            inner = (".".join(holder.split(".")[:end]) for end in range(len(holder.split(".")), -1, -1))
            owner = next(named[name] for name in inner if isinstance(named[name], PreTrainedModel))
            with torch.no_grad(), replaced_truncation(draws), draws:
                owner._init_weights(named[holder])
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is not None:
                    yield f"{fqn}.{name}" if fqn else name, tensor.detach()
                    own[name] = tensor.to("meta")


def fill_buffers(model: Any, *, seed: int) -> None:
    """Recompute tensors that no file has, such as the frequencies of rotary embeddings."""
    buffers = dict(model.named_buffers())
    with_buffers = [fqn for fqn, module in model.named_modules() if module._buffers]
    for name, tensor in drawn(model, with_buffers, seed=seed):
        if name in buffers:
            buffers[name].copy_(tensor)


def fill_parameters(model: nn.Module, read: Callable[[], dict[str, Tensor]]) -> None:
    """Distribute the parameters' shards to all ranks; only rank 0 reads the full tensors."""
    whole: dict[str, Any] = {**read()} if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole, options=options)


def drawn_parameters(model: nn.Module, *, seed: int) -> dict[str, Tensor]:
    """Every parameter by its name."""
    names = {name for name, _ in model.named_parameters()}
    fqns = [fqn for fqn, _ in model.named_modules()]
    return {name: tensor for name, tensor in drawn(model, fqns, seed=seed) if name in names}


def stored_parameters(folder: Path) -> dict[str, Tensor]:
    """Every parameter by its name, from all weight files in a directory."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def learning_rate_factor(
    step: int, *, kind: str, warmup_steps: int, decay_steps: int, min_factor: float, num_steps: int
) -> float:
    """The share of the peak rate at a step, counted from 1: warmup, then decay to `min_factor`."""
    if step <= warmup_steps:
        return step / warmup_steps
    if kind == "constant":
        return 1.0
    progress = min(1.0, max(0, step - (num_steps - decay_steps)) / max(1, decay_steps))
    fall = 0.5 * (1.0 + math.cos(math.pi * progress)) if kind == "cosine" else 1.0 - progress
    return min_factor + (1.0 - min_factor) * fall


def by_mesh(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split each group by its parameters' meshes, because no kernel takes parameters of several meshes."""
    apart: list[dict[str, Any]] = []
    for group in groups:
        found: dict[Any, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            found.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        apart.extend({**group, "params": members} for members in found.values())
    return apart


def set_learning_rate(optimizer: Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def text_files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files that match the patterns, in the patterns' order, sorted for each, without duplicates."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        paths = [folder / name for name in sorted(glob.glob(pattern, root_dir=folder, recursive=True))]
        found.update(dict.fromkeys(path for path in paths if not path.is_dir()))
    return list(found)


def bytes_of(paths: Sequence[Path]) -> Tensor:
    """Concatenate all documents: a token is a byte, and 256 ends a document."""
    end = np.array([256], dtype=np.int16)
    contents = [path.read_bytes().removeprefix(codecs.BOM_UTF8) for path in paths]
    parts = [np.frombuffer(content, dtype=np.uint8).astype(np.int16) for content in contents]
    return torch.from_numpy(np.concatenate([part for document in parts for part in (document, end)]))


def sample_ids(step: int, *, num_sequences: int, global_batch: int, seed: int) -> Tensor:
    """The sequence ids of a step over all ranks, from concatenated shuffled epochs."""
    positions = np.arange((step - 1) * global_batch, step * global_batch)
    epochs = {
        epoch: np.argsort(
            np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(num_sequences), kind="stable"
        )
        for epoch in {int(position) // num_sequences for position in positions}
    }
    ids = [epochs[int(at) // num_sequences][int(at) % num_sequences] for at in positions]
    return torch.tensor(np.array(ids, dtype=np.int64))


def all_reduce_gradients(model: nn.Module, mesh: DeviceMesh, *, blocks: Sequence[str]) -> None:
    """All-reduce every gradient over the mesh: one message per layer of the blocks, one for the rest."""
    together: dict[tuple[str, ...], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        block = next((block for block in blocks if name.startswith(f"{block}.")), "")
        layer = name.removeprefix(f"{block}.").partition(".")[0] if block else ""
        gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        together.setdefault((block, layer), []).append(gradient)
    for gradients in together.values():
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=mesh.get_group())
        summed = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, own in zip(gradients, summed, strict=True):
            gradient.copy_(own.view(gradient.shape))


def sum_partial_gradients(model: nn.Module) -> None:
    """Reduce gradients that are partial sums over tp."""
    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
            parameter.grad = gradient.redistribute(placements=parameter.placements)


@torch.no_grad()
def clip_gradients(model: nn.Module, *, max_norm: float) -> float:
    """Clip gradients to a global norm of `max_norm`; return the norm before clipping."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    squares: dict[tuple[Any, ...], Tensor] = {}
    for gradient in gradients:
        mesh: DeviceMesh | None = None
        local, dims = gradient, tuple[int, ...]()
        if isinstance(gradient, DTensor):
            mesh, local, placements = gradient.device_mesh, gradient.to_local(), gradient.placements
            dims = tuple(index for index, placement in enumerate(placements) if placement != Replicate())
        square = torch.linalg.vector_norm(local, dtype=torch.float64).square()
        squares[mesh, dims] = squares.get((mesh, dims), 0.0) + square
    for (mesh, dims), square in squares.items():
        for mesh_dim in dims:
            dist.all_reduce(square, group=mesh.get_group(mesh_dim))
    norm = math.sqrt(sum(square.item() for square in squares.values()))
    if not math.isfinite(norm):
        raise ValueError(f"the gradient norm is {norm}; no weight was changed")
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / (norm + 1e-6))
    return norm


def sharded_vocabulary(logits: Tensor, mesh: DeviceMesh, *, vocab_size: int) -> DTensor:
    """Logits sharded over the vocabulary, as loss_parallel needs them."""
    shape = torch.Size((*logits.shape[:-1], vocab_size))
    stride = (shape[1] * shape[2], shape[2], 1)
    return DTensor.from_local(logits, mesh, (Shard(-1),), run_check=False, shape=shape, stride=stride)
