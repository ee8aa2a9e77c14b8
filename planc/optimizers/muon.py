"""Muon: orthogonalized momentum for matrices, and another optimizer for the rest.

Every rank gives its shards of a matrix to one rank, the owner, which orthogonalizes the matrix as one process
does: the update of a shard alone would be another one, and torch's own sums of shards differ with the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar, Literal

from planc.optimizers.adamw import AdamW
from planc.optimizers.optimizer import Implementation, OptimizerKind
from planc.record import record
from planc.vocab import DType

LearningRateScale = Literal["original", "match_rms_adamw"]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The coefficients of an iteration's quintic polynomial (torch.optim.Muon)."""
EPS = 1e-7
"""The least norm that a matrix is divided by."""


@record(kw_only=True)
class Muon(OptimizerKind):
    kind: Literal["muon"] = "muon"
    momentum: float
    nesterov: bool
    ns_steps: int
    """Newton-Schulz iterations."""
    ns_dtype: Literal["bfloat16", "float32", "float64"]
    """The dtype of the iterations, and of what ranks send."""
    lr_scale: LearningRateScale
    rest: AdamW
    """The optimizer of the parameters that are not its matrices."""
    torch_class: ClassVar[str] = "Muon"
    auto_on_cuda: ClassVar[Implementation] = "for_loop"
    auto_on_cpu: ClassVar[Implementation] = "for_loop"
    has_step_counter: ClassVar[bool] = False
    usual_lr: ClassVar[tuple[str, str]] = ("1e-4", "1e-1")
    highest_lr: ClassVar[float] = 0.1

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def num_temporaries(self, *, is_for_loop: bool, decays: bool) -> int:
        # `round_bytes` has the tensors of a step.
        return 0

    @property
    def ns_bytes(self) -> int:
        """The size of an element of the iterations."""
        return DType(self.ns_dtype).size_bytes


def rounds(sizes: Mapping[str, int], *, num_owners: int) -> tuple[tuple[str, ...], ...]:
    """The matrices of each round, of which the n-th rank owns the n-th: by their elements, the largest first.

    Those of a round are about as large, so no owner waits long for another.
    """
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    return tuple(tuple(ordered[at : at + num_owners]) for at in range(0, len(ordered), num_owners))


def products(shape: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """(rows, inner, outer) of an iteration's products of a matrix, as if those of a stack were one after the
    other: the Gram matrix, its square, and the square times the matrix."""
    short, long = sorted(shape[-2:])
    return (short, long, short), (short, short, short), (short, short, long)


def part_shapes(shape: Sequence[int], widths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The shapes of the matrices that a parameter fuses along its rows; its own if it fuses none."""
    return tuple((*shape[:-2], width, shape[-1]) for width in widths or (shape[-2],))


def round_elements(sent: int, parts: Sequence[Sequence[int]]) -> int:
    """The elements that an owner makes and frees in a round, when it iterates on the parts of a matrix.

    What it sends of all; its own matrix as it arrives, whole, and orthogonalized; of the largest part, the
    matrix before and after an iteration, and two squares.
    """
    whole = sum(map(prod, parts))
    iterating = (2 * prod(shape) + 2 * prod(shape[:-2]) * min(shape[-2:]) ** 2 for shape in parts)
    return sent + (3 if len(parts) > 1 else 2) * whole + max(iterating)
