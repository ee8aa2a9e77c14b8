"""What another plan changes for a run that goes on: nothing, the order of sums, or what is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planc.diff.difference import Action, Change
from planc.diff.facts import (
    BATCH_FACTS,
    DATA_STATE,
    LAYOUT_FACTS,
    NUMERICS_FACTS,
    RUN_FACTS,
    Fact,
    compare,
)
from planc.diff.modules import compare_groups
from planc.diff.reductions import compare_reduction_order
from planc.diff.side import Side

PARAMETER_GROUPS = "parameter groups"
"""What groups of parameters that decay or learn otherwise are called together."""

_NEEDS_NO_LEAVE = frozenset(
    {
        # What is refused, or not, for what the checkpoint itself holds.
        *("model", "model.dtype", "model.seed", *DATA_STATE),
        # Follows from tokens/step or the mesh; alters at most the order of sums.
        *("sequences/step", "gradient_accumulation", "data.micro_batch", "optimizer implementation"),
        # A checkpoint replaces them; what a guard does, it does to a run that has gone wrong.
        *("model.weights", "guard.nonfinite", "guard.loss_spike"),
    }
)

_TRAINING_FACTS = tuple(fact for fact in (*BATCH_FACTS, *NUMERICS_FACTS) if fact.name not in _NEEDS_NO_LEAVE)
CHANGES_TO_ALLOW = (*(fact.name for fact in _TRAINING_FACTS), PARAMETER_GROUPS)
"""What differences are called that change what is trained: only a person can say that they are wanted."""


@dataclass(frozen=True, slots=True)
class ResumeChanges:
    """What differs, by consequence. `training` holds (name to allow it by, change)."""

    training: tuple[tuple[str, Change], ...]
    sums: tuple[Change, ...]
    """The last bits of sums may differ."""
    harmless: tuple[Change, ...]


def resume_changes(old: Side, new: Side) -> ResumeChanges:
    """What `new` changes for a run that `old` began. Other models and data the checkpoint itself refuses."""
    groups = ((PARAMETER_GROUPS, change) for change in _changed(compare_groups(old, new)))
    training = (*((one.name, one) for one in _compared(_TRAINING_FACTS, old, new)), *groups)
    others = tuple(fact for fact in (*BATCH_FACTS, *NUMERICS_FACTS) if fact not in _TRAINING_FACTS)
    order = tuple(_changed(compare_reduction_order(old, new)))
    beside = (*_compared(LAYOUT_FACTS, old, new), *_compared(others, old, new))
    run = tuple(_compared(RUN_FACTS, old, new))
    return ResumeChanges(training, beside if order else (), run if order else (*beside, *run))


def _compared(facts: tuple[Fact, ...], old: Side, new: Side) -> Iterator[Change]:
    return _changed(compare(facts, old, new))


def _changed(changes: Iterator[Change]) -> Iterator[Change]:
    return (change for change in changes if change.action is not Action.KEEP)
