"""The backends of torch.compile that a plan may choose."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from planc.plan.keys import key, keyed
from planc.plan.scalars import Choice
from planc.record import record


class InductorMode(StrEnum):
    DEFAULT = "default"
    MAX_AUTOTUNE_NO_CUDAGRAPHS = "max_autotune_no_cudagraphs"


@keyed
class Inductor:
    """Fuse the operations between matmuls into kernels; needs a C++ compiler on CPU."""

    mode: InductorMode = key(Choice(InductorMode), unsaid=InductorMode.DEFAULT, doc="the kernel search")


@record
class AotEager:
    """Trace forward and backward, and run them op by op: to find which compiler stage fails."""


@record
class Eager:
    """Trace forward and run it op by op: to find which compiler stage fails."""


COMPILE_BACKENDS: Mapping[str, type[Inductor | AotEager | Eager]] = {
    "inductor": Inductor,
    "aot_eager": AotEager,
    "eager": Eager,
}
