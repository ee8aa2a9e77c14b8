"""Trains a Llama on bytes of text with PyTorch and transformers alone: what a plan says, written out by hand.

torchrun --nproc-per-node 4 examples/by_hand.py MODEL_FOLDER TEXT_FILE --dp-shard 2 --tp 2

The model's weights are read on rank 0 and sent to where they belong. FSDP2 over (dp_shard, cp), Ulysses
attention over cp, tensor parallelism with sequence parallelism over tp.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM


@dataclass(frozen=True, slots=True)
class Settings:
    """`tokens_per_step` over all ranks, `micro_batch` in sequences of one data-parallel rank."""

    model: Path
    text: Path
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    sequence_length: int = 256
    micro_batch: int = 4
    tokens_per_step: int = 4096
    steps: int = 120
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    max_norm: float = 1.0
    warmup: int = 10
    min_factor: float = 0.1
    device: str = "cpu"

    @property
    def global_batch(self) -> int:
        return self.tokens_per_step // self.sequence_length

    @property
    def num_micro_steps(self) -> int:
        return self.global_batch // (self.micro_batch * self.dp_shard)


@dataclass(frozen=True, slots=True)
class Trainer:
    """What training needs on one rank; a process group must stand."""

    settings: Settings
    mesh: DeviceMesh
    model: nn.Module
    optimizer: AdamW
    schedule: LambdaLR
    tokens: Tensor

    def step(self, sample_ids: Tensor) -> float:
        """The mean loss of the sequences `sample_ids` [global_batch], before the weights have followed it."""
        settings, loss = self.settings, torch.zeros((), device=self.settings.device)
        own = sample_ids.to(settings.device, non_blocking=True).view(
            settings.num_micro_steps, settings.dp_shard, settings.micro_batch
        )
        for micro_step, ids in enumerate(own[:, self.mesh["dp_shard"].get_local_rank()]):
            if isinstance(self.model, FSDPModule):
                self.model.set_requires_gradient_sync(micro_step == settings.num_micro_steps - 1)
            loss += self._backward(ids)
        sum_partial_gradients(self.model)
        nn.utils.clip_grad_norm_(self.model.parameters(), settings.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        for mesh_dim in ("dp_shard", "cp"):
            dist.all_reduce(loss, dist.ReduceOp.AVG, group=self.mesh[mesh_dim].get_group())
        return loss.item()

    def _backward(self, ids: Tensor) -> Tensor:
        """One micro-batch's part of this rank's loss, its gradients added up.

        FSDP averages gradients over ranks, and all have equally many tokens, so that each takes its own mean.
        """
        inputs, labels, position_ids = self._batch(ids)
        with loss_parallel() if self.settings.tp > 1 else contextlib.nullcontext():
            logits = self.model(input_ids=inputs, position_ids=position_ids, use_cache=False).logits
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten()) / self.settings.num_micro_steps
            loss.backward()
        return (loss.to_local() if isinstance(loss, DTensor) else loss).detach()

    def _batch(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, labels and positions [micro_batch, sequence_length / cp] of this rank's sequences."""
        length = self.settings.sequence_length
        places = torch.arange(length, device=self.settings.device).chunk(self.settings.cp)[
            self.mesh["cp"].get_local_rank()
        ]
        at = ids[:, None] * length + places
        return self.tokens[at].long(), self.tokens[at + 1].long(), places.expand(len(ids), -1)


def build(settings: Settings) -> Trainer:
    """The model divided over its ranks, with its weights, its optimizer and its data."""
    sizes = (settings.dp_shard, settings.cp, settings.tp)
    mesh = init_device_mesh(settings.device, sizes, mesh_dim_names=("dp_shard", "cp", "tp"))
    config = AutoConfig.from_pretrained(settings.model, local_files_only=True)
    attention = "sdpa" if settings.cp == 1 else register_ulysses(mesh["cp"])
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=attention
        )
    if settings.tp > 1:
        shard_tensor_parallel(model, mesh["tp"])
    if settings.dp_shard * settings.cp > 1:
        shard_fully(model, mesh)
    load_weights(model, settings.model, device=settings.device)
    optimizer = AdamW(decay_groups(model, settings), lr=settings.lr, betas=settings.betas, fused=True)
    schedule = LambdaLR(optimizer, partial(learning_rate_factor, settings=settings))
    tokens = torch.frombuffer(bytearray(settings.text.read_bytes()), dtype=torch.uint8)
    return Trainer(settings, mesh, model, optimizer, schedule, tokens.to(settings.device))


