"""Long plans of Llama models, as a generator of plans writes them: a line for every module."""

from __future__ import annotations

LINES_OF_LAYER = 29
MIN_LINES = 80
HEAD = """\
model {
  hf = "models/{model}"
}
mesh {
  dp_replicate = 4
  dp_shard = 32
  cp = 16
  tp = 8
  devices_per_node = 8
}
context_parallel on cp {
  rotate = allgather
  "input_ids" -> Shard(1)
  "labels" -> Shard(1)
  "position_ids" -> Shard(1)
}
data {
  source = text("data/*.txt")
  sequence_length = 131_072
  micro_batch = 1
}
train {
  steps = 1_200_000
  tokens_per_step = 16_777_216
}
"""
STYLES = {
    "input_layernorm": "sequence_parallel",
    "self_attn": "prepare_input(input = Shard(1), desired = Replicate())",
    "self_attn.q_proj": "colwise",
    "self_attn.k_proj": "colwise",
    "self_attn.v_proj": "colwise",
    "self_attn.o_proj": "rowwise(output = Shard(1))",
    "post_attention_layernorm": "sequence_parallel",
    "mlp": "prepare_input(input = Shard(1), desired = Replicate())",
    "mlp.gate_proj": "colwise",
    "mlp.up_proj": "colwise",
    "mlp.down_proj": "rowwise(output = Shard(1))",
}
OUTER_STYLES = {
    "model.embed_tokens": "embedding_rowwise(output = Shard(1))",
    "model.norm": "sequence_parallel",
    "lm_head": "colwise(input = Shard(1), output = Shard(-1))",
}


def long_plan(num_lines: int, *, model: str, num_layers: int) -> str:
    """A sound plan of `num_lines` lines: layers one by one as long as there is room, then by one pattern.

    What no layer fills is filled with expectations.
    """
    num_single = min(num_layers - 2, (num_lines - MIN_LINES) // LINES_OF_LAYER)
    layers = [*map(str, range(num_single)), f"{{{num_single}..{num_layers - 1}}}"]
    units = [{f"model.layers.{layer}": "unit(reshard_after_forward = true)"} for layer in layers]
    groups = [_groups(number, layer) for number, layer in enumerate(layers)]
    written = "".join(
        (
            *(f"param decay_{number}: float(0.0..1.0) = 0.1\n" for number in range(len(layers))),
            HEAD.replace("{model}", model),
            *_block("tensor_parallel on tp", [_styles(layer) for layer in layers], OUTER_STYLES),
            *_block("fsdp on dp_shard, cp", units, {}, "replicate_on = dp_replicate"),
            *_block("activation_checkpoint", [{f"model.layers.{layer}": "full"} for layer in layers], {}),
            *_block("optimizer", groups, {}, "kind = adamw(lr = 8e-5)"),
        )
    )
    num_missing = num_lines - written.count("\n") - 2
    expected = "".join(f"  world_size >= {number}\n" for number in range(num_missing))
    return f"{written}expect {{\n{expected}}}\n"


def _styles(layer: str) -> dict[str, str]:
    return {f"model.layers.{layer}.{name}": style for name, style in STYLES.items()}


def _groups(number: int, layer: str) -> dict[str, str]:
    """One for every parameter of a layer."""
    names = (name for name, style in STYLES.items() if not style.startswith("prepare_input"))
    return {f"model.layers.{layer}.{name}.weight": f"group(weight_decay = decay_{number})" for name in names}


def _block(head: str, layers: list[dict[str, str]], others: dict[str, str], *settings: str) -> list[str]:
    """A block's lines: its settings, then the rules of each layer under a comment of its own."""
    lines = [f"{head} {{\n", *(f"  {setting}\n" for setting in settings)]
    for number, rules in enumerate(layers):
        lines.append(f"  # Layer {number}.\n")
        lines.extend(f'  "{pattern}" -> {action}\n' for pattern, action in rules.items())
        lines.append("\n" if len(rules) > 1 else "")
    lines.extend(f'  "{pattern}" -> {action}\n' for pattern, action in others.items())
    return [*lines, "}\n"]
