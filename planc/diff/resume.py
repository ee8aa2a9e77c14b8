"""The effect of another plan on a resumed run: none, the order of sums, or the training itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planc.diff.data_facts import BATCH_FACTS, DATA_STATE
from planc.diff.difference import Action, Change
from planc.diff.fact import Fact, compare
from planc.diff.facts import LAYOUT_FACTS, NUMERICS_FACTS, RUN_FACTS
from planc.diff.modules import compare_groups
from planc.diff.reductions import compare_reduction_order
from planc.diff.side import Side

PARAMETER_GROUPS = "parameter groups"
"""The common name of groups of parameters with another decay or learning rate."""

_NEEDS_NO_LEAVE = frozenset(
    {
        # Refused or accepted because of the checkpoint's own content.
        *("model", "model.dtype", "model.seed", *DATA_STATE),
        # Follows from tokens/step or the mesh; alters at most the order of sums.
        *("sequences/step", "gradient_accumulation", "data.micro_batch", "optimizer implementation"),
        # A checkpoint replaces them; a guard only acts on a run that has gone wrong.
        *("model.weights", "model.strip", "guard.nonfinite", "guard.loss_spike"),
    }
)

_TRAINING_FACTS = tuple(fact for fact in (*BATCH_FACTS, *NUMERICS_FACTS) if fact.name not in _NEEDS_NO_LEAVE)
CHANGES_TO_ALLOW = (*(fact.name for fact in _TRAINING_FACTS), PARAMETER_GROUPS)
"""The names of differences that change the training itself: only a person can decide to allow them."""


@dataclass(frozen=True, slots=True)
class ResumeChanges:
    """The differences, by consequence. `training` has (name to allow it by, change)."""

    training: tuple[tuple[str, Change], ...]
    sums: tuple[Change, ...]
    """Changes that only affect rounding."""
    harmless: tuple[Change, ...]


def resume_changes(old: Side, new: Side) -> ResumeChanges:
    """The effect of `new` on a run that `old` began. The checkpoint itself refuses other models and data."""
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
