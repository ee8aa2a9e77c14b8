"""Adapters to begin with that are not those of the plan."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.hub.peft_adapter import UnreadableAdapterError, differences, read_adapter
from planc.inventory.adapters import saved_apart

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
        apart=_apart(subject),
    )
    for key, text in problems:
        place = written if key in ("layers", "apart") else plan.span("adapter.kind")
        second = () if place is written else (Label(written, "the directory"),)
        yield CODE.at(place, text, secondary=second, help=_HELP[key].format(adapter))


_HELP = {
    "rank": "write `rank = {0.rank}`",
    "alpha": "write `alpha = {0.alpha:g}`",
    "rslora": "change `rslora`",
    "dora": "change `dora`",
    "layers": "adapt the layers that the directory has, or train without `start`",
    "apart": "add a rule for it to `freeze`, `-> trained`, or train without `start`",
}


def _apart(subject: Subject) -> dict[str, tuple[int, ...] | None]:
    """The shapes of what is trained next to the adapters."""
    inventory, frozen = subject.bound.inventory, subject.bound.frozen
    shapes = {fqn: parameter.shape for fqn, _, parameter in inventory.parameters()}
    return {name: shapes[name] for name in saved_apart(inventory, frozen)}


def _sizes(subject: Subject, fqn: str) -> tuple[int, int]:
    """The inputs and outputs of a layer."""
    module = subject.inventory.get(fqn)
    assert module is not None, "a plan adapts layers of its model"
    return module.in_features, module.out_features
