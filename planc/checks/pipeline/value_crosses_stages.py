"""Values other than the last layer's output that a stage needs of another."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.pipeline.layers_without_stages import CODE as WITHOUT_STAGES
from planc.checks.pipeline.stages_out_of_order import CODE as OUT_OF_ORDER
from planc.checks.pipeline.support import split_pipeline
from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.layouts.families import families, quoted
from planc.plan.stages import layers, stage_by_name, stage_of, stages, ties_of_ends
from planc.vocab import MeshDim, parent_of

CODE = Code("P325", "value-crosses-stages", "a stage needs more than the output of the stage before it")

_MAX_SHOWN = 3


@reports(CODE, over=MeshDim.PP, unless=(WITHOUT_STAGES, OUT_OF_ORDER))
def check(subject: Subject) -> Findings:
    """One error at `pipeline` for all values and parameters that several stages need."""
    pipeline = split_pipeline(subject)
    if pipeline is not None and (found := (*_found(subject, stages(subject.bound, pipeline)),)):
        yield CODE.at(
            subject.plan.span("pipeline"),
            found[0],
            notes=(*found[1:], "stages send each other one tensor: the hidden states after a layer"),
            help="set `pp` to 1",
        )


def _found(subject: Subject, modules: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    inventory = subject.inventory
    if crossing := families(inventory, _crossing(subject, modules)):
        yield f"a later stage reads the output of {_shown(crossing)}"
    if read := families(inventory, inventory.read_by_layers):
        yield f"other modules read the parameters of {_shown(read)}"
    by_name = stage_by_name(modules)
    for tie in inventory.ties:
        holders = {stage_of(parent_of(name), by_name) for name in tie}
        if len(holders) > 1 and tie not in ties_of_ends(subject.bound):
            yield f"{_shown(tie)} are one parameter, not of the first and the last stage alone"


def _crossing(subject: Subject, found: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    """Modules whose outputs another stage reads. The last layer of the stage before is not one of them."""
    members = frozenset(layers(subject.inventory))
    by_name = stage_by_name(found)
    sent = [[name for name in names if name in members][-1] for names in found]
    for module in subject.inventory.modules:
        here = stage_of(module.fqn, by_name)
        for source in module.sources if here is not None else ():
            there = stage_of(source, by_name)
            is_sent = here == (there or 0) + 1 and source == sent[there or 0]
            if there not in (None, here) and not is_sent:
                yield source


def _shown(names: tuple[str, ...]) -> str:
    return f"{quoted(names[:_MAX_SHOWN])}{' and others' if len(names) > _MAX_SHOWN else ''}"
