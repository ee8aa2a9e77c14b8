"""Features that adapters do not support yet."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code, Label
from planc.inventory.adapters import stacks_of
from planc.layouts.families import family
from planc.plan.adapter import AdapterSpec
from planc.plan.optimizer import Muon
from planc.source import Span
from planc.vocab import DType, outwards

CODE = Code("P771", "adapters-unsupported", "adapters do not support this yet")

_SHOWN = ("colwise", "rowwise", "rowwise_split_input", "replicate", "moe_tp_experts")
"""The styles of layers with adapters that were compared with one process."""

_ALIGNED_BYTES = 16
"""A row of a matrix of grouped products is a multiple of these."""


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding for each other part of the plan that they were not shown to be exact with."""
    spec = subject.plan.adapter
    for span, text, help in (*_unsupported(subject), *_of_experts(subject, spec)) if spec else ():
        assert spec is not None, "there is nothing to find without the block"
        yield CODE.at(
            span,
            text,
            secondary=(Label(spec.span, "layers have adapters"),),
            help=f"{help}, or remove the block `adapter`",
        )


def _unsupported(subject: Subject) -> Iterator[tuple[Span, str, str]]:
    """(place, what it is, help)."""
    plan, styles = subject.plan, subject.bound.styles
    styled = [fqn for fqn in subject.bound.adapted if plan.mesh.tp > 1 and fqn in styles]
    others = [fqn for fqn in styled if styles[fqn].style.name not in _SHOWN]
    # One finding for all layers of a rule.
    for span, name in dict.fromkeys((styles[fqn].span, family(subject.inventory, fqn)) for fqn in others):
        yield span, f"`{name}` has an adapter", f"leave `{name}` without an adapter"
    if isinstance(plan.optimizer.kind, Muon):
        yield plan.span("optimizer.kind"), "Muon of adapters", "write `kind = adamw(lr = 1e-4)`"


def _of_experts(subject: Subject, spec: AdapterSpec) -> Iterator[tuple[Span, str, str]]:
    """The same of what adapters of experts alone do not support."""
    plan, bound = subject.plan, subject.bound
    experts = [fqn for fqn in bound.adapted if stacks_of(subject.inventory, fqn)]
    if not experts:
        return
    name, kind = family(subject.inventory, experts[0]), plan.span("adapter.kind")
    if spec.kind.dropout:
        yield kind, f"rows of `{name}` have no place in a batch to draw masks by", "set `dropout` to 0"
    if spec.kind.dora:
        yield kind, f"`{name}` has no trained lengths of rows in peft", "remove `dora`"
    fsdp = plan.fsdp.param_dtype if plan.fsdp else None
    dtype = fsdp or plan.model.dtype
    row, multiple = spec.kind.rank * dtype.size_bytes, _ALIGNED_BYTES // dtype.size_bytes
    # PyTorch's grouped products have no float64.
    if dtype is not DType.FLOAT64 and row % _ALIGNED_BYTES:
        text = f"grouped products of `{name}` in {dtype} need a `rank` that is a multiple of {multiple}"
        yield kind, text, f"set `rank` to {-(-spec.kind.rank // multiple) * multiple}"
    if plan.model.architecture is not None:
        yield bound.adapted[experts[0]], f"`{name}` is computed by the plan's own code", f"leave `{name}` out"
    compiled = next((name for fqn in experts for name in outwards(fqn) if name in bound.compiled), None)
    if compiled is not None:
        text = f"`{family(subject.inventory, compiled)}` is compiled, with adapted experts inside"
        yield bound.compiled[compiled], text, "compile other modules, such as `model.layers.*.self_attn`"
