"""Memory of a teacher's rows, and of the loss that reads them.

Each of a rank's tokens has k rows: a token's id in 4 bytes and its log-probability in 4, which a micro-batch
holds until the next one. From them the loss makes, for the tokens whose logits exist at a time:

    copies       8    the rows of these tokens, until forward ends
    places       8    ids as int64, which backward reads
    of forward   4    the teacher's log-probabilities at the temperature
    factors      4    probabilities by their weight, which backward reads

Backward reads the logits as the head made them, too. Gaps that copies leave are not counted: with 4096 rows a
token they are up to 5 % of what is reserved.
"""

from __future__ import annotations

from planc.estimate.rank_work import RankWork
from planc.graph.ops import BuildDistillationLoss, OpenTeacher

_ROW_BYTES = 8
_READ_BYTES, _FORWARD_BYTES = 12, 24
_CHOOSING_BYTES = 13
"""Bytes to read the logits of a row: whether it is of this rank's part, its place there, and the logit."""


def teacher_bytes(work: RankWork) -> int:
    """The teacher's rows of a micro step; 0 without a teacher."""
    return work.num_tokens * _top_k(work) * _ROW_BYTES


def distillation_bytes(work: RankWork, num_tokens: int, *, wide: int, narrow: int) -> int:
    """Return the most bytes of a loss with a teacher, in addition to the teacher's rows; 0 for another loss.

    `wide` and `narrow` are bytes of the logits of these tokens, in the loss's dtype and in the head's.
    """
    op = next((op for op in work.graph.setup if isinstance(op, BuildDistillationLoss)), None)
    if op is None:
        return 0
    rows = num_tokens * _top_k(work)
    # One logarithm of a sum for each temperature; the labels' is 1.
    num_sums = len({op.temperature, *((1.0,) if op.weight < 1 else ())})
    most = max(
        wide + rows * (_FORWARD_BYTES + _CHOOSING_BYTES),
        2 * wide + rows * _FORWARD_BYTES,
        # Each sum's share of the gradient, next to what it is made from and to the sum of earlier ones.
        (1 + num_sums) * wide + rows * _READ_BYTES,
    )
    return most + (narrow if narrow < wide else 0)


def _top_k(work: RankWork) -> int:
    return next((op.top_k for op in work.graph.setup if isinstance(op, OpenTeacher)), 0)
