"""Redistribution at a container's entrance."""

from planc.inventory.schema import Kind
from planc.styles.model import Style
from planc.vocab import Replicate

PREPARE_INPUT = Style(
    name="prepare_input",
    doc=(
        "Redistributes a module's hidden states from `input` to `desired` before it runs, once for all the "
        "layers inside: under sequence parallelism the all-gather before attention and before the MLP."
    ),
    kinds=(Kind.CONTAINER, Kind.LINEAR, Kind.OTHER),
    parameters={},
    computes_on=Replicate(),
    input=Replicate(),
    output=Replicate(),
    options=("input", "desired"),
)
