"""Redistribution of a container's input and output."""

from planc.inventory.schema import Kind
from planc.styles.style import Style
from planc.vocab import Replicate

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
