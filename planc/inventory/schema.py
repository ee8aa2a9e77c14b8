"""The inventory of a model: its types, and lookups over them. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from enum import StrEnum
from math import prod
from typing import Annotated

from planc.inventory.footprint import ONCE, ONE_OPERATION, RMS_NORM, Call, Footprint, OwnCode
from planc.inventory.head_shares import Digest, Named, Packed, PerHead, Probability, SharedKv, Size
from planc.inventory.head_shares import KvProjection as KvProjection
from planc.inventory.rope import Rope as Rope
from planc.record import record
from planc.vocab import (
    NO_HEAD,
    Classes,
    DropoutDim,
    DType,
    ImageShape,
    LogitsStep,
    Task,
    ancestors,
    parent_of,
)


class Kind(StrEnum):
    """The kind of a module, for sharding rules."""

    LINEAR = "linear"
    CONV1D = "conv1d"
    """transformers' Conv1D: a linear layer that stores its weight as [in, out]."""
    EMBEDDING = "embedding"
    NORM = "norm"
    CONTAINER = "container"
    """Owns no parameter itself; its children may own some."""
    MODULE_LIST = "module_list"
    OTHER = "other"
    """Owns parameters in a way that no style supports."""


LINEAR_KINDS = (Kind.LINEAR, Kind.CONV1D)


@record
class Parameter:
    """One tensor that a module owns directly; `name` is local (`weight`, `bias`)."""

    name: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


@record
class Routing:
    """A router's assignment of tokens to stacked experts: how many per token, and if weights stay float32."""

    experts_per_token: Size
    in_float32: bool = False
    bias: str = ""
    """The path from the experts' parent to a tensor without gradient that is added to scores to choose
    experts: DeepSeek's `gate.e_score_correction_bias`. Empty for a router without one."""


