"""The memory of a micro step's loss: of logits, of a teacher's rows, or of the vectors of texts.

Each of a rank's tokens has k rows of a teacher: a token's id in 4 bytes and its log-probability in 4, which a
micro-batch holds until the next one. From them the loss makes, for the tokens whose logits exist at a time:

    copies       8    the rows of these tokens, until forward ends
    places       8    ids as int64, which backward reads
    of forward   4    the teacher's log-probabilities at the temperature
    factors      4    probabilities by their weight, which backward reads

Backward reads the logits as the head made them, too. The copies lie under the places, and next to them what
the places are made from, which is as large: freed by then, they are a gap.
"""

from __future__ import annotations

from math import prod

from planc.estimate.activations import local_width
from planc.estimate.rank_work import RankWork
from planc.graph.graph import Graph
from planc.graph.ops import BuildDistillationLoss, ComputeContrastiveLoss, OpenTeacher
from planc.graph.sources import training_data
from planc.record import record
from planc.vocab import LogitsFunction, Pooling, Task


@record
class Loss:
    """Bytes of logits and cross entropy at their peak, in its backward: [T, vocabulary or this rank's part].

    `tensors` are of the loss's dtype, `wide` one of them: log-probabilities, their gradient, the logits'
    gradient; vocabulary-parallel loss holds a fourth (torch/distributed/tensor/parallel/loss.py). `narrow`
    are the logits as the head made them, freed by then, 0 where they are as wide. A compiled loss has two
    tensors, the logits and their gradient, of the dtype of logits. A loss with terms, of pairs or of a
    teacher's rows (distillation.py) keeps the logits as the head made them.

    With several chunks T are the tokens of one. `gradients` are those that the head's forward keeps: of its
    input, and of its parameters, summed in float32 at least. Each chunk ends with its own gradients of both
    and of the logits, which are more than `tensors` where chunks are small.
    """

    tensors: int
    wide: int
    narrow: int
    kept: int
    """Bytes from the loss's forward to its backward: log-probabilities, or what the loss of one function
    reads again, which are the logits as the head made them. With several chunks, `gradients`."""
    copies: int
    """Freed copies of a teacher's rows."""
    gradients: int = 0


def logits_shape(work: RankWork) -> tuple[int, int]:
    """The tokens of one micro step, or its sequences if these have labels, and the logits of each. Scores of
    pairs are as few as the vectors that they are of."""
    inventory = work.inventory
    if inventory.task is Task.EMBEDDING:
        return work.num_samples, inventory.hidden_size
    if inventory.task is Task.SEQUENCE_CLASSIFICATION:
        return work.num_samples, inventory.num_labels or 0
    return work.num_tokens, inventory.num_labels or inventory.vocab_size


