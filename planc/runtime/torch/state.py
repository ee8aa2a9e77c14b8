"""The records of a step and of what outlives it: what one op returns and others take, by `Resource`.

A record that needs a part of the runtime is in that part, such as `Mesh` and `Pipeline` in `parallel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from planc.graph.op import Op
from planc.graph.ops import BuildSchedule, OpenData
from planc.modeling.language_part import EncodedImages
from planc.runtime.checkpoint_format.manifest import Evaluated, StopRequest
from planc.runtime.data.evaluation import EvaluationSet
from planc.runtime.data.loader import BatchLoader, MicroBatch
from planc.runtime.data.open import MixedData
from planc.runtime.data.order import SampleIds
from planc.runtime.data.tokenizer_folder import Files
from planc.runtime.interpreter import Position
from planc.runtime.loss_window import Memory
from planc.runtime.observer import Evaluation


@dataclass(frozen=True, slots=True)
class Weights:
    """The model once its parameters have values; `parameters` are by name, in the model's order."""

    model: nn.Module
    parameters: Mapping[str, nn.Parameter]

    @staticmethod
    def of(model: nn.Module) -> Weights:
        return Weights(model, dict(model.named_parameters()))


@dataclass(frozen=True, slots=True)
class Averages:
    """The moving average of each trained parameter, in its layout and in float32 at least."""

    by_parameter: Mapping[nn.Parameter, Tensor]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate's; a resumed run needs no state of it."""

    op: BuildSchedule
    factor: Callable[[int], float]
    """The share of the peak at a step, from 1."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a mixture so far; None for one that another rank can't use."""

    opened: tuple[MixedData | None, ...] = ()


class Teacher(Protocol):
    """The log-probabilities of a teacher for the sequences of the training data."""

    def rows(self, sample_ids: SampleIds) -> Mapping[str, Tensor]:
        """Fields of a `LocalBatch`, of whole sequences."""


@dataclass(frozen=True, slots=True)
class Data:
    """The training data. Its loader counts the samples that were taken."""

    op: OpenData
    loader: BatchLoader
    fingerprint: str
    tokenizer_files: Files | None
    """The run's tokenizer as an export has it; on rank 0, unless it is `bytes`."""
    teacher: Teacher | None = None


@dataclass(frozen=True, slots=True)
class EvaluationSets:
    """Held-out data by their label in the plan."""

    by_label: Mapping[str, EvaluationSet]


@dataclass(frozen=True, slots=True)
class History:
    """Facts of earlier steps that later steps and saves need."""

    memory: Memory = field(default_factory=Memory)
    """The losses by which a guard judges."""
    batch_since: tuple[int, int] = (0, 0)
    """A step, and the samples consumed by then: every step since has had the same number of samples."""
    replicas_agreed_at: int | None = None
    """The last step after which replicas agreed, of those that this process has compared."""
    resumed_at: int | None = None
    """The step of the checkpoint from which this process has started."""
    evaluated: Mapping[str, Evaluated] = field(default_factory=dict)
    """The evaluations by which the run ends early or keeps checkpoints, by name."""
    stop: StopRequest | None = None
    """The request of a callback of the plan's own by which the run ends after the step."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The step's micro-batches of this rank."""

    micro_batches: Sequence[MicroBatch]
    began: float = 0.0
    """When the step began, by `time.perf_counter`."""
    reading_ns: int = 0
    """The time that reading took, in nanoseconds."""
    teacher: Teacher | None = None
    """None in an evaluation."""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The number of labels of the step, over all ranks: on the device."""

    labels: Tensor


@dataclass(frozen=True, slots=True)
class LocalBatch:
    """One micro-batch as this rank sees it: [micro_batch, sequence_length / cp], int64, on the device."""

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    """Positions in the sequence, or in the document if documents are isolated."""
    sources: Tensor | None = None
    """[micro_batch]: the number of each sequence's source in a mixture."""
    sample_ids: Tensor | None = None
    """[micro_batch]: the number of each sequence, of data in pairs."""
    token_types: Tensor | None = None
    """The types of tokens, of two texts each."""
    lengths: Tensor | None = None
    """[micro_batch]: the tokens of each sequence before its padding, of data in matched pairs."""
    decoder_input_ids: Tensor | None = None
    """The tokens that a decoder is given, of inputs with targets."""
    is_input: Tensor | None = None
    """Whether `input_ids` are those of an input and no padding, of inputs with targets."""
    teacher_ids: Tensor | None = None
    """[..., k], int32: the likeliest tokens of a teacher."""
    teacher_log_probabilities: Tensor | None = None
    """[..., k], float32: theirs."""

    @property
    def places(self) -> Tensor:
        """The number of each token in the micro-batch, in rows."""
        return torch.arange(self.labels.numel(), device=self.labels.device).view(self.labels.shape)