@record
class Draw:
    """A dropout: its tensor's dimensions, where an integer is a length that no batch changes.

    No dims if planc can't tell an element's place in them. `sources` are the modules whose outputs reach it.
    """

    probability: Probability
    dims: tuple[DropoutDim | Size, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def is_of_weights(self) -> bool:
        """Whether it drops attention weights: queries and keys are two dimensions of the sequence."""
        return self.dims.count(DropoutDim.SEQUENCE) > 1


@record
class Module:
    """One module of the model.

    `sources` are the modules whose outputs reach this module's input, through any tensor operations but
    no other listed module; `returns` are those that reach its output, as far as the model uses it. One
    forward recorded both, for modules that own parameters and for the members of repeated blocks.
    """

    fqn: str
    class_name: str
    kind: Kind
    parameters: Annotated[tuple[Parameter, ...], Named] = ()
    sources: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    """Own parameters and buffers, by local name, that the model's own initialization leaves unset."""
    frozen: tuple[str, ...] = ()
    """Own parameters, by local name, that the model's code builds without `requires_grad`."""
    unreached: tuple[str, ...] = ()
    """Other own parameters that no gradient of the logits reaches."""
    calls: tuple[Call, ...] = ONCE
    ends: int = 0
    """The modules around it, up to its layer, that keep nothing more for backward after it has returned."""
    read_by_code: bool = False
    """Backward of its layer reads what code made of its output, and no other module of the layer takes it."""
    widened: tuple[str, ...] = ()
    """Own parameters and buffers of `own_dtypes` that are float64 in a float64 model."""
    kept_in_half: tuple[str, ...] = ()
    """Tensors of other dtypes that `from_pretrained` loads as float32 into a bfloat16 or float16 model."""
    kept_in_float16: tuple[str, ...] = ()
    """Tensors that it loads as float32 into a float16 model only."""
    routing: Routing | None = None
    """The routing of stacked experts, in one forward."""
    reads_values: bool = False
    """Its own code's work depends on values of tensors: a loop over the experts that have tokens."""
    flattened: bool = False
    """Its hidden states are [tokens, features]: the model makes one dimension of batch and sequence."""
    passes_input: bool = False
    """Its own code passes on its hidden states, or a sum with them; for owners of weights see `returns`."""
    passes_others: bool = False
    """The same of another argument: BLOOM's attention adds the residual stream to its output."""
    bypassed: int = 0
    """The modules around it, from the nearest on, of whose arguments it reads no hidden states."""
    own_dtypes: Annotated[tuple[tuple[str, DType], ...], Named] = ()
    """Own parameters and buffers, by local name, that the model's code builds in a fixed dtype."""
    draws: tuple[Draw, ...] = ()
    """The dropouts of its own code in one forward in training, in order, with the model's own attention."""
    activation: Footprint = ONE_OPERATION
    """The footprint of the function or gate that keeps the output of a linear layer or stack of experts."""
    footprint: Footprint = RMS_NORM
    """The footprint of a norm."""
    own_code: OwnCode | None = None
    """The code of a layer, a part of one or a stem, around a fused kernel; None if it was not measured."""
    eager_code: OwnCode | None = None
    """The same with the model's own attention function."""

    @property
    def bypassed_containers(self) -> tuple[str, ...]:
        """The modules that `bypassed` counts."""
        return ancestors(self.fqn)[: self.bypassed]

    @property
    def is_linear(self) -> bool:
        """Whether it multiplies its input by a weight, whatever way round it stores that."""
        return self.kind in LINEAR_KINDS

    @property
    def out_features(self) -> int:
        """The outputs of a linear layer."""
        return self._features[0]

    @property
    def in_features(self) -> int:
        """The inputs of a linear layer."""
        return self._features[1]

    @property
    def _features(self) -> tuple[int, ...]:
        weight = next(parameter.shape for parameter in self.parameters if parameter.name == "weight")
        return weight if self.kind is Kind.LINEAR else weight[::-1]


@record
class Attention:
    """One attention module. `window` is its sliding window in tokens, None without a limit.

    `head_dim` is that of queries and keys; `value_dim` is that of values, None if it is the same. `extras`
    are the attention features beyond causal softmax attention: `softcap`, `s_aux`. With `fixed_heads`, its
    code does not work if its projections return only a share of the heads. `counts` are the integer
    attributes, as paths from the attention module, by which its code works on a share once a rank divides
    them by the number of ranks. A rank then has its part of everything that `packed` projections hold, and of
    every `per_head` argument its own heads. `shared_kv` is how its code works with fewer key/value heads than
    ranks; None if it does not. `calls` are those that one call of the module makes.
    """

    fqn: str
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    window: Size | None = None
    value_dim: Size | None = None
    extras: tuple[str, ...] = ()
    fixed_heads: bool = False
    counts: tuple[str, ...] = ()
    packed: tuple[Packed, ...] = ()
    per_head: tuple[PerHead, ...] = ()
    shared_kv: SharedKv | None = None
    calls: Size = 1

    def products(self, sequence_length: int) -> int:
        """Multiply-adds for one token: of queries, and of values, at every position that it attends to."""
        width = self.head_dim + (self.value_dim or self.head_dim)
        return self.calls * self.num_heads * width * min(sequence_length, self.window or sequence_length)


@record
class OwnHeads:
    """The heads of an attention with its own code that works on a share of them; the rest as for others."""

    fqn: str
    num_heads: Size
    num_kv_heads: Size
    counts: tuple[str, ...]
    packed: tuple[Packed, ...] = ()
    per_head: tuple[PerHead, ...] = ()
    shared_kv: SharedKv | None = None


@record
class Positions:
    """The positions of a model's tokens: without `position_ids` its first one is at `first`. Tokens with the
    id `uncounted_token` do not advance the count, and are all at the position before `first`."""

    first: int = 0
    uncounted_token: int | None = None
    counted_by_model: bool = False
    """The model numbers its input tokens itself, and ignores `position_ids`."""


@record
class ImageEncoder:
    """The encoder of images that a checkpoint has next to its language model, which is the rest.

    `patch`, `merge` and `frames` are those of an `ImageShape`, `width` and `inner` the features of its hidden
    states and of those inside of its layers' parts.
    """

    token: int
    """The token in whose place the model puts what the encoder makes of an image."""
    patch: Size
    merge: Size
    frames: Size
    num_parameters: Size
    width: Size
    inner: Size
    outputs: Size = 1
    """Features of each token: its own, and those that first layers of the language model add."""

    def shape(self, *, height: int, width: int) -> ImageShape:
        """The shape of an image of this size in pixels."""
        return ImageShape(height, width, self.patch, self.merge, self.frames)


@record
class Inventory:
    """A model's structure. `modules` are in registration order, the root (fqn "") first.

    `ties` are parameter fqns that share one storage, the owner first. `tp_plan` is the model's own plan, with
    full patterns. `num_labels` are a classifier's classes. `config_digest` is the SHA-256 of its config.json.
    """

    config_digest: Digest
    architecture: str
    model_type: str
    vocab_size: Size
    hidden_size: Size
    max_positions: Size | None
    modules: tuple[Module, ...]
    attentions: tuple[Attention, ...]
    ties: tuple[tuple[str, ...], ...] = ()
    tp_plan: tuple[tuple[str, str], ...] = ()
    blocks: tuple[str, ...] = ()  # the module lists whose members repeat, `model.layers`
    own_attentions: tuple[str, ...] = ()
    """Attention modules with their own code, which do not call transformers' interface."""
    own_heads: tuple[OwnHeads, ...] = ()
    """The members of `own_attentions` that work on a share of their heads."""
    written: tuple[str, ...] = ()
    """Modules into whose outputs the model writes in place."""
    reduced: tuple[str, ...] = ()
    """Linear layers and embeddings of whose output features the model computes a statistic, not in a norm."""
    renumbered: tuple[str, ...] = ()
    """Embeddings whose code looks up other rows than the numbers that it takes."""
    read_by_layers: tuple[str, ...] = ()
    """Modules whose parameters a layer's own code reads, or code around the layers, and not their forward."""
    needing_all_tokens: tuple[str, ...] = ()
    """Parents of blocks whose code outside of the layers does not work token by token."""
    random: tuple[str, ...] = ()
    """Fields of config.json, other than 0, by which training draws random numbers."""
    random_weights: tuple[str, ...] = ()  # those that drop attention weights
    random_others: tuple[str, ...] = ()  # those that draw by other means: layer drop and jitter
    added_losses: tuple[str, ...] = ()  # fields of config.json that add terms to the model's own loss
    router_loss: float | None = None  # the weight of the loss that they add for routers
    logits: tuple[LogitsStep, ...] | None = ()
    """The steps from the head's output to the logits; None if they are not a known function of each logit."""
    rope_switch: Size | None = None
    """A forward with more positions than this uses other rotary embeddings for all of its tokens."""
    positions: Positions = Positions()
    task: Task = Task.CAUSAL_LM
    num_labels: Size | None = None
    padding_token: int | None = None
    start_token: int | None = None  # the first that a decoder with an encoder is given
    token_types: int = 0  # `token_type_ids` that a classifier of texts tells apart; 0 for none, and for one
    new_head: tuple[str, ...] = ()  # a classifier's parameters that the class in config.json lacks
    images: ImageEncoder | None = None  # None for a model of text alone
    rope: Rope | None = None  # the scaling of rotary embeddings in config.json
    _by_fqn: dict[str, Module] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_fqn", {module.fqn: module for module in self.modules})

    def get(self, fqn: str) -> Module | None:
        return self._by_fqn.get(fqn)

    def names(self) -> tuple[str, ...]:
        """Every module fqn but the root's, in registration order."""
        return tuple(module.fqn for module in self.modules if module.fqn)

    def is_layer(self, fqn: str) -> bool:
        """Whether a module is a member of one of `blocks`."""
        return parent_of(fqn) in self.blocks

    def layers(self) -> tuple[str, ...]:
        """The members of all `blocks`, in registration order."""
        return tuple(fqn for fqn in self.names() if self.is_layer(fqn))

    def members(self, block: str) -> tuple[str, ...]:
        """The members of one of `blocks`, in order."""
        return tuple(fqn for fqn in self.names() if parent_of(fqn) == block)

    def parameters(self) -> Iterator[tuple[str, Module, Parameter]]:
        """(parameter fqn, module, parameter), each tied storage once, under its owner's name."""
        aliases = {name for tie in self.ties for name in tie[1:]}
        for module in self.modules:
            for parameter in module.parameters:
                fqn = f"{module.fqn}.{parameter.name}".removeprefix(".")
                if fqn not in aliases:
                    yield fqn, module, parameter

    @property
    def classes(self) -> Classes | None:
        """A classifier's classes, or what a model without a head has in their place."""
        known = None if self.num_labels is None else Classes(self.task, self.num_labels)
        return NO_HEAD if self.task is Task.EMBEDDING else known

    @property
    def known_heads(self) -> tuple[Attention | OwnHeads, ...]:
        """Every attention whose heads are known."""
        return (*self.attentions, *self.own_heads)

    def packed(self) -> dict[str, tuple[int, ...]]:
        """The widths of what projections of attentions hold in sequence, by fqn."""
        return {f"{one.fqn}.{held.layer}": held.widths for one in self.known_heads for held in one.packed}

    def kv_projections(self) -> dict[str, tuple[Attention | OwnHeads, KvProjection]]:
        """The projections to keys and values of which ranks can compute the same heads, by fqn."""
        return {
            f"{one.fqn}.{projection.layer}": (one, projection)
            for one in self.known_heads
            for projection in (one.shared_kv.projections if one.shared_kv else ())
        }

    def own_dtypes(self, dtype: DType) -> tuple[tuple[str, DType], ...]:
        """Parameters and buffers that the model's code builds in another dtype, in a model of this dtype."""
        return tuple(
            (f"{module.fqn}.{name}".removeprefix("."), own)
            for module in self.modules
            for name, own in module.own_dtypes
            if own is not dtype and not (dtype is DType.FLOAT64 and name in module.widened)
        )

    def kept_in_float32(self, dtype: DType) -> tuple[str, ...]:
        """Parameters and buffers that `from_pretrained` loads as float32 into a model of this dtype."""
        return tuple(
            f"{module.fqn}.{name}".removeprefix(".")
            for module in self.modules
            for name in (
                *(module.kept_in_half if dtype in (DType.BFLOAT16, DType.FLOAT16) else ()),
                *(module.kept_in_float16 if dtype is DType.FLOAT16 else ()),
            )
        )

    def holds_tokens(self, embedding: Module) -> bool:
        """True if an embedding has a row for each token.

        An encoder-decoder's may have as many for positions, which it looks up for one sequence of a batch.
        """
        rows = embedding.parameters[0].shape[0]
        return rows == self.vocab_size if self.start_token is not None else rows >= self.vocab_size

    @property
    def head(self) -> Module | None:
        """The linear layer that computes tokens' logits: the last with a row per token of the vocabulary."""
        modules = reversed(self.modules) if self.classes is None else ()
        tensors = ((module, p) for module in modules if module.kind is Kind.LINEAR for p in module.parameters)
        return next((m for m, p in tensors if p.name == "weight" and p.shape[0] == self.vocab_size), None)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.num_elements for _, _, parameter in self.parameters())
