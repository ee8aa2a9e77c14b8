"""A tensor-parallel plan, and the rules of a decoder that is divided, as tests of rules edit them."""

PLAN = """\
model {{
  hf = "models/{model}"
}}
mesh {{
  tp = {tp}
}}
tensor_parallel on tp {{
{rules}}}
data {{
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 4
}}
optimizer {{
  kind = adamw(lr = 1e-3)
}}
train {{
  steps = 10
}}
"""
"""To be formatted with `model`, `tp` and `rules`, each line of which is indented."""

ATTENTION, MLP = '"model.layers.*.self_attn', '"model.layers.*.mlp'
HEADS, OUT = f'{ATTENTION}.{{q,k,v}}_proj" -> colwise', f'{ATTENTION}.o_proj" -> rowwise'
UP, DOWN = f'{MLP}.{{gate,up}}_proj" -> colwise', f'{MLP}.down_proj" -> rowwise'
HEAD_NORMS = f'{ATTENTION}.{{q,k}}_norm" -> replicated_with_grad_allreduce'

# With a divided sequence:
EMBEDDING = '"model.embed_tokens" -> embedding_rowwise(output = Shard(1))'
NORMS = '"model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel'
GATES = '"model.layers.*.{self_attn,mlp}" -> prepare_input(input = Shard(1), desired = Replicate())'
TOKENS_OUT, TOKENS_DOWN = f"{OUT}(output = Shard(1))", f"{DOWN}(output = Shard(1))"
NORM = '"model.norm" -> sequence_parallel'
HEAD = '"lm_head" -> colwise(input = Shard(1), output = Shard(-1))'
