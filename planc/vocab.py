"""The words every phase shares, as plain data: mesh dims, placements, dtypes, names of modules.

The names are PyTorch's. Nothing here imports torch; `planc.runtime.torch` translates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Literal, assert_never

from planc.record import record


class MeshDim(StrEnum):
    """A dimension of the device mesh. Members are in order, outermost first: ranks of `tp` are adjacent."""

    PP = "pp"
    DP_REPLICATE = "dp_replicate"
    DP_SHARD = "dp_shard"
    CP = "cp"
    TP = "tp"


class ExpertDim(StrEnum):
    """A factor of the mesh dims that experts are on, outermost first: ranks of `ep` are adjacent."""

    EFSDP = "efsdp"
    """Ranks that hold shards of the same experts."""
    EP = "ep"
    """Ranks that hold different experts."""


GroupDim = MeshDim | ExpertDim
"""A dim along which ranks form groups."""


def of_experts(shard_over: Sequence[MeshDim], *, split: Collection[MeshDim]) -> tuple[GroupDim, ...]:
    """The dims that shard experts, of those that shard other weights: of the ones that are split, the factor
    whose ranks hold the same experts."""
    own = (ExpertDim.EFSDP if dim in split else dim for dim in shard_over)
    # FSDP shards nothing else over tp.
    return tuple(dict.fromkeys((*own, *([ExpertDim.EFSDP] if split else []))))


MESH_DIMS: tuple[MeshDim, ...] = tuple(MeshDim)
SAMPLE_DIMS = (MeshDim.DP_REPLICATE, MeshDim.DP_SHARD)
"""Mesh dims over which ranks see different samples."""
TOKEN_DIMS = (*SAMPLE_DIMS, MeshDim.CP)
"""Mesh dims over which ranks see different tokens."""
SHARD_DIMS = (MeshDim.DP_SHARD, MeshDim.CP)
"""Mesh dims that FSDP shards parameters over."""
EXPERT_DIMS = (*SHARD_DIMS, MeshDim.TP)
"""Mesh dims over which ranks can hold different experts; those of tp if they have shards of sequences."""
ELASTIC_DIMS = SAMPLE_DIMS
"""Mesh dims that an elastic run can shrink: the others split what a sample is computed from."""


@record
class Shard:
    """Sharded along one tensor dimension over the ranks of a mesh dim."""

    tensor_dim: int
    placement: Literal["Shard"] = "Shard"
    """Distinguishes placements in a serialized graph."""

    def __str__(self) -> str:
        return f"Shard({self.tensor_dim})"


@record
class StridedShard:
    """Sharded along a tensor dimension that packs `split_factor` tensors of one width, one after the other:
    each of them is sharded over the ranks, and a rank holds its part of every one."""

    tensor_dim: int
    split_factor: int
    placement: Literal["StridedShard"] = "StridedShard"

    def __str__(self) -> str:
        return f"StridedShard({self.tensor_dim}, split_factor={self.split_factor})"

    def widths_of(self, length: int) -> tuple[int, ...]:
        """The widths of what a dimension of this length packs."""
        return (length // self.split_factor,) * self.split_factor


@record
class PackedShard:
    """Like StridedShard, for a dimension that packs tensors of these widths, which may differ."""

    tensor_dim: int
    widths: tuple[int, ...]
    placement: Literal["PackedShard"] = "PackedShard"

    def __str__(self) -> str:
        return f"PackedShard({self.tensor_dim}, widths={list(self.widths)})"

    def widths_of(self, length: int) -> tuple[int, ...]:
        """The widths of what the dimension packs."""
        return self.widths


@record
class Replicate:
    """Whole and equal on every rank of a mesh dim."""

    placement: Literal["Replicate"] = "Replicate"

    def __str__(self) -> str:
        return "Replicate()"


@record
class Partial:
    """Whole on every rank, to be summed over the mesh dim before it means anything."""

    placement: Literal["Partial"] = "Partial"

    def __str__(self) -> str:
        return "Partial()"


Placement = Shard | StridedShard | PackedShard | Replicate | Partial


def sharded_lengths(placement: Placement, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The lengths that ranks share of a tensor of this shape: several where it packs several."""
    match placement:
        case Shard(tensor_dim) if tensor_dim < len(shape):
            return (shape[tensor_dim],)
        case StridedShard(tensor_dim) | PackedShard(tensor_dim) if tensor_dim < len(shape):
            return placement.widths_of(shape[tensor_dim])
        case Shard() | StridedShard() | PackedShard() | Replicate() | Partial():
            return ()
        case _:
            assert_never(placement)


