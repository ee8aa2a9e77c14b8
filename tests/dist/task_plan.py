"""The plan with which other tasks than causal language models are compared with a loop by hand."""

from __future__ import annotations

from torch import Tensor, nn

LENGTH, BATCH, NUM_STEPS, SEED = 16, 4, 5, 3
MESHES = {
    "1": (),
    "dp2": ("mesh.dp_shard=2",),
    "tp2": ("mesh.tp=2",),
    "dp2 tp2": ("mesh.dp_shard=2", "mesh.tp=2"),
}


def plan_text(*, task: str, layers: str, source: str, other: str) -> str:
    """The plan of a task, with a unit for each of `layers`; `other` is the source of its evaluation."""
    return f"""\
model {{
  hf = "model"
  task = {task}
  weights = pretrained
  dtype = float64
  dropout = false
}}

mesh {{
  dp_shard = 1
}}

tensor_parallel on tp {{
  auto(solve)
}}

fsdp on dp_shard {{
  "{layers}" -> unit
}}

data {{
  source = {source}
  sequence_length = {LENGTH}
  micro_batch = 2
  shuffle_seed = {SEED}

  eval "held_out" {{
    source = {other}
    every = {NUM_STEPS} steps
  }}
}}

optimizer {{
  kind = adamw(lr = 1e-2, betas = [0.9, 0.95], eps = 1e-6, weight_decay = 0.1)
  clip_grad_norm = 1.0
}}

checkpoint {{
  save_every = 2 steps

  export "hf" {{
    when = end
  }}
}}

train {{
  steps = {NUM_STEPS}
  tokens_per_step = {BATCH * LENGTH}
}}
"""


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of what is trained."""
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
