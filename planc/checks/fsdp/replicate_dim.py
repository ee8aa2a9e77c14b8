"""Replicas on the wrong mesh dim."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.vocab import MeshDim

CODE = Code("P307", "replicate-dim", "FSDP can only replicate over `dp_replicate`")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at `fsdp.replicate_on` if it names a mesh dim without replicas."""
    fsdp = subject.plan.fsdp
    if fsdp is not None and fsdp.replicate_on not in (None, MeshDim.DP_REPLICATE):
        yield CODE.at(
            subject.plan.span("fsdp.replicate_on"),
            f"`{fsdp.replicate_on}` shards the model or the data and has no replicas",
            help="write `replicate_on = dp_replicate`, or leave out `replicate_on`",
        )
