"""What planc's ranks did, against what transformers and torch did alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from planc.verify.compare import disagreements
from planc.verify.ranks import Record
from tests.models.independent import Drawn, Initial, Measured

LOSS_LIMITS = {"float32": (1e-5, 1e-5), "float64": (1e-5, 1e-5), "bfloat16": (2**-8, 2**-6)}
"""Relative, of the first step and of later ones, which begin from weights that rounding has moved apart.
bfloat16 has 8 bits: one rounding is off by up to 2**-9."""
GRADIENT_LIMIT = 1e-5
"""Relative, in float32, of each parameter's gradient; of those that are nearly zero, to `_SMALL` of all."""
NORM_LIMITS = {"float32": (3e-4, 3e-4), "float64": (3e-4, 3e-4), "bfloat16": (2**-5, 2**-3)}
"""Relative, of gradient norms: those after the first step follow from updates, which AdamW scales up. In
bfloat16 they may be off by twice what the reference's own move with other roundings, if that is more: a model
that chooses few tokens (DeepSeek-V3.2) chooses others after another rounding."""
UPDATE_LIMIT = 3e-4
"""Relative, in float32, to what training changed of a parameter."""
NOISE_LIMIT, OWN_NOISE_LIMIT = 2.0, 4.0
"""In bfloat16: how far the gradients may be from the reference's, all together and, in one process, each
parameter's alone, as multiples of the reference's own distance from float32. Two runs that round differently
differ by 1.4 times that distance, if their roundings are independent."""
_SMALL, _NO_GRADIENT = 1e-3, 1e-6
_ROUNDING = 2**-9
_STD_SIGMAS, _STD_SLACK = 8.0, 0.05


@dataclass(frozen=True, slots=True)
class Agreement:
    """What is wrong, and the relative distance of the gradients: the worst parameter's, all in bfloat16."""

    wrong: tuple[str, ...]
    error: float


def agreement(records: Sequence[Record], expected: Measured, *, dtype: str) -> Agreement:
    """How some ranks that trained compare with one process that loaded the same weights in this dtype."""
    first = records[0]
    metrics = first.metrics
    wrong = [f"the reference begins with a constant {name}" for name in expected.constant[:3]]
    wrong += [*_other_tensors(records, expected), *disagreements(records)]
    wrong += _apart("loss", [one.loss for one in metrics], expected.losses, limits=LOSS_LIMITS[dtype])
    norms = [one.grad_norm for one in metrics]
    wrong += _apart(
        "gradient norm",
        norms,
        expected.grad_norms,
        limits=NORM_LIMITS[dtype],
        noise=expected.norm_noise if dtype == "bfloat16" else (),
    )
    if first.gradients.keys() != expected.gradients.keys():
        names = sorted(first.gradients.keys() ^ expected.gradients.keys())
        return Agreement((*wrong, f"gradients only on one side: {', '.join(names[:3])}"), math.inf)
    if dtype in ("float32", "float64"):
        error, name = max(_gradient_errors(first.gradients, expected))
        if not error <= GRADIENT_LIMIT:
            wrong.append(f"gradient of {name} is off by {error:.0e}")
        wrong += _updates(first.final, expected)
        return Agreement(tuple(wrong), error)
    error, noise = _all_together(first.gradients, expected)
    if not error <= NOISE_LIMIT * noise + _ROUNDING:
        wrong.append(f"gradients are off by {error:.0e}, where {dtype} is by {noise:.0e}")
    # Ranks of tp round parts of sums: one token more or less affects more than that expert.
    if len(records) == 1:
        wrong += _beyond_own_noise(first.gradients, expected)
    return Agreement(tuple(wrong), error)


def _other_tensors(records: Sequence[Record], expected: Measured) -> Iterator[str]:
    """Parameters and buffers that differ in dtype, shape or value before the first step."""
    for rank, record in enumerate(records):
        found = {**record.initial, **record.buffers}
        names = sorted(
            name
            for name in found.keys() | expected.digests.keys()
            if found.get(name) != expected.digests.get(name)
        )
        if names:
            yield f"rank {rank} begins with another {', '.join(names[:3])}"


