"""A tiny Llama with its optimizer on a mesh, to be saved and loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers import LlamaConfig, LlamaForCausalLM

from planc.runtime.checkpoint_format.manifest import Progress
from planc.runtime.torch.checkpoint import Destination, TrainingState, save
from planc.runtime.torch.checkpoint.tensors import named_tensors
from planc.vocab import MeshDim

Layout = dict[MeshDim, int]
Digests = dict[str, str]

SINGLE: Layout = {}
TP2: Layout = {MeshDim.TP: 2}
TP4: Layout = {MeshDim.TP: 4}
FSDP4: Layout = {MeshDim.DP_SHARD: 4}
HSDP: Layout = {MeshDim.DP_REPLICATE: 2, MeshDim.DP_SHARD: 2}
FSDP2_TP2: Layout = {MeshDim.DP_SHARD: 2, MeshDim.TP: 2}
REPLICATED_TP2: Layout = {MeshDim.DP_REPLICATE: 2, MeshDim.TP: 2}

SEQ_LEN = 16


def progress_at(step: int) -> Progress:
    return Progress(step=step, samples_consumed=8 * step, seed=17, data_fingerprint="fp", epoch=0)


def build(layout: Layout, *, seed: int, is_tied: bool = False, hidden_size: int = 32) -> TrainingState:
    """A tiny Llama on a mesh; the vocabulary of 67 is uneven on every one. Every rank draws the same."""
    torch.manual_seed(seed)
    config = LlamaConfig(  # type: ignore[call-arg]  # base options come through kwargs
        vocab_size=67,
        hidden_size=hidden_size,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=is_tied,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    if layout:
        mesh = init_device_mesh("cpu", tuple(layout.values()), mesh_dim_names=tuple(layout))
        parallelize(model, mesh=mesh)
    return TrainingState(model, torch.optim.AdamW(model.parameters(), lr=1e-2))


def parallelize(model: LlamaForCausalLM, *, mesh: DeviceMesh) -> None:
    names = mesh.mesh_dim_names or ()
    if MeshDim.TP in names:
        parallelize_module(model, mesh[MeshDim.TP], tp_plan(model))
        if model.config.tie_word_embeddings:
            # parallelize_module makes two parameters of one.
            model.lm_head.weight = model.model.embed_tokens.weight
    data_names = tuple(name for name in names if name != MeshDim.TP)
    if MeshDim.DP_SHARD in data_names:
        data_mesh = mesh[data_names]
        for layer in model.model.layers:
            fully_shard(layer, mesh=data_mesh)
        fully_shard(model, mesh=data_mesh)


def tp_plan(model: LlamaForCausalLM) -> dict[str, ParallelStyle]:
    """Colwise and rowwise with sequence parallel."""
    plan: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for index in range(len(model.model.layers)):
        layer = f"model.layers.{index}."
        plan[layer + "input_layernorm"] = SequenceParallel()
        plan[layer + "post_attention_layernorm"] = SequenceParallel()
        plan[layer + "self_attn"] = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        )
        plan[layer + "mlp"] = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        )
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            plan[layer + name] = ColwiseParallel()
        for name in ("mlp.gate_proj", "mlp.up_proj"):
            plan[layer + name] = ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            plan[layer + name] = RowwiseParallel(output_layouts=Shard(1))
    return plan


def train_step(state: TrainingState, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(67, (2, SEQ_LEN), generator=generator)
    logits = state.model(input_ids=tokens, position_ids=torch.arange(SEQ_LEN)[None], use_cache=False).logits
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()  # type: ignore[no-untyped-call]
    state.optimizer.step()
    state.optimizer.zero_grad()


def digests(state: TrainingState) -> Digests:
    """The SHA-256 of every whole tensor, dtype and shape included."""
    found = {}
    for name, tensor in named_tensors(state).items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        text = f"{whole.dtype} {tuple(whole.shape)}".encode()
        found[name] = hashlib.sha256(text + whole.contiguous().numpy().tobytes()).hexdigest()
    return found


def save_at(state: TrainingState, *, root: Path, step: int, layout: Layout) -> Path:
    return save(state, to=destination(root, step=step, layout=layout))


def destination(
    root: Path, *, step: int, layout: Layout | None = None, keep_last: int | None = None
) -> Destination:
    """`step-N` beneath `root`, of a run that is nobody's."""
    return Destination(
        root=root,
        progress=progress_at(step),
        plan_hash="plan",
        model_digest="model",
        mesh=layout or {},
        keep_last=keep_last,
    )
