"""`model.build`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record
from planc.vocab import DType


@record(kw_only=True)
class BuildModel(Op):
    op: Literal["model.build"] = "model.build"
    stage: ClassVar[Stage] = Stage.BUILD
    summary: ClassVar[str] = "Builds the model on the meta device: modules and shapes without memory."
    path: str
    """The model directory as the plan names it."""
    config_digest: str
    """SHA-256 of its config.json."""
    architecture: str
    dtype: DType
    own_dtypes: tuple[tuple[str, DType], ...]
    """Parameters and buffers that the model's code builds in another dtype, by name."""
    kept_in_float32: tuple[str, ...]
    """Parameters and buffers that are float32, random or loaded, because `from_pretrained` keeps them so; the
    model's code builds them in `dtype`."""
    zeroed: tuple[str, ...]
    """Fields of config.json that are set to 0 because training would draw random numbers for them."""
    rope: tuple[tuple[str, str | int | float], ...] = ()
    """What the plan states in place of config.json's `rope_parameters`, by transformers' names."""
    rope_positions: int | None = None
    """The length of sequences, if rotary embeddings depend on it: they are computed for it once."""

    @property
    def other_dtypes(self) -> dict[str, DType]:
        """The dtype of every parameter and buffer with another dtype than `dtype`."""
        return {**dict(self.own_dtypes), **dict.fromkeys(self.kept_in_float32, DType.FLOAT32)}

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MESH,), writes=(Resource.MODEL,))
