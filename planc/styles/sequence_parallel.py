"""Norms and linear layers on a sharded sequence."""

from planc.inventory.schema import LINEAR_KINDS, Kind
from planc.styles.style import Style
from planc.vocab import Shard

RULES = """\
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
"""The fragment of plans/presets/llama.plan as a block of a plan."""

SEQUENCE_PARALLEL = Style(
    name="sequence_parallel",
    usual="model.norm",
    doc=(
        "Runs a norm, or a linear layer, on a sharded sequence dimension. Its parameters are replicated, and "
        "their gradients, each from a rank's own tokens, are reduced over the ranks. Also for the router of "
        "experts that `expert_parallel` has on ranks of tp."
    ),
    kinds=(Kind.NORM, *LINEAR_KINDS),
    parameters={},
    computes_on=Shard(1),
    input=Shard(1),
    output=Shard(1),
    options=("sequence_dim",),
    reduces_parameter_gradients=True,
    together=f"""\
Sequence parallelism takes rules for the embedding, norms, attention, MLP and head together. For a Llama, and
any model with its module names:

{RULES}
plans/presets/llama.plan has these rules. With `import "presets/llama.plan" as llama` at the top level,
`use llama.sequence_parallel` in `tensor_parallel` inserts them. The path starts from the plan's directory.
""",
)
