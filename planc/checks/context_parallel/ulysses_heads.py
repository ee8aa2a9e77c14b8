"""Attention heads over Ulysses context parallelism."""

from __future__ import annotations

from planc.checks.support.attention_heads import divided_attentions
from planc.checks.support.legal_values import choices, divisors
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.plan.divided_heads import attentions_with_replicated_kv
from planc.plan.spec import Rotate
from planc.tables import plural
from planc.vocab import MeshDim

CODE = Code("P604", "ulysses-heads", "Ulysses can't shard these heads over cp")


@reports(CODE, over=MeshDim.CP)
def check(subject: Subject) -> Findings:
    """One finding at `mesh.cp`: a rank's heads must divide by cp, and its KV heads too, or cp by them."""
    spec, mesh = subject.plan.context_parallel, subject.plan.mesh
    if spec is None or spec.rotate is not Rotate.ULYSSES:
        return
    divided = {attention.fqn for attention, _ in divided_attentions(subject)}
    replicating = attentions_with_replicated_kv(subject.bound)
    for attention in subject.inventory.attentions:
        tp = mesh.tp if attention.fqn in divided else 1
        kv_ranks = attention.num_kv_heads if attention.fqn in replicating else tp
        if attention.num_heads % tp or attention.num_kv_heads % kv_ranks:
            continue  # indivisible by tp already
        heads, kv_heads = attention.num_heads // tp, attention.num_kv_heads // kv_ranks
        if _fits(mesh.cp, heads, kv_heads):
            continue
        sizes = [size for size in divisors(heads) if _fits(size, heads, kv_heads)]
        per_rank = f" (num_attention_heads / tp = {tp})" if tp > 1 else ""
        yield CODE.at(
            subject.plan.span("mesh.cp"),
            f"cp = {mesh.cp} does not divide {plural(heads, 'head')} and "
            f"{plural(kv_heads, 'key/value head')}{per_rank}",
            secondary=(
                Label(subject.plan.span("context_parallel.rotate"), "ulysses gives each rank whole heads"),
            ),
            help=f"set `cp` to {choices(sizes, near=mesh.cp)}, or write `rotate = ring`",
        )
        return


def _fits(cp: int, heads: int, kv_heads: int) -> bool:
    return heads % cp == 0 and (kv_heads % cp == 0 or cp % kv_heads == 0)
