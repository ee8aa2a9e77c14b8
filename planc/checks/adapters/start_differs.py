"""Adapters to begin with that are not those of the plan."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.hub.peft_adapter import UnreadableAdapterError, differences, read_adapter

CODE = Code("P773", "adapter-start-differs", "the adapters to start from are not those of the plan")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each difference. Nothing is reported of a directory that is not on this machine."""
    plan, spec = subject.plan, subject.plan.adapter
    if spec is None or spec.start is None or subject.base is None:
        return
    folder, written = subject.base / spec.start, plan.span("adapter.start")
    if not folder.is_dir():
        return
    try:
        adapter = read_adapter(folder)
    except UnreadableAdapterError as error:
        yield CODE.at(written, str(error), help="name a directory of LoRA adapters, as peft saves them")
        return
    problems = differences(
        adapter,
        rank=spec.kind.rank,
        alpha=spec.kind.alpha,
        rslora=spec.kind.rslora,
        dora=spec.kind.dora,
        layers={fqn: _sizes(subject, fqn) for fqn in subject.bound.adapted},
    )
    for key, text in problems:
        place = written if key == "layers" else plan.span("adapter.kind")
        second = () if place is written else (Label(written, "the directory"),)
        yield CODE.at(place, text, secondary=second, help=_HELP[key].format(adapter))


_HELP = {
    "rank": "write `rank = {0.rank}`",
    "alpha": "write `alpha = {0.alpha:g}`",
    "rslora": "change `rslora`",
    "dora": "change `dora`",
    "layers": "adapt the layers that the directory has, or train without `start`",
}


def _sizes(subject: Subject, fqn: str) -> tuple[int, int]:
    """The inputs and outputs of a layer."""
    module = subject.inventory.get(fqn)
    assert module is not None, "a plan adapts layers of its model"
    return module.in_features, module.out_features
