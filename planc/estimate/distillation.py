"""Memory of a teacher's rows, and of the loss that reads them.

Each of a rank's tokens has k rows: a token's id in 4 bytes and its log-probability in 4, which a micro-batch
holds until the next one. From them the loss makes, for the tokens whose logits exist at a time:

    copies       8    the rows of these tokens, until forward ends
    places       8    ids as int64, which backward reads
    of forward   4    the teacher's log-probabilities at the temperature
    factors      4    probabilities by their weight, which backward reads

Backward reads the logits as the head made them, too. The copies lie under the places, and next to them what
the places are made from, which is as large: freed by then, they are a gap.
"""

from __future__ import annotations

from planc.estimate.rank_work import RankWork
from planc.graph.graph import Graph
from planc.graph.ops import BuildDistillationLoss, OpenTeacher
from planc.graph.sources import training_data

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


def distillation_bytes(work: RankWork, num_tokens: int, *, wide: int, narrow: int) -> tuple[int, int]:
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


def read_again_bytes(work: RankWork, num_tokens: int) -> int:
    """Bytes of a teacher's rows of these tokens that backward reads; 0 without a teacher."""
    return _num_read(work, num_tokens) * _READ_BYTES


def _num_read(work: RankWork, num_tokens: int) -> int:
    """The rows that the loss reads; none in stages without logits, which hold them all the same."""
    return num_tokens * _top_k(work) if work.inventory.vocab_size else 0


def _top_k(work: RankWork) -> int:
    return next((op.top_k for op in work.graph.setup if isinstance(op, OpenTeacher)), 0)
