"""What is raced: Llamas and a mixture with weights on disk, and a plan for every way to shard them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planc.api import check_source
from planc.graph.graph import Graph
from planc.inventory.load import save_inventory
from planc.source import SourceFile
from tests.plans import PLANS

MODEL, LARGE_MODEL, MIXTURE, TEXT = "model", "large-model", "mixture", "text.txt"
SEQUENCE_LENGTH = 128
TOKENS_PER_STEP = 2048
LARGE_TOKENS_PER_STEP = 1024
_LARGE = {
    "vocab_size": 16_384,
    "hidden_size": 512,
    "intermediate_size": 1_536,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": False,
}
"""59 million parameters."""
_MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
}
"""Three million parameters in experts, and few others."""
MICRO_BATCH = 4
PIPELINED_MICRO_BATCH = 1
"""A pipeline needs several micro-batches a step."""
_SEQUENCE_PARALLEL = """\
tensor_parallel on tp {
  "model.embed_tokens" -> embedding_rowwise(output = Shard(1))
  "model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel
  "model.layers.*.{self_attn,mlp}" -> prepare_input(input = Shard(1), desired = Replicate())
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise
  "model.layers.*.self_attn.o_proj" -> rowwise(output = Shard(1))
  "model.layers.*.mlp.{gate,up}_proj" -> colwise
  "model.layers.*.mlp.down_proj" -> rowwise(output = Shard(1))
  "model.norm" -> sequence_parallel
  "lm_head" -> colwise(input = Shard(1), output = Shard(-1))
}
"""
_ULYSSES = """\
context_parallel on cp {
  rotate = ulysses
  load_balancer = none
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}
"""
_FSDP = """\
fsdp on dp_shard, cp {
  "model.embed_tokens" -> unit(reshard_after_forward = false)
  "model.layers.*" -> unit(reshard_after_forward = true)
  ["model.norm", "lm_head"] -> unit(reshard_after_forward = false)
}
"""
# What examples/by_hand.py has as its defaults.
_TRAINING = """\
data {{
  source = text("{text}")
  sequence_length = {sequence_length}
  micro_batch = {micro_batch}
}}
optimizer {{
  kind = adamw(lr = 4e-3, betas = [0.9, 0.95], weight_decay = 0.1, implementation = fused)
{clipping}  schedule = cosine(warmup = 10 steps, min_factor = 0.1)
  "**.*norm*" -> group(weight_decay = 0.0)
}}
train {{
  steps = {num_steps}
  tokens_per_step = {tokens_per_step}
}}
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """A mesh, without dims of one rank, and the model on it."""

    mesh: Mapping[str, int]
    is_large: bool = False
    """59 million parameters instead of one."""
    auto: str = ""
    """Which rules for tensor parallelism are not written out; with these nothing is clipped."""

    ep: int = 1
    """Neighboring ranks with different experts; with several, nothing is clipped."""

    @property
    def name(self) -> str:
        mesh = " · ".join(f"{mesh_dim} {size}" for mesh_dim, size in self.mesh.items()) or "1 rank"
        ep = f"ep {self.ep}" if self.ep > 1 else ""
        return ", ".join(filter(None, (mesh, "59 M" if self.is_large else "", self.auto, ep)))

    @property
    def model(self) -> str:
        return MIXTURE if self.ep > 1 else LARGE_MODEL if self.is_large else MODEL

    @property
    def tokens_per_step(self) -> int:
        return LARGE_TOKENS_PER_STEP if self.is_large else TOKENS_PER_STEP

    @property
    def micro_batch(self) -> int:
        return PIPELINED_MICRO_BATCH if "pp" in self.mesh else MICRO_BATCH

    @property
    def world_size(self) -> int:
        return math.prod(self.mesh.values())


