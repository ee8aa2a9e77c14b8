"""Rules on a run: saving, guards, profiles, expectations, and the device's memory."""

from __future__ import annotations

from planc.checks.run import (
    does_not_fit,
    expectation_broken,
    expectation_waived,
    guard_beyond_training,
    length_undecided,
    no_replicas,
    nothing_saved,
    pairs_in_memory,
    policy_beyond_training,
    profile_beyond_training,
    pushes_collide,
    snapshot_on_cpu,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    length_undecided.check,
    expectation_broken.check,
    expectation_waived.check,
    nothing_saved.check,
    pushes_collide.check,
    policy_beyond_training.check,
    profile_beyond_training.check,
    guard_beyond_training.check,
    no_replicas.check,
    snapshot_on_cpu.check,
    # Last: they need an estimate, and several when the plan does not fit.
    pairs_in_memory.check,
    does_not_fit.check,
)
