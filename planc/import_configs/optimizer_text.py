"""The optimizer's block: arguments, clipping and the schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator

from planc.import_configs import facts
from planc.import_configs.draft import Draft
from planc.import_configs.kind import NoteKind


def number_text(value: float) -> str:
    """A float as a plan writes it: `3e-4`, not `0.0003`."""
    if value and not 1e-3 <= abs(value) < 1e4:
        mantissa, _, exponent = f"{value:e}".partition("e")
        short = f"{float(mantissa):g}e{int(exponent)}"
        if float(short) == value:
            return short
    return repr(float(value))


def optimizer_lines(draft: Draft, *, lr: float, steps: int) -> Iterator[str]:
    """The settings of the block."""
    kind = draft.take(facts.OPTIMIZER) or "adamw"
    yield f"kind = {kind}({', '.join(_arguments(draft, kind=kind, lr=lr))})"
    clip = draft.take(facts.CLIP)
    if clip is not None:
        yield f"clip_grad_norm = {number_text(clip)}"
    schedule = _schedule(draft, lr=lr, steps=steps)
    if schedule:
        yield f"schedule = {schedule}"


def _arguments(draft: Draft, *, kind: str, lr: float) -> Iterator[str]:
    yield f"lr = {number_text(lr)}"
    if kind == "sgd":
        momentum = draft.take(facts.MOMENTUM)
        if momentum is not None:
            yield f"momentum = {number_text(momentum)}"
    else:
        betas = draft.take(facts.BETAS)
        first, second = draft.take(facts.BETA1), draft.take(facts.BETA2)
        if betas is None and (first is not None or second is not None):
            betas = (0.9 if first is None else first, 0.999 if second is None else second)
        if betas is not None:
            yield f"betas = [{number_text(betas[0])}, {number_text(betas[1])}]"
        eps = draft.take(facts.EPS)
        if eps is not None:
            yield f"eps = {number_text(eps)}"
    decay = draft.take(facts.WEIGHT_DECAY)
    if decay is not None:
        yield f"weight_decay = {number_text(decay)}"
    implementation = draft.take(facts.IMPLEMENTATION)
    if implementation is not None and (kind, implementation) != ("sgd", "fused"):
        yield f"implementation = {implementation}"


def _schedule(draft: Draft, *, lr: float, steps: int) -> str:
    """The call, or nothing for a constant rate."""
    warmup = _warmup(draft, steps=steps)
    shape = draft.take(facts.SCHEDULE) or "constant"
    decay = _decay(draft, steps=steps)
    if decay and shape in ("linear", "wsd"):
        shape = "wsd"
    elif shape == "wsd":
        shape = "constant"
        draft.added("optimizer.schedule", "without its steps of decay, a wsd schedule keeps the peak")
    arguments = [f"warmup = {warmup} steps"] if warmup else []
    if shape == "wsd":
        arguments.append(f"decay = {decay} steps")
    if shape != "constant" and (factor := _min_factor(draft, lr=lr)):
        arguments.append(f"min_factor = {number_text(factor)}")
    if shape == "constant" and not arguments:
        return ""
    return f"{shape}({', '.join(arguments)})" if arguments else shape


def _warmup(draft: Draft, *, steps: int) -> int:
    warmup, ratio = draft.take(facts.WARMUP), draft.peek(facts.WARMUP_RATIO)
    if warmup is not None and 0 < warmup < 1:
        warmup = math.ceil(warmup * steps)
    if ratio is not None and warmup:
        text = f"{warmup} steps of warm-up are given too, which win"
        draft.set_aside(facts.WARMUP_RATIO, text, kind=NoteKind.WRONG if ratio.value else NoteKind.SET_ASIDE)
    elif ratio is not None:
        warmup = math.ceil(draft.take(facts.WARMUP_RATIO) * steps)
    if warmup and warmup >= steps:
        draft.added("optimizer.schedule", f"warm-up of {warmup} steps does not end within {steps} steps")
    return int(warmup or 0)


def _decay(draft: Draft, *, steps: int) -> int:
    decay = draft.take(facts.DECAY_STEPS)
    ratio = draft.take(facts.DECAY_RATIO)
    if decay is None and ratio is not None:
        decay = round(ratio * steps)
    return int(decay or 0)


def _min_factor(draft: Draft, *, lr: float) -> float:
    factor = draft.take(facts.MIN_FACTOR)
    lowest = draft.peek(facts.MIN_LR)
    if factor is None and lowest is not None:
        if lowest.value > lr:
            text = f"the lowest rate {lowest.value:g} is above the peak {lr:g}"
            draft.set_aside(facts.MIN_LR, text, kind=NoteKind.WRONG)
            return 0.0
        # A quotient of decimals: digits beyond these are the division's.
        factor = float(f"{draft.take(facts.MIN_LR) / lr:.9g}")
    return float(factor or 0.0)
