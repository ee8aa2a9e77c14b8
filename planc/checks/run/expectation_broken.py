"""Assertions in a plan about the facts that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planc.checks.data.batch_indivisible import CODE as BATCH_INDIVISIBLE
from planc.checks.support.rule import Findings, Subject, reports
from planc.checks.tensor_parallel import (
    heads_indivisible,
    kv_heads_indivisible,
    sequence_indivisible,
    vocabulary_below_tp,
    width_indivisible,
)
from planc.diagnostics import Applicability, Code, Fix, Label
from planc.diagnostics.suggest import closest, is_slip
from planc.layouts.families import quoted
from planc.plan.expectations import holds
from planc.plan.facts import COUNTS, DERIVED, ESTIMATED, FLAGS
from planc.plan.scope import OriginStep
from planc.plan.spec import Expectation, Plan
from planc.tables import format_bytes, format_number

CODE = Code("P702", "expectation-broken", "an expectation does not hold")
UNKNOWN = Code("P703", "unknown-fact", "unknown fact in `expect`")

_WITHOUT_LEGAL_TP = (
    heads_indivisible.CODE,
    kv_heads_indivisible.CODE,
    width_indivisible.CODE,
    vocabulary_below_tp.CODE,
    sequence_indivisible.CODE,
)
"""Errors that make facts meaningless: tp must change, and with it the world size."""

_FORMULAS: Mapping[str, str] = {
    **DERIVED,
    **ESTIMATED,
}
"""The formula of each fact, in words."""

_BATCH = ("mesh.dp_", "data.micro_batch", "data.sequence_length", "train.tokens_per_step")
_INPUTS: Mapping[str, tuple[str, ...]] = {
    "world_size": ("mesh.",),
    "dp_size": ("mesh.dp_",),
    "gradient_accumulation": _BATCH,
    "tokens_per_step": _BATCH,
    "sequences_per_step": _BATCH,
    "total_tokens": (*_BATCH, "train.steps"),
    "parameters": ("model.",),
}
"""The start of the paths of the settings that a fact depends on."""

_SHAPING = (
    *("model.", "mesh.", "tensor_parallel.", "fsdp.", "context_parallel.", "activation_checkpoint."),
    *("compile.", "freeze.", "data.", "optimizer.", "hardware.", "train.tokens_per_step"),
)
"""The same of the settings that an estimate depends on."""


@reports(CODE, UNKNOWN, unless=(BATCH_INDIVISIBLE, *_WITHOUT_LEGAL_TP))
def check(subject: Subject) -> Findings:
    """One finding for each line of `expect` that is false, or that names no fact."""
    known, own_file = subject.facts, subject.plan.span("").file
    for expectation in subject.plan.expectations:
        if expectation.subject in DERIVED and expectation.subject not in known:
            # Known once the data is prepared.
            continue
        if expectation.subject not in known:
            near = None if expectation.subject in FLAGS else closest(expectation.subject, known)
            yield UNKNOWN.at(
                expectation.subject_span,
                f"no fact `{expectation.subject}`",
                notes=(f"facts: {', '.join(known)}",),
                help=f"did you mean `{near}`?" if near else _unknown_help(expectation.subject),
                fix=_fix(expectation, near) if near else None,
            )
        elif not holds(expectation, known[expectation.subject]):
            settings = _settings(subject.plan, expectation.subject)
            yield CODE.at(
                expectation.span,
                f"{expectation.subject} is {written_fact(expectation.subject, known[expectation.subject])}",
                secondary=tuple(
                    Label(step.span, f"{expectation.subject} depends on this")
                    for step in settings
                    if step.span
                ),
                notes=(f"{expectation.subject} = {_FORMULAS[expectation.subject]}",),
                help=_broken_help(expectation.subject, settings, is_own=expectation.span.file == own_file),
            )


def rehearsed(plan: Plan, measured: Mapping[str, int]) -> Findings:
    """The same finding for facts that a rehearsal measured."""
    for expectation in plan.expectations:
        if expectation.subject in measured and not holds(expectation, measured[expectation.subject]):
            value = written_fact(expectation.subject, measured[expectation.subject])
            yield CODE.at(
                expectation.span,
                f"{expectation.subject} is {value} in the rehearsal",
                notes=("the rehearsal replays planc's operations on a simulated allocator",),
                help="change what needs the memory, or the expectation: `planc estimate` lists the parts",
            )


def _fix(expectation: Expectation, near: str) -> Fix:
    # `tp_size` and `dp_size` are as similar as a typo.
    applicability = Applicability.of(is_safe=is_slip(expectation.subject, near))
    return Fix(expectation.subject_span, near, applicability)


def _settings(plan: Plan, fact: str) -> tuple[OriginStep, ...]:
    """The settings on the command line or in the environment that a fact depends on."""
    inputs = _INPUTS.get(fact, _SHAPING)
    steps = (plan.origins[path] for path in plan.origins if path.startswith(inputs))
    outside = (step for chain in steps for step in chain[:1] if step.kind in ("set", "environment"))
    return tuple(dict.fromkeys(outside))


def _broken_help(fact: str, settings: Sequence[OriginStep], *, is_own: bool) -> str:
    if settings:
        outside = quoted(step.text for step in settings)
        return f"leave out {outside}, correct the expectation, or add `--set expect.{fact}=waived`"
    if is_own:
        return "correct the expectation, or the setting that changed"
    return "correct the setting that changed, or move the expectation from the base into its plans"


def _unknown_help(name: str) -> str:
    if name in FLAGS:
        return f"add a `hardware` block, or pass --gpu: `{name}` needs a device"
    return "run `planc explain expect` for the list of facts"


def written_fact(name: str, value: int) -> str:
    """A count, a flag as a plan writes it, or a size in rounded units and in bytes."""
    if name in FLAGS:
        return str(bool(value)).lower()
    return format_number(value) if name in COUNTS else f"{format_bytes(value)} ({format_number(value)} B)"
