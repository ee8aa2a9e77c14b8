"""What is raced: a tiny Llama with weights on disk, and a plan for every way to divide it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planc.api import check_source
from planc.graph.graph import Graph
from planc.source import SourceFile
from tests.plans import PLANS

MODEL, TEXT = "model", "text.txt"
SEQUENCE_LENGTH = 128
TOKENS_PER_STEP = 2048
MICRO_BATCH = 4
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
  kind = adamw(lr = 4e-3, betas = [0.9, 0.95], weight_decay = 0.1)
  clip_grad_norm = 1.0
  schedule = cosine(warmup = 10 steps, min_factor = 0.1)
  "**.*norm*" -> group(weight_decay = 0.0)
}}
train {{
  steps = {num_steps}
  tokens_per_step = {tokens_per_step}
}}
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """A mesh; dims of one rank are left out."""

    mesh: Mapping[str, int]

    @property
    def name(self) -> str:
        return " · ".join(f"{mesh_dim} {size}" for mesh_dim, size in self.mesh.items()) or "1 rank"

    @property
    def world_size(self) -> int:
        return math.prod(self.mesh.values())


SHAPES = (
    Shape({}),
    *(Shape({mesh_dim: size}) for size in (2, 4) for mesh_dim in ("dp_shard", "tp", "cp")),
    Shape({"dp_shard": 2, "tp": 2}),
)
"""Raced against the loop by hand."""
WHOLE = tuple(Shape({"dp_replicate": size}) for size in (2, 4))
"""Raced, with those of dp_shard, against the straightforward script, which holds the whole model too."""


def plan_text(shape: Shape, *, num_steps: int) -> str:
    """The plan; paths are relative to the workspace."""
    sizes = "".join(f"  {mesh_dim} = {size}\n" for mesh_dim, size in (shape.mesh or {"tp": 1}).items())
    blocks = [
        f'model {{\n  hf = "{MODEL}"\n  weights = pretrained\n}}\n',
        f"mesh {{\n{sizes}}}\n",
        _SEQUENCE_PARALLEL if "tp" in shape.mesh else "",
        _ULYSSES if "cp" in shape.mesh else "",
        _FSDP if shape.mesh.keys() & {"dp_shard", "cp"} else "",
        _TRAINING.format(
            text=TEXT,
            sequence_length=SEQUENCE_LENGTH,
            micro_batch=MICRO_BATCH,
            num_steps=num_steps,
            tokens_per_step=TOKENS_PER_STEP,
        ),
    ]
    return "\n".join(filter(None, blocks))


def script_sizes(shape: Shape, *, num_steps: int) -> dict[str, Any]:
    """What examples/by_hand.py calls the same; paths are relative to the workspace."""
    return {
        "model": MODEL,
        "text": TEXT,
        "sequence_length": SEQUENCE_LENGTH,
        "micro_batch": MICRO_BATCH,
        "tokens_per_step": TOKENS_PER_STEP,
        "steps": num_steps,
        **shape.mesh,
    }


def make_workspace(folder: Path) -> Path:
    """`folder`, with the model's config, inventory and weights, and with text for many steps."""
    model_folder = folder / MODEL
    shutil.copytree(PLANS / "models" / "tiny-llama", model_folder)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(model_folder, local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder / "saved")
    shutil.move(folder / "saved" / "model.safetensors", model_folder)
    words = ("the", "mesh", "of", "ranks", "holds", "every", "weight", "once", "and", "sums", "gradients")
    text = " ".join(f"{words[(i * i + 3 * i) % len(words)]} {i}" for i in range(100_000))
    (folder / TEXT).write_text(text, encoding="utf-8")
    return folder


def compile_shape(shape: Shape, *, num_steps: int, workspace: Path) -> Graph:
    """The graph of a shape's plan. ValueError with the findings if there are errors."""
    source = SourceFile("bench.plan", plan_text(shape, num_steps=num_steps))
    checked = check_source(source, base=workspace, world_size=shape.world_size)
    if checked.graph is None:
        raise ValueError(f"{shape.name}: {'; '.join(map(str, checked.diagnostics))}")
    return checked.graph