def shard_tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Every layer's work divided over the mesh; between modules, activations are divided along the sequence.

    The logits stay divided along the vocabulary, as loss_parallel wants them.
    """
    gathered = partial(PrepareModuleInput, desired_input_kwarg_layouts={"hidden_states": Replicate()})
    layer = {
        "input_layernorm": SequenceParallel(use_local_output=True),
        "self_attn": gathered(input_kwarg_layouts={"hidden_states": Shard(1)}),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "post_attention_layernorm": SequenceParallel(use_local_output=True),
        "mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }
    outside = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(use_local_output=True),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, {f"model.layers.*.{name}": style for name, style in layer.items()})
    parallelize_module(model, mesh, outside)


def shard_fully(model: Any, mesh: DeviceMesh) -> None:
    """FSDP2: a unit for what comes first, one for every layer, one for what comes last."""
    fsdp_mesh = mesh["dp_shard", "cp"]._flatten("fsdp")
    fully_shard(model.model.embed_tokens, mesh=fsdp_mesh, reshard_after_forward=False)
    for layer in model.model.layers:
        fully_shard(layer, mesh=fsdp_mesh)
    fully_shard([model.model.norm, model.lm_head], mesh=fsdp_mesh, reshard_after_forward=False)
    fully_shard(model, mesh=fsdp_mesh)


def load_weights(model: Any, folder: Path, *, device: str = "cpu") -> None:
    """Fills every rank's shards; rank 0 alone reads the files."""
    model.to_empty(device=device)
    # What no file holds, the frequencies of rotary embeddings, is computed anew.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(device)
    whole: dict[str, Tensor] = {}
    if dist.get_rank() == 0:
        for path in folder.glob("*.safetensors"):
            whole |= load_file(path)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole, options=options)


def register_ulysses(mesh: DeviceMesh) -> str:
    """The name of an attention whose sequence is divided: ranks exchange it for a share of the heads."""
    size, group = mesh.size(), mesh.get_group()

    def exchange(tensor: Tensor, *, given: int, taken: int) -> Tensor:
        outgoing = torch.stack(tensor.chunk(size, given))
        arrived = wait_tensor(all_to_all_single_autograd(outgoing, None, None, group))
        return torch.cat(arrived.unbind(), taken)

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        query, key, value = (exchange(tensor, given=1, taken=2) for tensor in (query, key, value))
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return exchange(out, given=2, taken=1).transpose(1, 2).contiguous(), None

    AttentionInterface.register("ulysses_by_hand", attend)
    return "ulysses_by_hand"


def decay_groups(model: nn.Module, settings: Settings) -> list[dict[str, Any]]:
    """Norms, which do not decay, and everything else."""
    named = list(model.named_parameters())
    norms = [parameter for name, parameter in named if "norm" in name]
    others = [parameter for name, parameter in named if "norm" not in name]
    return [
        {"params": norms, "weight_decay": 0.0},
        {"params": others, "weight_decay": settings.weight_decay},
    ]


def learning_rate_factor(done: int, *, settings: Settings) -> float:
    """The share of the peak: up to it in `warmup` steps, then down half a cosine to `min_factor`."""
    step = done + 1
    if step <= settings.warmup:
        return step / settings.warmup
    progress = (done - settings.warmup) / (settings.steps - settings.warmup)
    return settings.min_factor + (1 - settings.min_factor) * (1 + math.cos(math.pi * progress)) / 2


def sum_partial_gradients(model: nn.Module) -> None:
    """Makes gradients whole that ranks of tp have summands of: those of norms, which FSDP does not reduce."""
    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


def sample_order(num_sequences: int, settings: Settings) -> Iterable[Tensor]:
    """The sequences of each step, the same on all ranks: shuffled epochs, end to end."""
    generator, pending = torch.Generator().manual_seed(0), torch.empty(0, dtype=torch.int64)
    for _ in range(settings.steps):
        while len(pending) < settings.global_batch:
            pending = torch.cat((pending, torch.randperm(num_sequences, generator=generator)))
        yield pending[: settings.global_batch]
        pending = pending[settings.global_batch :]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    for name in ("--dp-shard", "--cp", "--tp"):
        parser.add_argument(name, type=int, default=1)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    settings = Settings(**vars(parser.parse_args()))
    if settings.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if settings.device == "cpu" else "cpu:gloo,cuda:nccl")
    trainer = build(settings)
    num_sequences = (len(trainer.tokens) - 1) // settings.sequence_length
    for number, sample_ids in enumerate(sample_order(num_sequences, settings), start=1):
        loss = trainer.step(sample_ids)
        if dist.get_rank() == 0:
            print(f"step {number}/{settings.steps}  loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
