"""The order of samples: a function of seed and position, never of the mesh."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

SampleIds = npt.NDArray[np.int64]


def epoch_permutation(num_sequences: int, *, seed: int, epoch: int) -> SampleIds:
    """Every sequence id once, in the order of an epoch.

    Sorts raw PCG64 output rather than calling `Generator.permutation`: numpy keeps the raw stream and the
    seeding for good, but may change what a Generator draws (NEP 19), and a resumed run must see the same
    order.
    """
    keys = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(num_sequences)
    permutation = np.argsort(keys, kind="stable").astype(np.int64)
    permutation.setflags(write=False)
    return permutation


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The endless order of samples: epoch after epoch, each its own permutation of all sequences."""

    num_sequences: int
    seed: int
    _permutations: dict[int, SampleIds] = field(default_factory=dict, init=False, repr=False, compare=False)

    def sample_ids(self, start: int, *, count: int) -> SampleIds:
        """Sequence ids [count] at the global positions from `start` on."""
        ids = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            epoch, offset = divmod(start + filled, self.num_sequences)
            part = self._permutation(epoch)[offset : offset + count - filled]
            ids[filled : filled + len(part)] = part
            filled += len(part)
        return ids

    def _permutation(self, epoch: int) -> SampleIds:
        if epoch not in self._permutations:
            for stale in [other for other in self._permutations if abs(other - epoch) > 1]:
                del self._permutations[stale]
            self._permutations[epoch] = epoch_permutation(self.num_sequences, seed=self.seed, epoch=epoch)
        return self._permutations[epoch]


def rank_positions(
    step_start: int, *, global_batch: int, micro_batch: int, dp_size: int, dp_rank: int, micro_step: int
) -> range:
    """The global positions that one data-parallel rank takes in one micro step, `micro_batch` of them.

    A step covers [step_start, step_start + global_batch); each micro step deals its share to the ranks in
    turn.
    """
    share = dp_size * micro_batch
    assert global_batch % share == 0
    assert 0 <= dp_rank < dp_size
    assert 0 <= micro_step < global_batch // share
    first = step_start + micro_step * share + dp_rank * micro_batch
    return range(first, first + micro_batch)
