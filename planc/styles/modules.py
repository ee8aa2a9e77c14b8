"""Styles of modules other than linear layers: embeddings, norms, containers, experts, and whole copies."""

from __future__ import annotations

from planc.inventory.schema import LINEAR_KINDS, Kind
from planc.styles.edges import READ_BY_PARTS, WHOLE, At, Edge
from planc.styles.style import Style
from planc.vocab import Partial, Replicate, Shard

EMBEDDING_ROWWISE = Style(
    name="embedding_rowwise",
    usual="model.embed_tokens",
    doc="Shards an embedding table by vocabulary rows: each rank looks up its own, and the results add up.",
    kinds=(Kind.EMBEDDING,),
    parameters={"weight": Shard(0)},
    computes_on=Replicate(),
    input=Replicate(),
    yields=Partial(),
    output=Replicate(),
    options=("output",),
)

EMBEDDING_COLWISE = Style(
    name="embedding_colwise",
    usual="model.embed_tokens",
    doc="Shards an embedding table by features; gathers the output unless the plan sets another.",
    kinds=(Kind.EMBEDDING,),
    parameters={"weight": Shard(1)},
    computes_on=Replicate(),
    input=Replicate(),
    yields=Shard(-1),
    output=Replicate(),
    options=("output",),
)


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


PREPARE_INPUT = Style(
    name="prepare_input",
    usual="model.layers.*.{self_attn,mlp}",
    doc=(
        "Redistributes a module's hidden states from `input` to `desired` before it runs, once for all the "
        "layers inside: under sequence parallelism the all-gather before attention and before the MLP."
    ),
    kinds=(Kind.CONTAINER,),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    reads_by_parts=True,
    output=Replicate(),
    options=("input", "desired"),
    prepares=True,
)

PREPARE_INPUT_OUTPUT = Style(
    name="prepare_input_output",
    usual="model.layers.*.mlp",
    doc=(
        "Like prepare_input, and redistributes the module's output from `desired` to `output`. Ranks do "
        "not sum the input's gradient, so layers without a style can read it: for a mixture of experts "
        "or a recurrence under sequence parallelism."
    ),
    kinds=(Kind.CONTAINER, Kind.OTHER),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
    options=("input", "desired", "output"),
    prepares=True,
)


MOE_TP_EXPERTS = Style(
    name="moe_tp_experts",
    usual="model.layers.*.mlp.experts",
    doc=(
        "Shards every expert of a mixture by its intermediate features, and reduces the experts' outputs. "
        "Gradients of the tokens and the router's weights are reduced too; the router stays replicated."
    ),
    kinds=(Kind.OTHER,),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    reads_by_parts=True,
    yields=Partial(),
    output=Replicate(),
    placed_by_model=True,
    more_edges=(Edge(At.ROUTING_WEIGHTS, WHOLE, READ_BY_PARTS),),
)


LOCAL_PARAMS = Style(
    name="local_params",
    usual="model.layers.*.mlp.gate",
    doc=(
        "Shards parameters that a module has in addition to its sharded layers, such as one number per head: "
        "every rank computes with its own shard."
    ),
    kinds=(Kind.OTHER,),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
    placed_by_model=True,
)


REPLICATE = Style(
    name="replicate",
    usual="lm_head",
    doc="Replicates a module on every rank: all ranks compute the same from the same input.",
    kinds=(*LINEAR_KINDS, Kind.EMBEDDING, Kind.NORM, Kind.OTHER),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
)

REPLICATED_WITH_GRAD_ALLREDUCE = Style(
    name="replicated_with_grad_allreduce",
    usual="model.layers.*.self_attn.{q,k}_norm",
    doc=(
        "Replicates parameters whose activations differ between ranks, such as query and key norms on "
        "sharded heads, and reduces their gradients over the ranks."
    ),
    kinds=(Kind.NORM,),
    parameters={},
    computes_on=Shard(-1),
    input=Shard(-1),
    output=Shard(-1),
    reduces_parameter_gradients=True,
)
