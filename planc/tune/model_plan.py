"""A plain plan of a model, for a search to start from."""

from __future__ import annotations

from planc.inventory.schema import Inventory
from planc.syntax.write import block, rule

TEXT = 'text("data/*.txt")'


def model_plan(
    model: str, inventory: Inventory, *, sequence_length: int, tokenizer: str, source: str = TEXT
) -> str:
    """Pretraining in bfloat16 with AdamW, on text files in the plan's directory, or on another source.

    `model`, `tokenizer` and `source` are as a plan writes them: a path in quotes, a call.
    """
    units = (rule([f"{layers}.*"], "unit") for layers in inventory.blocks)
    tokens = (f"tokenizer = {tokenizer}", f"sequence_length = {sequence_length}")
    kind = "kind = adamw(lr = 3e-4, betas = [0.9, 0.95], weight_decay = 0.1)"
    blocks = {
        "model": (f"hf = {model}",),
        "mesh": ("dp_shard = 2",),
        "fsdp on dp_shard": ("param_dtype = bfloat16", "reduce_dtype = float32", *units),
        "data": (f"source = {source}", *tokens, "micro_batch = 1"),
        "optimizer": (kind, "clip_grad_norm = 1.0"),
        "train": ("steps = 1000",),
    }
    return "".join(block(header, lines) for header, lines in blocks.items())
