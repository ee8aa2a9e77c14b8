"""FSDP units and recomputed modules that hold modules of several stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planc.checks.pipeline.layers_without_stages import CODE as WITHOUT_STAGES
from planc.checks.pipeline.support import split_pipeline
from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic
from planc.layouts.families import quoted
from planc.plan.stages import stages
from planc.vocab import MeshDim

CODE = Code("P326", "unit-across-stages", "this rule joins modules of several stages")


def check(subject: Subject) -> Iterator[Diagnostic]:
    """One error for each unit, and for each recomputed module."""
    pipeline, bound = split_pipeline(subject), subject.bound
    if pipeline is None:
        return
    found = stages(bound, pipeline)
    joined = [(unit.fqns, unit.span, "gathered") for unit in bound.units]
    joined += [((name,), span, "recomputed") for name, span in bound.checkpointed.items()]
    for names, span, what in joined:
        across = [stage for stage, modules in enumerate(found) if _share(names, modules)]
        if len(across) > 1:
            yield CODE.at(
                span,
                f"{quoted(names[:3])} would be {what} together, in stages {across[0]} to {across[-1]}",
                help="write one rule for each of these modules, or for modules inside them",
            )


def _share(names: Iterable[str], modules: tuple[str, ...]) -> bool:
    """Whether one of these modules is in a stage, or holds a module of it."""
    return any(
        f"{module}.".startswith(f"{name}.") or f"{name}.".startswith(f"{module}.")
        for name in names
        for module in modules
    )


RULE = Rule((CODE,), check, over=MeshDim.PP, unless=(WITHOUT_STAGES,))