SHAPES = (
    Shape({}),
    *(Shape({mesh_dim: size}) for size in (2, 4) for mesh_dim in ("dp_shard", "tp", "cp")),
    Shape({"dp_shard": 2, "tp": 2}),
)
"""Raced against the loop by hand."""
LARGE = tuple(
    Shape(mesh, is_large=True) for mesh in ({}, {"dp_shard": 2}, {"tp": 2}, {"dp_shard": 2, "tp": 2})
)
"""Raced against the loop by hand, too."""
AUTO = tuple(Shape({"tp": 2}, is_large=True, auto=auto) for auto in ("auto", "auto(solve)"))
"""Raced against transformers' tensor parallelism, by the model's own rules and by those that planc finds."""
EXPERTS = tuple(Shape({"dp_shard": 4}, ep=ep) for ep in (2, 4))
"""Raced against transformers' expert parallelism."""
WHOLE = tuple(Shape({"dp_replicate": size}) for size in (2, 4))
"""Raced, with those of dp_shard, against the straightforward script, which holds the whole model too."""
REPLICATED = tuple(Shape({"dp_replicate": 2}, is_large=is_large) for is_large in (False, True))
"""Raced against DistributedDataParallel by hand, under accelerate and under HF Trainer."""

PIPELINED = (Shape({"pp": 4}), Shape({"pp": 2}, is_large=True), Shape({"pp": 4}, is_large=True))
"""Raced against torch.distributed.pipelining, around the model's own forward and around its layers."""


def plan_text(shape: Shape, *, num_steps: int) -> str:
    """The plan; paths are relative to the workspace."""
    sizes = "".join(f"  {mesh_dim} = {size}\n" for mesh_dim, size in (shape.mesh or {"tp": 1}).items())
    blocks = [
        f'model {{\n  hf = "{shape.model}"\n  weights = pretrained\n}}\n',
        f"mesh {{\n{sizes}}}\n",
        "pipeline on pp {\n  schedule = one_f_one_b\n}\n" if "pp" in shape.mesh else "",
        _tensor_parallel(shape),
        _ULYSSES if "cp" in shape.mesh else "",
        f"expert_parallel on dp_shard {{\n  size = {shape.ep}\n  auto\n}}\n" if shape.ep > 1 else "",
        _FSDP if shape.mesh.keys() & {"dp_shard", "cp"} else "",
        _TRAINING.format(
            text=TEXT,
            sequence_length=SEQUENCE_LENGTH,
            micro_batch=shape.micro_batch,
            num_steps=num_steps,
            tokens_per_step=shape.tokens_per_step,
            clipping="" if shape.auto or shape.ep > 1 else "  clip_grad_norm = 1.0\n",
        ),
    ]
    return "\n".join(filter(None, blocks))


def _tensor_parallel(shape: Shape) -> str:
    if "tp" not in shape.mesh:
        return ""
    return f"tensor_parallel on tp {{\n  {shape.auto}\n}}\n" if shape.auto else _SEQUENCE_PARALLEL


def script_sizes(shape: Shape, *, num_steps: int) -> dict[str, Any]:
    """What examples/by_hand.py calls the same; paths are relative to the workspace."""
    return {
        "model": shape.model,
        "text": TEXT,
        "sequence_length": SEQUENCE_LENGTH,
        "micro_batch": shape.micro_batch,
        "tokens_per_step": shape.tokens_per_step,
        "steps": num_steps,
        **shape.mesh,
    }


def make_workspace(folder: Path, *, with_large: bool = False) -> Path:
    """`folder`, with configs, inventories and weights of the models, and with text for many steps."""
    _write_model(folder / MODEL, {})
    if with_large:
        _write_model(folder / LARGE_MODEL, _LARGE)
    _write_model(folder / MIXTURE, _MIXTURE)
    words = ("the", "mesh", "of", "ranks", "holds", "every", "weight", "once", "and", "sums", "gradients")
    text = " ".join(f"{words[(i * i + 3 * i) % len(words)]} {i}" for i in range(100_000))
    (folder / TEXT).write_text(text, encoding="utf-8")
    return folder


def _write_model(folder: Path, sizes: Mapping[str, object]) -> None:
    folder.mkdir()
    tiny = json.loads((PLANS / "models" / "tiny-llama" / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**tiny, **sizes}), encoding="utf-8")
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    save_inventory(folder)


def compile_shape(shape: Shape, *, num_steps: int, workspace: Path) -> Graph:
    """The graph of a shape's plan. ValueError with the findings if there are errors."""
    source = SourceFile("bench.plan", plan_text(shape, num_steps=num_steps))
    checked = check_source(source, base=workspace, world_size=shape.world_size)
    if checked.graph is None:
        raise ValueError(f"{shape.name}: {'; '.join(map(str, checked.diagnostics))}")
    return checked.graph
