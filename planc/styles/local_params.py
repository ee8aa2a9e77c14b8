"""Parameters that an attention has in addition to its projections."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Replicate

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
