"""The optimizer's block: arguments, clipping, the schedule, and what does not decay."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal

from planc.import_configs import facts
from planc.import_configs.draft import Draft
from planc.import_configs.facts import Fact
from planc.import_configs.kind import NoteKind
from planc.inventory.schema import Inventory
from planc.layouts.families import as_patterns, exact_families
from planc.syntax.write import call, number, rule


def optimizer_lines(
    draft: Draft, inventory: Inventory | None, *, lr: float, steps: int | None, spares: bool
) -> Iterator[str]:
    """The settings of the block, and the parameters that do not decay; `spares` if norms may be trained."""
    kind, decay = _kind(draft), draft.take(facts.WEIGHT_DECAY)
    if decay is None and kind.startswith("adamw"):
        decay = 0.01
        draft.added(facts.WEIGHT_DECAY.place, "0.01, torch's default: the file leaves it to the script")
    yield f"kind = {call(kind, [*_arguments(draft, kind=kind, lr=lr, decay=decay)])}"
    clip = draft.take(facts.CLIP)
    if clip is not None:
        yield f"clip_grad_norm = {number(clip)}"
    schedule = _schedule_of_epochs(draft, lr=lr) if steps is None else _schedule(draft, lr=lr, steps=steps)
    if schedule:
        yield f"schedule = {schedule}"
    if draft.kind.spares_norms and decay and spares:
        yield from _spared(draft, inventory)


def _kind(draft: Draft) -> str:
    """adamw or sgd. Adam without decay is AdamW without decay, and with decay it is neither."""
    kind = draft.peek(facts.OPTIMIZER)
    if kind is None or kind.value != "adam":
        return draft.take(facts.OPTIMIZER) or "adamw"
    decay = draft.peek(facts.WEIGHT_DECAY)
    if decay is not None and decay.value:
        text = "Adam adds decay to the gradient and then scales it; the plan's AdamW decays the weights"
        draft.stop(facts.OPTIMIZER, text)
    else:
        draft.take(facts.OPTIMIZER)
        draft.give_default(facts.WEIGHT_DECAY, 0.0, "the default of Adam")
    return "adamw"


def _spared(draft: Draft, inventory: Inventory | None) -> Iterator[str]:
    """The rule for norms and biases."""
    patterns = ("**.*norm*",) if inventory is None else spared_patterns(inventory)
    if patterns:
        yield rule(patterns, "group(weight_decay = 0.0)")
        known = "" if inventory is not None else ", as far as their names say `norm`: pass --model DIR"
        draft.added("optimizer.group", f"{draft.kind.title} does not decay norms and biases{known}")


def _arguments(draft: Draft, *, kind: str, lr: float, decay: float | None) -> Iterator[str]:
    yield f"lr = {number(lr)}"
    if kind == "sgd":
        momentum = draft.take(facts.MOMENTUM)
        if momentum is not None:
            yield f"momentum = {number(momentum)}"
    else:
        betas = draft.take(facts.BETAS)
        first, second = draft.take(facts.BETA1), draft.take(facts.BETA2)
        if betas is None and (first is not None or second is not None):
            betas = (0.9 if first is None else first, 0.999 if second is None else second)
        if betas is not None:
            yield f"betas = [{number(betas[0])}, {number(betas[1])}]"
        eps = draft.take(facts.EPS)
        if eps is not None:
            yield f"eps = {number(eps)}"
    if decay is not None:
        yield f"weight_decay = {number(decay)}"
    implementation = draft.take(facts.IMPLEMENTATION)
    if implementation is not None and kind in ("adamw", "sgd") and (kind, implementation) != ("sgd", "fused"):
        yield f"implementation = {implementation}"


def decimal_text(value: float) -> str:
    """The digits of a decimal number, without an exponent."""
    return f"{Decimal(repr(value)).normalize():f}"


def _schedule_of_epochs(draft: Draft, *, lr: float) -> str:
    """The call for a training whose steps follow from its data, or nothing for a constant rate."""
    warmup = _steps_or_share(draft, facts.WARMUP, facts.WARMUP_RATIO)
    if not warmup and facts.WARMUP.name not in draft.open:
        share, most = draft.kind.warmup
        if share:
            warmup = share_text(share)
            text = f"{warmup}, the default of {draft.kind.title}, which takes at most {most} steps"
            draft.added(facts.WARMUP.place, text)
    shape = draft.take(facts.SCHEDULE) or "constant"
    if shape != "wsd":
        for fact in (facts.DECAY_STEPS, facts.DECAY_RATIO):
            draft.stop(fact, "the steps of decay are compared with all steps: pass --steps N")
    decay = _steps_or_share(draft, facts.DECAY_STEPS, facts.DECAY_RATIO)
    if shape == "wsd" and not decay:
        shape = "constant"
        draft.added("optimizer.schedule", "without its steps of decay, a wsd schedule keeps the peak")
    return _schedule_call(draft, shape, warmup, decay, lr=lr)


def _schedule_call(draft: Draft, shape: str, warmup: str | int, decay: str, *, lr: float) -> str:
    """The call of a schedule; nothing for a constant rate without a warm-up."""
    arguments = [f"warmup = {warmup}"] if warmup else []
    if shape == "wsd":
        arguments.append(f"decay = {decay}")
    if shape != "constant" and (factor := _min_factor(draft, lr=lr)):
        arguments.append(f"min_factor = {number(factor)}")
    return "" if shape == "constant" and not arguments else call(shape, arguments)


def _steps_or_share(draft: Draft, steps: Fact, ratio: Fact) -> str:
    """`100 steps` or `3 %`; empty for neither. Steps win, as in transformers."""
    if given := draft.take(steps):
        if draft.has(ratio):
            draft.set_aside(ratio, "steps are given too, which win", kind=NoteKind.WRONG)
        return share_text(given) if 0 < given < 1 else f"{int(given)} steps"
    share = draft.take(ratio)
    return share_text(share) if share else ""


def share_text(share: float) -> str:
    return f"{decimal_text(float(Decimal(repr(share)) * 100))} %"


def _schedule(draft: Draft, *, lr: float, steps: int) -> str:
    """The call, or nothing for a constant rate."""
    warmup = _warmup(draft, steps=steps)
    shape = draft.take(facts.SCHEDULE) or "constant"
    decay = _decay(draft, steps=steps)
    if decay and shape == "cosine" and decay < steps - warmup:
        for fact in (facts.DECAY_STEPS, facts.DECAY_RATIO):
            draft.stop(fact, "a plan's cosine begins after warm-up: only a linear decay can begin later")
    draft.take(facts.DECAY_STEPS)
    draft.take(facts.DECAY_RATIO)
    if decay == 0 and shape in ("linear", "cosine"):
        shape = "constant"
    elif decay and shape == "linear" and decay < steps - warmup:
        shape = "wsd"
    elif shape == "wsd" and not decay:
        shape = "constant"
        draft.added("optimizer.schedule", "without its steps of decay, a wsd schedule keeps the peak")
    return _schedule_call(draft, shape, warmup and f"{warmup} steps", f"{decay} steps", lr=lr)


def _warmup(draft: Draft, *, steps: int) -> int:
    warmup, ratio = draft.take(facts.WARMUP), draft.peek(facts.WARMUP_RATIO)
    if warmup is not None and 0 < warmup < 1:
        warmup = math.ceil(warmup * steps)
    if ratio is not None and warmup:
        text = f"{warmup} steps of warm-up are given too, which win"
        draft.set_aside(facts.WARMUP_RATIO, text, kind=NoteKind.WRONG if ratio.value else NoteKind.SET_ASIDE)
    elif ratio is not None:
        warmup = math.ceil(draft.take(facts.WARMUP_RATIO) * steps)
    elif warmup is None and facts.WARMUP.name not in draft.open:
        share, most = draft.kind.warmup
        warmup = min(int(share * steps), most)
        if warmup:
            text = f"{warmup} steps, the default of {draft.kind.title} for {steps}"
            draft.added(facts.WARMUP.place, text)
    if warmup and draft.kind.warms_from_zero:
        text = f"step k of {warmup} has k / {warmup} of the peak; with {draft.kind.title}, (k - 1) / {warmup}"
        draft.added(facts.WARMUP.place, text)
    if warmup and warmup >= steps:
        draft.added("optimizer.schedule", f"warm-up of {warmup} steps does not end within {steps} steps")
    return int(warmup or 0)


def _decay(draft: Draft, *, steps: int) -> int | None:
    """The steps of decay at the end; None where the file gives none, and all after warm-up decay."""
    decay, ratio = draft.peek(facts.DECAY_STEPS), draft.peek(facts.DECAY_RATIO)
    if decay is not None:
        return int(decay.value)
    return None if ratio is None else round(ratio.value * steps)


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


# Trainer.get_decay_parameter_names, transformers 5: these names, and all that torch's LayerNorm owns.
_SPARED = re.compile(r"bias|layernorm|rmsnorm|(^|\.)norm(\.|$)|_norm(\.|$)")
_SPARED_CLASS = "LayerNorm"


def spared_patterns(inventory: Inventory) -> tuple[str, ...]:
    """Patterns for the norms and biases of a model: of modules where all that they own is spared."""
    return as_patterns(exact_families(inventory, _spared_names(inventory)))


def _spared_names(inventory: Inventory) -> Iterator[str]:
    for module in inventory.modules:
        own = [parameter.name for parameter in module.parameters]
        spared = [name for name in own if _is_spared(module.class_name, f"{module.fqn}.{name}")]
        yield from [module.fqn] if spared == own and own else [f"{module.fqn}.{name}" for name in spared]


def _is_spared(class_name: str, fqn: str) -> bool:
    return class_name == _SPARED_CLASS or _SPARED.search(fqn.lower()) is not None
