"""The tasks that a model can be trained on: what is a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from planc.plan.keys import key, keyed
from planc.plan.scalars import Choice, Float, Int, Text
from planc.plan.types import List
from planc.record import record
from planc.vocab import NO_HEAD, Classes, Pooling, Task


@record
class CausalLm:
    """The label of each token is the next token."""

    task: ClassVar[Task] = Task.CAUSAL_LM
    classes: ClassVar[None] = None


@keyed
class MaskedLm:
    """Tokens are chosen again each time a sequence is seen, and are their own labels.

    Special tokens are never chosen. Chosen tokens that nothing replaces stay as they are.
    """

    task: ClassVar[Task] = Task.MASKED_LM
    classes: ClassVar[None] = None
    probability: float = key(Float(1e-6, 1.0), unsaid=0.15, doc="of each token to be chosen")
    mask_replace: float = key(
        Float(0.0, 1.0),
        unsaid=0.8,
        doc="share of the chosen tokens that the tokenizer's mask token replaces",
    )
    random_replace: float = key(
        Float(0.0, 1.0), unsaid=0.1, doc="share of the chosen tokens that other tokens replace, drawn evenly"
    )


@keyed
class Classification:
    """Base of the tasks whose labels are classes. Rows are of `labeled(...)`."""

    task: ClassVar[Task]
    by_word: ClassVar[bool] = False
    labels: int = key(
        Int(1, 2**24), doc="the number of classes, as a classifier's config.json has it", example="2"
    )
    names: tuple[str, ...] = key(
        List(Text(), name_of=str),
        unsaid=(),
        doc="the classes' names in order: rows may have them in place of numbers, and exports do",
    )

    @property
    def classes(self) -> Classes:
        """The task and the number of classes, which decide a new head."""
        return Classes(self.task, self.labels)


@record
class SequenceClassification(Classification):
    """Each text has one class, by the model's own logits for all of it.

    The loss is the cross entropy of classes, in the mean over the texts of a step.
    """

    task: ClassVar[Task] = Task.SEQUENCE_CLASSIFICATION


@record
class TokenClassification(Classification):
    """Each word of a text has one class, by the logits of its first token.

    The loss is the cross entropy of classes, in the mean over the words of a step.
    """

    task: ClassVar[Task] = Task.TOKEN_CLASSIFICATION
    by_word: ClassVar[bool] = True


@record
class Seq2SeqLm:
    """An encoder reads the input, and each token of the target is the label of those before it.

    Rows are of `mapped(...)`. An input and a target have up to `sequence_length` tokens each.
    """

    task: ClassVar[Task] = Task.SEQ2SEQ_LM
    classes: ClassVar[None] = None


@keyed
class ImageTextToText:
    """The label of each token is the next token, in conversations that have an image each.

    Rows are of `image_chat(...)`. The model's encoder of images is not trained.
    """

    task: ClassVar[Task] = Task.IMAGE_TEXT_TO_TEXT
    classes: ClassVar[None] = None
    height: int = key(
        Int(1, 2**14), unsaid=448, doc="pixels to which each image is scaled: multiples of a token's side"
    )
    width: int = key(Int(1, 2**14), unsaid=448, doc="the same of its width, whatever shape it has")


@keyed
class Embedding:
    """Each text is a vector of length 1, by the hidden states of the model without a head.

    Rows are of `matched(...)`, and the loss is `contrastive(...)`.
    """

    task: ClassVar[Task] = Task.EMBEDDING
    classes: ClassVar[Classes] = NO_HEAD
    pooling: Pooling = key(
        Choice(Pooling),
        unsaid=Pooling.MEAN,
        doc="mean: of the hidden states of a text's tokens; cls: its first token's; last: its last token's",
    )


AnyTask = (
    CausalLm
    | MaskedLm
    | SequenceClassification
    | TokenClassification
    | Seq2SeqLm
    | ImageTextToText
    | Embedding
)

TASKS: Mapping[str, type[AnyTask]] = {
    str(kind.task): kind
    for kind in (
        *(CausalLm, MaskedLm, SequenceClassification, TokenClassification, Seq2SeqLm, ImageTextToText),
        Embedding,
    )
}
