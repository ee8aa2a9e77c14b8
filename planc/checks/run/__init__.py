"""Rules on a run: saving, guards, profiles, expectations, and the device's memory."""

from __future__ import annotations

from planc.checks.run import (
    does_not_fit,
    expectation_broken,
    guard_beyond_training,
    length_undecided,
    no_replicas,
    nothing_saved,
    policy_beyond_training,
    profile_beyond_training,
    snapshot_on_cpu,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    length_undecided.RULE,
    expectation_broken.RULE,
    nothing_saved.RULE,
    policy_beyond_training.RULE,
    profile_beyond_training.RULE,
    guard_beyond_training.RULE,
    no_replicas.RULE,
    snapshot_on_cpu.RULE,
    # Last: it needs an estimate, and several when the plan does not fit.
    does_not_fit.RULE,
)