def _apart(
    what: str,
    actual: Sequence[float],
    expected: Sequence[float],
    *,
    limits: tuple[float, float],
    noise: Sequence[float] = (),
) -> Iterator[str]:
    if len(actual) != len(expected):
        yield f"{len(actual)} steps"
    for step, (one, other) in enumerate(zip(actual, expected, strict=False), start=1):
        own = NOISE_LIMIT * noise[step - 1] if noise else 0.0
        if not abs(one - other) <= max(limits[step > 1], own) * abs(other):
            yield f"{what} of step {step}: {one:.6g}, transformers' own {other:.6g}"
            return


def _gradient_errors(actual: Mapping[str, Tensor], expected: Measured) -> Iterator[tuple[float, str]]:
    floor = _SMALL * expected.grad_norms[0]
    for name, gradient in expected.gradients.items():
        distance = _norm(actual[name].double() - gradient.double())
        yield distance / max(_norm(gradient), floor), name


def _all_together(actual: Mapping[str, Tensor], expected: Measured) -> tuple[float, float]:
    """Relative distances over all parameters: of planc from the reference, of that from float32."""
    gradients = expected.gradients
    whole = math.hypot(*(_norm(one) for one in gradients.values()))
    error = math.hypot(*(_norm(actual[name].double() - one.double()) for name, one in gradients.items()))
    noise = math.hypot(*(_norm(expected.noise[name]) for name in gradients))
    return error / whole, noise / whole


def _beyond_own_noise(actual: Mapping[str, Tensor], expected: Measured) -> Iterator[str]:
    floor = _SMALL * expected.grad_norms[0]
    for name, gradient in expected.gradients.items():
        distance, noise = _norm(actual[name].double() - gradient.double()), _norm(expected.noise[name])
        allowed = OWN_NOISE_LIMIT * (noise + _ROUNDING * max(_norm(gradient), floor))
        if not distance <= allowed:
            yield f"gradient of {name} is off by {distance / allowed:.1f} times what rounding may do"
            return


def _updates(final: Mapping[str, Tensor], expected: Measured) -> Iterator[str]:
    """Parameters after the last step, but for those that rounding alone has moved."""
    least = _NO_GRADIENT * expected.grad_norms[0]
    for name, tensor in expected.final.items():
        if name in expected.gradients and _norm(expected.gradients[name]) < least:
            continue
        moved = _norm(tensor.double() - expected.initial[name].double())
        error = _norm(final[name].double() - tensor.double())
        if not error <= UPDATE_LIMIT * moved:
            yield f"{name} after the last step is off by {error / moved if moved else math.inf:.0e}"
            return


def initial_faults(actual: Mapping[str, tuple[str, Drawn]], expected: Initial) -> Iterator[str]:
    """What random weights differ in from transformers' own; `actual` has each tensor's digest too."""
    names = expected.settled.keys() | expected.drawn.keys()
    if actual.keys() != names:
        yield f"only on one side: {', '.join(sorted(actual.keys() ^ names)[:3])}"
        return
    for name, digest in expected.settled.items():
        if actual[name][0] != digest:
            yield f"{name} begins as {actual[name][1]}, not as transformers has it"
    for name, drawn in expected.drawn.items():
        found = actual[name][1]
        if (found.dtype, found.shape) != (drawn.dtype, drawn.shape):
            yield f"{name} is {found.dtype}, not {drawn.dtype}"
        elif math.prod(drawn.shape) > 1:
            slack = _STD_SIGMAS / math.sqrt(2 * math.prod(drawn.shape)) + _STD_SLACK
            if not abs(math.log(max(found.std, 1e-30) / max(drawn.std, 1e-30))) <= slack:
                yield f"{name} is drawn with a deviation of {found.std:.3g}, not {drawn.std:.3g}"


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())
