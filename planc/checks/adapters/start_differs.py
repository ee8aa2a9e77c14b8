"""Adapters to begin with that are not those of the plan."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.hub import peft_adapter
from planc.inventory.adapters import adapted_stacks, is_adaptable, saved_apart, stacks_of

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
        adapter = peft_adapter.read_adapter(folder)
    except peft_adapter.UnreadableAdapterError as error:
        yield CODE.at(written, str(error), help="name a directory of LoRA adapters, as peft saves them")
        return
    problems = peft_adapter.differences(
        adapter,
        rank=spec.kind.rank,
        alpha=spec.kind.alpha,
        rslora=spec.kind.rslora,
        dora=spec.kind.dora,
        layers=dict(_sizes(subject)),
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


def _sizes(subject: Subject) -> Iterator[tuple[str, peft_adapter.Sizes]]:
    """(peft's name of a layer or of a stack, its sizes)."""
    inventory = subject.inventory
    names = peft_adapter.names_of_stacks(adapted_stacks(subject.bound.inventory))
    for fqn in subject.bound.adapted:
        module = inventory.get(fqn)
        assert module is not None, "a plan adapts layers of its model"
        if is_adaptable(inventory, fqn):
            yield fqn, (module.in_features, module.out_features, 1)
        for stack in stacks_of(inventory, fqn):
            yield names[f"{fqn}.{stack.name}"], (stack.num_inputs, stack.num_outputs, stack.num_experts)
