"""The best checkpoints of a run by an evaluation's loss, which each manifest states for its own step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planc.runtime.checkpoint_format.manifest import Manifest


@dataclass(frozen=True, slots=True)
class KeepBest:
    """The number of checkpoints to keep for an evaluation's loss.

    `data` is the hash of what is evaluated: losses on other data don't compare.
    """

    name: str
    count: int
    data: str

    def best(self, manifests: Iterable[Manifest]) -> tuple[int, ...]:
        """The steps with the lowest losses, the best first; of equal losses the earlier step's."""
        return ranked(manifests, name=self.name, data=self.data)[: self.count]


def ranked(manifests: Iterable[Manifest], *, name: str, data: str) -> tuple[int, ...]:
    """The steps at which data was evaluated, by their loss."""
    losses = [
        (loss, manifest.step)
        for manifest in manifests
        if (loss := loss_of(manifest, name=name, data=data)) is not None
    ]
    return tuple(step for _, step in sorted(losses))


def loss_of(manifest: Manifest, *, name: str, data: str | None = None) -> float | None:
    """The finite loss of an evaluation at a checkpoint's own step, of these data; None if it has none."""
    evaluated = manifest.progress.evaluated.get(name)
    if evaluated is None or evaluated.step != manifest.step or data not in (None, evaluated.data):
        return None
    return evaluated.loss


def best_steps(manifests: Sequence[Manifest]) -> dict[str, int]:
    """The step with the lowest loss of each evaluation, on the data of its newest checkpoint."""
    newest = {
        name: evaluated.data
        for manifest in sorted(manifests, key=lambda manifest: manifest.step)
        for name, evaluated in manifest.progress.evaluated.items()
    }
    steps_by_name = {name: ranked(manifests, name=name, data=data) for name, data in newest.items()}
    return {name: steps[0] for name, steps in steps_by_name.items() if steps}
