"""One process that trains what a mutated plan says, as `planc verify` has it do."""

from __future__ import annotations

from pathlib import Path

from planc.data_sources.kinds import JsonLinesSource, PairsSource, TextSource
from planc.graph.graph import Graph
from planc.inventory.routers import routers
from planc.plan import conversations
from planc.plan import data as data_block
from planc.plan.bind import BoundPlan
from planc.plan.quantized import NF4_BLOCK
from planc.runtime.data.spec import DataSpec
from planc.verify.recipe import Recipe, balance_of
from planc.verify.reference import train
from planc.verify.shrink import matrices_of
from planc.verify.twin import Renaming

__all__ = ["NUM_STEPS", "Recipe", "recipe_of", "train"]

NUM_STEPS = 2
"""Steps that are run and compared."""


def recipe_of(bound: BoundPlan, graph: Graph, *, base: Path) -> Recipe:
    """A plan's recipe. ValueError where this reference has no counterpart of what the plan asks for."""
    plan, data = bound.plan, bound.plan.data
    match data.source:
        case data_block.TextFiles(patterns):
            source: TextSource | JsonLinesSource | PairsSource = TextSource(patterns)
        case data_block.JsonLines(patterns, field):
            source = JsonLinesSource(patterns, field)
        case conversations.Pairs(patterns):
            source = PairsSource(patterns, template="none")
        case other:
            raise ValueError(f"no reference for source {other}")
    in_pairs = isinstance(source, PairsSource)
    if data.packing != ("none" if in_pairs else "attend") or not isinstance(
        data.tokenizer, data_block.ByteTokenizer
    ):
        raise ValueError(f"no reference for packing {data.packing}, tokenizer {data.tokenizer}")
    tokens = plan.train.tokens_per_step
    batch = data.micro_batch * plan.mesh.dp_size if tokens is None else tokens // data.sequence_length
    known = routers(bound.inventory)
    names = (name for router in known for name in (router.fqn, router.experts, router.bias) if name)
    same = Renaming(frozenset(), {}, frozenset(names))
    return Recipe(
        base=base,
        model=plan.model.hf,
        seed=plan.model.seed,
        dtype=plan.model.dtype,
        data=DataSpec(
            source,
            "bytes",
            data.sequence_length,
            data.shuffle_seed,
            packing=data.packing.value,
            too_long=(data.too_long or data_block.TooLong.TRUNCATE).value,
        ),
        global_batch=batch,
        optimizer=plan.optimizer.kind,
        schedule=plan.optimizer.schedule,
        total_steps=plan.train.steps,
        num_steps=NUM_STEPS,
        clip_grad_norm=plan.optimizer.clip_grad_norm,
        balance=balance_of(bound, same, data.micro_batch, global_batch=batch),
        capacity=plan.expert_parallel.capacity if plan.expert_parallel else None,
        capped=tuple(bound.capped),
        decays=tuple((name, decay) for name, (decay, _) in bound.weight_decay.items()),
        rates=tuple((name, lr) for name, (lr, _) in bound.learning_rates.items()),
        frozen=tuple(bound.frozen),
        adapted=tuple(bound.adapted),
        adapter=plan.adapter.kind if plan.adapter else None,
        quantized=tuple(bound.quantized),
        block=NF4_BLOCK,
        matrices=matrices_of(graph),
        ema_decay=plan.train.ema_decay,
        loss=plan.train.loss,
    )