@dataclass(frozen=True, slots=True)
class ImageEncoder:
    """The encoder of a model's images, with its weights."""

    module: nn.Module
    digest: str = ""
    """A SHA-256 of its weights; empty in a rehearsal."""


@dataclass(frozen=True, slots=True)
class Images:
    """The images of one micro-batch, on the device: one of each sequence."""

    features: EncodedImages
    places: Tensor
    """[micro_batch, local sequence]: the place of each token among those of its sequence's image, or -1."""
    position_ids: Tensor
    """[3, micro_batch, local sequence]: the positions of tokens in time, height and width."""


@dataclass(frozen=True, slots=True)
class Logits:
    """[micro_batch, local sequence, vocabulary or this rank's part of it]; the loss if it has chunks."""

    values: Tensor


@dataclass(frozen=True, slots=True)
class Loss:
    """One micro-batch's share of the step's loss, with its graph. A stage of a pipeline keeps its own."""

    value: Tensor


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients that backward has left at the parameters."""

    weights: Weights

    @property
    def tensors(self) -> list[Tensor]:
        return [
            parameter.grad for parameter in self.weights.parameters.values() if parameter.grad is not None
        ]


class SyncedGradients(Gradients):
    """Gradients in their parameters' layouts, and complete."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ClippedGradients(Gradients):
    """Gradients that the optimizer scales, as it takes them, to a norm of at most `max_norm`."""

    max_norm: float | None
    """None to take them as they are."""


@dataclass(frozen=True, slots=True)
class Norm:
    """The square of the gradient norm before clipping, on the device."""

    squared: Tensor


@dataclass(frozen=True, slots=True)
class Metrics:
    """The step's loss, and the requests to stop or to save, over all ranks: on the device."""

    loss: Tensor
    requests: Tensor
    by_source: Tensor
    """[sources * 2]: the loss and the labels of each source of a mixture; empty without one."""
    means: Tensor
    """[2] of pairs: the mean margin of rewards, and the share in the right order. [1] of texts with classes:
    the share whose class is right. Empty for other losses."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The step's numbers, once the host has read them, and whether the weights change by it."""

    loss: float
    gradient_norm: float
    """Before clipping."""
    num_labels: int
    is_skipped: bool
    by_source: tuple[float, ...] = ()
    """The loss and the labels of each source of a mixture."""
    means: tuple[float, ...] = ()
    """The means over pairs, or over texts with classes."""


@dataclass(frozen=True, slots=True)
class Update:
    """The weights and the optimizer are those after this step."""

    step: int


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The evaluations after a step: their results, the labels of those left for later, and their time."""

    done: tuple[Evaluation, ...] = ()
    postponed: tuple[str, ...] = ()
    seconds: float = 0.0
    early_stop: str = ""
    """The reason for which the run ends after this step; empty if it does not."""


class Perform(Protocol):
    """Executes the ops of a body on some records, in the place of the step's own."""

    def __call__(self, ops: Sequence[Op], at: Position, /, *records: object) -> None: ...
