"""The best checkpoints of a run by an evaluation's loss, which each manifest states for its own step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

    def best(self, manifests: Sequence[Manifest]) -> tuple[int, ...]:
        """The steps with the lowest losses, the best first; of equal losses the earlier step's."""
        return ranked(losses_of(manifests, name=self.name, data=self.data))[: self.count]


def ranked(losses: Mapping[int, float]) -> tuple[int, ...]:
    """The steps by their loss, the lowest first; of equal losses the earlier step."""
    return tuple(sorted(losses, key=lambda step: (losses[step], step)))


def losses_of(manifests: Sequence[Manifest], *, name: str, data: str) -> dict[int, float]:
    """The finite loss of an evaluation at each checkpoint, by step, on these data.

    A checkpoint that was saved before its step was evaluated has its loss in the manifests after it.
    """
    losses: dict[int, float] = {}
    for manifest in manifests:
        evaluated = manifest.progress.evaluated.get(name)
        if evaluated is not None and evaluated.data == data:
            losses.update(evaluated.late)
            if evaluated.loss is not None and evaluated.step == manifest.step:
                losses[evaluated.step] = evaluated.loss
    return {manifest.step: losses[manifest.step] for manifest in manifests if manifest.step in losses}


def judged_losses(manifests: Iterable[Manifest]) -> dict[str, dict[int, float]]:
    """The losses of each evaluation at a run's checkpoints, on the data of its newest one."""
    in_order = sorted(manifests, key=lambda manifest: manifest.step)
    newest = {
        name: evaluated.data
        for manifest in in_order
        for name, evaluated in manifest.progress.evaluated.items()
    }
    return {name: losses_of(in_order, name=name, data=data) for name, data in newest.items()}


def best_steps(manifests: Iterable[Manifest]) -> dict[str, int]:
    """The step with the lowest loss of each evaluation, on the data of its newest checkpoint."""
    return {name: ranked(losses)[0] for name, losses in judged_losses(manifests).items() if losses}
