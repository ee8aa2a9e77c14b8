"""Mutations of pipelines: schedules, micro-batches, stages of several layers, and units of every shape."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.mutants.draft import Draft
from tests.mutants.mutant import Edited
from tests.mutants.plan_mutations import unit
from tests.mutants.shrink import SEQUENCE_LENGTH, Config

SCHEDULES = ("gpipe()", "one_f_one_b()", "interleaved(stages_per_rank = 2)", "zero_bubble()")
BESIDE = ("dp_shard", "dp_shard", "cp", "tp", "dp_replicate")
"""Mesh dims that a pipeline may have beside it, those that shard units more often."""


def stages(draft: Draft, config: Config, random: Random) -> Edited | None:
    """Another schedule, beside another mesh dim, with other layers and units."""
    if draft.get("pipeline") is None or draft.get("fsdp") is None or "num_hidden_layers" not in config:
        return None
    beside, schedule = random.choice(BESIDE), random.choice(SCHEDULES)
    times, layers = random.choice((1, 2, 3, 4)), random.choice((2, 3, 4, 5))
    for mesh_dim in draft.mesh():
        draft = draft.setting("mesh", mesh_dim, 2 if mesh_dim in ("pp", beside) else 1)
    tokens = SEQUENCE_LENGTH * times * (2 if beside.startswith("dp") else 1)
    rules = [unit(random) for _ in range(random.choice((0, 1, 1, 2, 3)))]
    edited = (
        draft.setting("pipeline", "schedule", schedule)
        .setting("data", "micro_batch", 1)
        .setting("train", "tokens_per_step", tokens)
        .edit("fsdp", lambda block: replace(block, rules=tuple(rules)))
        .edit("expect", lambda block: replace(block, comparisons=()))
    )
    note = f"{schedule} with {beside}, {layers} layers, {times} micro-batches, "
    note += f"units: {'; '.join(map(str, rules)) or 'none'}"
    return Edited(edited, {**config, "num_hidden_layers": layers}, note)