def is_sharded(placement: Placement) -> bool:
    """Whether ranks hold different parts."""
    return isinstance(placement, Shard | StridedShard | PackedShard)


def local_length(length: int, *, parts: int, index: int) -> int:
    """Elements of part `index` when `length` elements are chunked as DTensor does (ceil, last ones short)."""
    chunk = -(-length // parts)
    return max(0, min(chunk, length - index * chunk))


def local_shape(shape: tuple[int, ...], placement: Placement, *, parts: int, index: int) -> tuple[int, ...]:
    """The shape that rank `index` of a mesh dim of size `parts` holds of a tensor of `shape`."""
    match placement:
        case Shard(tensor_dim):
            dim = tensor_dim % len(shape)
            local = local_length(shape[dim], parts=parts, index=index)
            return (*shape[:dim], local, *shape[dim + 1 :])
        case StridedShard(tensor_dim) | PackedShard(tensor_dim):
            dim = tensor_dim % len(shape)
            widths = placement.widths_of(shape[dim])
            local = sum(local_length(width, parts=parts, index=index) for width in widths)
            return (*shape[:dim], local, *shape[dim + 1 :])
        case Replicate() | Partial():
            return shape
        case _:
            assert_never(placement)


class DType(StrEnum):
    """Element types a plan can name."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def size_bytes(self) -> int:
        return _SIZE_BYTES[self]


_SIZE_BYTES = {DType.FLOAT64: 8, DType.FLOAT32: 4, DType.BFLOAT16: 2, DType.FLOAT16: 2}


class LogitsFunction(StrEnum):
    """A function of each logit alone."""

    MULTIPLY = "multiply"
    DIVIDE = "divide"
    TANH = "tanh"
    FLOAT32 = "float32"
    """A cast."""


@record
class LogitsStep:
    """One function, and the number it multiplies or divides by; 1 for the others."""

    function: LogitsFunction
    by: float = 1.0

    def __str__(self) -> str:
        is_scaled = self.function in (LogitsFunction.MULTIPLY, LogitsFunction.DIVIDE)
        return f"{self.function} by {self.by:g}" if is_scaled else str(self.function)


class Task(StrEnum):
    """The labels that a model is trained on."""

    CAUSAL_LM = "causal_lm"
    """Each token's label is the next token, and no token sees later ones."""
    MASKED_LM = "masked_lm"
    """Chosen tokens are hidden, and are their own labels; every token sees all others."""
    SEQUENCE_CLASSIFICATION = "sequence_classification"
    """A sequence has one label, its class. Its model is of either kind."""
    TOKEN_CLASSIFICATION = "token_classification"
    """The first token of each word has one label, the word's class. Its model is of either kind."""
    SEQ2SEQ_LM = "seq2seq_lm"
    """Each token of a target is the label of the target's tokens before it and of the whole input. Its model
    has an encoder for the input and a decoder for the target."""
    IMAGE_TEXT_TO_TEXT = "image_text_to_text"
    """Each token's label is the next token, and no token sees later ones; those of images have no label. Its
    model is a decoder that has an encoder of images."""
    EMBEDDING = "embedding"
    """A sequence is a vector, whose label is another sequence's. Its model has no head, and is of either
    kind."""


@record
class ImageShape:
    """The size to which an image is brought, and the squares that an encoder cuts it into, in pixels."""

    height: int
    width: int
    patch: int
    """The side of a patch."""
    merge: int
    """The patches on a side of a token: the encoder makes one of each square of them."""
    frames: int
    """The times that a patch holds its pixels: encoders of video take a still image for a short one."""

    def __str__(self) -> str:
        return f"{self.height} x {self.width} pixels"

    @property
    def rows(self) -> int:
        """Rows of patches."""
        return self.height // self.patch

    @property
    def columns(self) -> int:
        """Columns of patches."""
        return self.width // self.patch

    @property
    def num_patches(self) -> int:
        return self.rows * self.columns

    @property
    def num_tokens(self) -> int:
        return self.num_patches // self.merge**2

    @property
    def values(self) -> int:
        """Values of a patch: of three colors."""
        return 3 * self.frames * self.patch**2


class Pooling(StrEnum):
    """The way from the hidden states of a sequence's tokens to its vector."""

    MEAN = "mean"
    CLS = "cls"
    """The first token's, which encoders put before a text for that."""
    LAST = "last"
    """The last token's, which alone sees all others in a decoder."""


@record
class Classes:
    """The number of a classifier's classes, which a text or each word has, as `task` has it; 0 of a model
    without a head."""

    task: Task
    labels: int

    def __str__(self) -> str:
        return f"{self.task}(labels = {self.labels})" if self.labels else str(self.task)


NO_HEAD = Classes(Task.EMBEDDING, 0)
"""An embedding model has this in the place of a head."""


CLASSIFIERS: Mapping[Task, str] = {
    Task.SEQUENCE_CLASSIFICATION: "ForSequenceClassification",
    Task.TOKEN_CLASSIFICATION: "ForTokenClassification",
}
"""The ends of the names of transformers' classifiers."""


class DropoutDim(StrEnum):
    """A dimension of a tensor that dropout takes, whose length depends on the batch."""

    BATCH = "batch"
    SEQUENCE = "sequence"
    TOKENS = "tokens"
    """Batch and sequence as one dimension, one sample after the other."""


SINKS = "s_aux"
SOFTCAP = "softcap"
"""The name by which attentions get a learned score for each head, of a key without a value."""
POSITION_BIAS = "position_bias"
"""An attention's extra: learned numbers for each head and distance are added to the scores."""
IGNORED_LABEL = -100
"""The label of a position that the loss ignores, as in transformers."""
SEES_LATER_TOKENS = frozenset(("bidirectional", "is_causal"))
"""Features of attention to later tokens: of the module itself, and of `is_causal = False` in a call."""


def parent_of(name: str) -> str:
    """The name of the module that holds a module or a parameter; empty for the root."""
    return name.rpartition(".")[0]


@lru_cache(maxsize=2**16)  # an estimate asks for each name hundreds of times
def outwards(name: str) -> tuple[str, ...]:
    """The name of a module, then those of the modules around it, innermost first, without the root's."""
    names = []
    while name:
        names.append(name)
        name = parent_of(name)
    return tuple(names)


def ancestors(name: str) -> tuple[str, ...]:
    """The names of the modules around a module or a parameter, as `outwards` has them."""
    return outwards(parent_of(name))


DROP, DOWN, UP, MAGNITUDE = "lora_dropout", "lora_A", "lora_B", "lora_magnitude_vector"
"""The parts of an adapter, inside of the linear layer that it belongs to, by peft's names: the dropout of its
input, if it has one, two linear layers, and with DoRA the lengths of the rows of the layer's weight."""


def is_of_experts_adapter(parameter: str) -> bool:
    """Whether a parameter is A or B of the adapters of stacked experts, by its name."""
    return parameter.endswith((f"_{DOWN}", f"_{UP}"))
