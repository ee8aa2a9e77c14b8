"""A plain plan of a model, for a search to start from."""

from __future__ import annotations

from planc.inventory.schema import Inventory


def model_plan(model: str, inventory: Inventory, *, sequence_length: int, tokenizer: str) -> str:
    """Pretraining in bfloat16 with AdamW, on text files in the plan's directory.

    `model` and `tokenizer` are as a plan writes them: a path in quotes, a call.
    """
    units = "".join(f'  "{block}.*" -> unit\n' for block in inventory.blocks)
    return f"""model {{
  hf = {model}
}}
mesh {{
  dp_shard = 2
}}
fsdp on dp_shard {{
  param_dtype = bfloat16
  reduce_dtype = float32
{units}}}
data {{
  source = text("data/*.txt")
  tokenizer = {tokenizer}
  sequence_length = {sequence_length}
  micro_batch = 1
}}
optimizer {{
  kind = adamw(lr = 3e-4, betas = [0.9, 0.95], weight_decay = 0.1)
  clip_grad_norm = 1.0
}}
train {{
  steps = 1000
}}
"""
