"""More stages than layers."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.stages import layers, num_stages
from planc.vocab import MeshDim

CODE = Code("P321", "more-stages-than-layers", "there are more stages than layers")


@reports(CODE, over=MeshDim.PP)
def check(subject: Subject) -> Findings:
    """One error at `mesh.pp`."""
    pipeline = subject.plan.pipeline
    if pipeline is None:
        return
    wanted, num_layers, each = (
        num_stages(subject.bound, pipeline),
        len(layers(subject.inventory)),
        pipeline.stages_per_rank,
    )
    if wanted > num_layers > 0:
        most = max(1, num_layers // each)
        ranks = f"{subject.plan.mesh.pp} ranks with {each} stages each" if each > 1 else f"{wanted} stages"
        yield CODE.at(
            subject.plan.span("mesh.pp"),
            f"{ranks} for {num_layers} layers",
            notes=("every stage needs a layer",),
            help=f"set `pp` to {f'at most {most}' if most > 1 else '1'}",
        )
