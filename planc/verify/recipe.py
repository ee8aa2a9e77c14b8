"""What a plan says of training, and nothing of how it is spread over ranks; and how much of it is run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from planc.plan import spec
from planc.plan.bind import BoundPlan
from planc.plan.facts import gradient_accumulation
from planc.runtime.data.sources import TextSource
from planc.runtime.data.spec import DataSpec
from planc.verify.twin import Renaming
from planc.vocab import DType

NUM_STEPS = 3
SCHEDULE_STEPS, MAX_WARMUP_STEPS = 10, 2
SEQUENCE_LENGTH = 64
MAX_RANKS = 2
"""Of one mesh dim."""
MAX_MICRO_BATCH, MAX_MICRO_STEPS = 2, 2
LOWEST_RATE = 1e-2
"""Below it, three updates would drown in the rounding of the weights that they change."""
LOWEST_EPS = 1e-6
"""Below it, AdamW would make whole updates of what rounding leaves of the smallest gradients."""
MODEL, CORPUS = "model", "corpus.txt"


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that one process needs to train as the plan says. `base` is where relative paths start."""

    base: Path
    model: str
    seed: int
    dtype: str
    data: DataSpec
    global_batch: int
    """Sequences of a step."""
    optimizer: spec.AdamW
    schedule: spec.Cosine | spec.Linear | spec.Constant
    total_steps: int
    """Of the schedule; `num_steps` are run."""
    num_steps: int
    clip_grad_norm: float | None
    decays: tuple[tuple[str, float], ...] = ()
    """Weight decay by parameter, where a group sets it."""


def recipe_of(bound: BoundPlan, renamed: Renaming, *, folder: Path, dtype: DType) -> Recipe:
    """What the plan, not its graph, says of training, with small batches and a short schedule."""
    plan = bound.plan
    dp_size = min(plan.mesh.dp_replicate, MAX_RANKS) * min(plan.mesh.dp_shard, MAX_RANKS)
    micro_batch = min(plan.data.micro_batch, MAX_MICRO_BATCH)
    micro_steps = min(gradient_accumulation(plan), MAX_MICRO_STEPS)
    optimizer, kind = plan.optimizer, plan.optimizer.kind
    decays = ((renamed.of((name,)), decay) for name, (decay, _) in bound.weight_decay.items())
    return Recipe(
        base=folder,
        model=MODEL,
        seed=plan.model.seed,
        dtype=dtype.value,
        data=DataSpec(
            TextSource((CORPUS,)),
            tokenizer="bytes",
            sequence_length=min(SEQUENCE_LENGTH, plan.data.sequence_length),
            shuffle_seed=plan.data.shuffle_seed,
        ),
        global_batch=micro_batch * micro_steps * dp_size,
        optimizer=replace(kind, lr=max(kind.lr, LOWEST_RATE), eps=max(kind.eps, LOWEST_EPS)),
        schedule=replace(optimizer.schedule, warmup=min(optimizer.schedule.warmup, MAX_WARMUP_STEPS)),
        total_steps=SCHEDULE_STEPS,
        num_steps=NUM_STEPS,
        clip_grad_norm=optimizer.clip_grad_norm,
        decays=tuple((name, decay) for names, decay in decays for name in names),
    )
