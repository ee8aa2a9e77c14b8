"""The best checkpoints of a run by an evaluation's loss, as text and by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from planc.cli.support.exits import UsageError
from planc.runtime.checkpoint_format.best import best_steps, ranked
from planc.runtime.checkpoint_format.manifest import Manifest


def losses_text(step: int, losses: Mapping[str, Mapping[int, float]], *, marks_best: bool) -> str:
    """`, held_out loss 2.3456 (best)`, for each evaluation of a checkpoint's own step that was judged."""
    return "".join(
        f", {name} loss {by_step[step]:.4f}{' (best)' if marks_best and ranked(by_step)[0] == step else ''}"
        for name, by_step in losses.items()
        if step in by_step
    )


def best_step(run: Path, manifests: Iterable[Manifest], *, evaluation: str) -> int:
    """The step of a run's checkpoint with the lowest loss; UsageError if none is known.

    `evaluation` is empty for the only one.
    """
    best = best_steps(manifests)
    names = ", ".join(f"`{name}`" for name in best)
    if not best:
        raise UsageError(
            f"no checkpoint of `{run}` has an evaluation's loss\n"
            "a checkpoint has it if `eval` sets `patience` or `keep_best`, and its step was evaluated"
        )
    if evaluation not in best and (evaluation or len(best) > 1):
        text = (
            f"no checkpoint of `{run}` has a loss in `{evaluation}`" if evaluation else "several evaluations"
        )
        raise UsageError(f"{text}\npass --best NAME with {names}")
    return best[evaluation or next(iter(best))]
