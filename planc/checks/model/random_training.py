"""Models that draw random numbers in training which no other mesh would draw."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.layouts.draws import placed_draws
from planc.layouts.families import quoted
from planc.plan.attention_calls import sees_later_tokens
from planc.plan.spec import AttentionKernel
from planc.plan.task import Classification, Embedding

CODE = Code("P724", "random-training", "the model draws random numbers in training")

_NONE = "write `dropout = false` in `model`, which sets them to 0"


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each kind of draw that planc can't repeat, unless the plan sets the rates to 0."""
    if not subject.inventory.random or not subject.plan.model.dropout:
        return
    yield from _others(subject)
    yield from _weights(subject)
    yield from _unplaced(subject)


def _others(subject: Subject) -> Findings:
    """Layer drop and jitter."""
    if fields := subject.inventory.random_others:
        yield CODE.at(
            subject.plan.span("model.hf"),
            f"{_are_not_zero(fields)}, and planc repeats dropout only",
            notes=(
                "every mesh and resumed run would draw different numbers, even for tensors that ranks share",
            ),
            help=_NONE,
        )


def _weights(subject: Subject) -> Findings:
    """Attention weights that never are in memory."""
    plan, fields = subject.plan, subject.inventory.random_weights
    if not fields or plan.model.attention is AttentionKernel.EAGER:
        return
    of_texts = isinstance(plan.model.task, Classification | Embedding)
    has_padding = of_texts and sees_later_tokens(subject.inventory)
    needs_fused = plan.mesh.cp > 1 or plan.data.packing.isolates or has_padding
    instead = f"set {quoted(fields)} to 0 in config.json" if needs_fused else "write `attention = eager`"
    yield CODE.at(
        plan.span("model.hf"),
        f"{_are_not_zero(fields)}, and fused attention has no weights that could be dropped",
        help=f"{instead}, or {_NONE.removesuffix(', which sets them to 0')}, which sets every rate to 0",
    )


def _unplaced(subject: Subject) -> Findings:
    """Dropouts of tensors in which planc can't tell an element's place."""
    unknown: list[str] = []
    divided: list[str] = []
    for module, placed in placed_draws(subject.bound, subject.flow):
        if any(not one.draw.dims for one in placed):
            unknown.append(module.fqn)
        elif any(one.layout is None for one in placed):
            divided.append(module.fqn)
    for fqns, path, why in (
        (unknown, "model.hf", "the dimensions of its tensor are not those of a batch"),
        (divided, "tensor_parallel", "its tensor's layout over tp is unknown"),
    ):
        if fqns:
            names = subject.named(fqns)
            yield CODE.at(
                subject.plan.span(path),
                f"dropout in {names} can't be repeated on other meshes: {why}",
                help=_NONE,
            )


def _are_not_zero(fields: tuple[str, ...]) -> str:
    return f"{quoted(fields)} of its config.json {'is' if len(fields) == 1 else 'are'} not 0"