def loss(work: RankWork) -> Loss:
    """The tensors that cross entropy holds, and the ones that are freed by then."""
    contrast = next((op for op in work.graph.ops() if isinstance(op, ComputeContrastiveLoss)), None)
    if contrast is not None:
        return _of_vectors(work, contrast)
    head = work.inventory.head
    width = local_width(work, head, 0) if head and work.vocab_over else logits_shape(work)[1]
    num_tokens = logits_shape(work)[0] // work.loss_chunks
    wide, narrow = (num_tokens * width * size for size in (work.loss_bytes, work.compute_dtype.size_bytes))
    if work.fuses_loss:
        wide = narrow = wide if _casts_logits(work) else narrow
    num_wide = 2 if work.fuses_loss or work.has_loss_terms else 4 if work.vocab_over else 3
    distilled, copies = _distillation_bytes(work, num_tokens, wide=wide, narrow=narrow)
    tensors = (distilled or num_wide * wide) + _capped_bytes(work, num_tokens * width)
    kept = narrow + _num_read(work, num_tokens) * _READ_BYTES if work.has_loss_terms else wide
    gradients = 0
    if work.loss_chunks > 1 and head is not None:
        element = work.compute_dtype.size_bytes
        parameters = width * sum(prod(parameter.shape[1:]) for parameter in head.parameters)
        parameters *= work.trains(head)
        hidden = work.num_tokens * work.inventory.hidden_size * element
        tensors = max(tensors, narrow + parameters * element + hidden // work.loss_chunks)
        kept = gradients = parameters * work.loss_bytes + hidden
    is_freed = narrow < wide and not work.has_loss_terms
    return Loss(tensors, wide, narrow if is_freed else 0, kept, copies, gradients)


def _of_vectors(work: RankWork, op: ComputeContrastiveLoss) -> Loss:
    """The vectors of texts, and the scores of each group: hidden states have gradients next to them."""
    wide_bytes = work.loss_bytes
    vectors = work.num_samples * work.inventory.hidden_size * wide_bytes
    scores = work.num_samples // 2 * op.group * wide_bytes
    hidden = work.num_tokens * work.inventory.hidden_size
    is_cast = op.pooling is Pooling.MEAN and work.compute_dtype.size_bytes < wide_bytes
    gradients = hidden * (work.compute_dtype.size_bytes + is_cast * wide_bytes)
    kept = 2 * vectors + 2 * scores
    return Loss(gradients + vectors + kept, vectors, 0, kept, 0)


def _casts_logits(work: RankWork) -> bool:
    """Whether the model's code makes logits of float32."""
    return any(step.function is LogitsFunction.FLOAT32 for step in work.inventory.logits or ())


def _capped_bytes(work: RankWork, num_logits: int) -> int:
    """Return the bytes that backward reads of a function that caps logits, after a cast or before it."""
    steps = [step.function for step in work.inventory.logits or ()]
    if LogitsFunction.TANH not in steps:
        return 0
    is_cast = LogitsFunction.FLOAT32 in steps[: steps.index(LogitsFunction.TANH)]
    return num_logits * (work.loss_bytes if is_cast else work.compute_dtype.size_bytes)


_READ_BYTES, _FORWARD_BYTES, _FREED_BYTES = 12, 24, 16
_CHOOSING_BYTES = 13
"""Bytes to read the logits of a row: whether it is of this rank's part, its place there, and the logit."""


def teacher_bytes(work: RankWork) -> int:
    """The teacher's rows of a micro step; 0 without a teacher."""
    return work.num_tokens * _top_k(work) * OpenTeacher.row_bytes


def stored_sequence_bytes(graph: Graph) -> int:
    """Bytes on disk of the teacher's rows of one sequence of the data; 0 without a teacher."""
    rows = (op.top_k * op.row_bytes for op in graph.setup if isinstance(op, OpenTeacher))
    return sum(rows) * training_data(graph).sequence_length


def _distillation_bytes(work: RankWork, num_tokens: int, *, wide: int, narrow: int) -> tuple[int, int]:
    """The most bytes of a loss with a teacher, in addition to the teacher's rows, and the gap that it leaves
    by then; 0 for another loss.

    `wide` and `narrow` are bytes of the logits of these tokens, in the loss's dtype and in the head's.
    """
    op = next((op for op in work.graph.setup if isinstance(op, BuildDistillationLoss)), None)
    if op is None:
        return 0, 0
    rows = _num_read(work, num_tokens)
    # One logarithm of a sum for each temperature; the labels' is 1.
    num_sums = len({op.temperature, *((1.0,) if op.weight < 1 else ())})
    forward = max(wide + rows * (_FORWARD_BYTES + _CHOOSING_BYTES), 2 * wide + rows * _FORWARD_BYTES)
    # Each sum's share of the gradient, next to what it is made from and to the sum of earlier ones.
    backward = (1 + num_sums) * wide + rows * _READ_BYTES
    most = max(forward, backward) + (narrow if narrow < wide else 0)
    return most, rows * _FREED_BYTES if backward > forward else 0


def _num_read(work: RankWork, num_tokens: int) -> int:
    """The rows that the loss reads; none in stages without logits, which hold them all the same."""
    return num_tokens * _top_k(work) if work.inventory.vocab_size else 0


def _top_k(work: RankWork) -> int:
    return next((op.top_k for op in work.graph.setup if isinstance(op, OpenTeacher)), 0)
