"""Key and value heads over tensor parallelism."""

from __future__ import annotations

from planc.checks.support.attention_heads import divided_attentions, num_heads
from planc.checks.support.remedies import changed, gathered
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.support.sharded_sizes import SizeKind, labels, legal_sizes, listed, misfits
from planc.diagnostics import Code
from planc.styles.linear import REPLICATED_KV
from planc.vocab import MeshDim

CODE = Code("P402", "kv-heads-indivisible", "key/value heads are not divisible by tp")


@reports(CODE, over=MeshDim.TP)
def check(subject: Subject) -> Findings:
    """One finding at `mesh.tp` when tp divides the heads of attention, but not its key/value heads."""
    if sizes := misfits(subject, first=SizeKind.KV_HEADS):
        yield CODE.at(
            subject.plan.span("mesh.tp"),
            listed(sizes, tp=subject.plan.mesh.tp),
            secondary=labels(sizes),
            notes=("every rank needs whole heads",),
            help=_help(subject),
        )


def _help(subject: Subject) -> str:
    """The sizes that divide everything, and how ranks can replicate the heads; if neither is possible, how to
    shard the weights alone."""
    sizes = f"set `tp` to {legal_sizes(subject) or '1'}" if num_heads(subject) > 1 else ""
    replicated = _replicated(subject)
    if replicated:
        rules = f"replicate the key/value heads: write {replicated}"
        return f"{sizes}, or {rules}" if sizes else rules
    if sizes:
        return sizes
    attentions = [attention.fqn for attention, _ in divided_attentions(subject)]
    return f"keep all heads on every rank, since no tp divides them: write {gathered(subject, attentions)}"


def _replicated(subject: Subject) -> str:
    """The rules that replicate key/value heads; none if other sizes do not fit, or an attention can't."""
    tp, attentions = subject.plan.mesh.tp, [one for one, _ in divided_attentions(subject)]
    if any(misfit.kind is not SizeKind.KV_HEADS for misfit in misfits(subject, first=SizeKind.KV_HEADS)):
        return ""
    few = [attention for attention in attentions if attention.num_kv_heads % tp]
    if any(one.shared_kv is None or tp % one.num_kv_heads for one in few):
        return ""
    held = {one.fqn for one in few}
    projections = subject.inventory.kv_projections()
    fqns = [fqn for fqn, (attention, _) in projections.items() if attention.fqn in held]
    return changed(subject, fqns, REPLICATED_KV.name)
