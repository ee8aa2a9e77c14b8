"""Limits of the flash kernel that ring attention uses on CUDA."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks.support.rule import Rule, Subject
from planc.diagnostics import Code, Diagnostic, Label
from planc.plan.mesh import Backend
from planc.plan.spec import Rotate
from planc.vocab import DType, MeshDim

CODE = Code("P607", "ring-kernel", "ring attention has no CUDA kernel for this")

_HEAD_DIM_MULTIPLE = 8


def check(subject: Subject) -> Iterator[Diagnostic]:
    """Findings for packing, dtype and head_dim, if the plan is for CUDA: `backend = nccl`."""
    plan = subject.plan
    spec = plan.context_parallel
    if spec is None or spec.rotate is not Rotate.RING or plan.mesh.backend is not Backend.NCCL:
        return
    rotate = (Label(plan.span("context_parallel.rotate"), "ring attention"),)
    if plan.data.packing.isolates:
        yield CODE.at(
            plan.span("data.packing"),
            "documents are isolated by a mask, which the kernel does not support",
            secondary=rotate,
            help="write `rotate = allgather` or `rotate = ulysses`",
        )
    computed = (plan.fsdp.param_dtype if plan.fsdp else None) or plan.model.dtype
    if computed not in (DType.BFLOAT16, DType.FLOAT16):
        path = "fsdp.param_dtype" if plan.fsdp and plan.fsdp.param_dtype else "model.dtype"
        yield CODE.at(
            plan.span(path),
            f"computes attention in {computed}",
            secondary=rotate,
            help="write `param_dtype = bfloat16` in `fsdp`, or `rotate = allgather`",
        )
    odd = next((one for one in subject.inventory.attentions if one.head_dim % _HEAD_DIM_MULTIPLE), None)
    if odd is not None:
        yield CODE.at(
            plan.span("model.hf"),
            f"head_dim = {odd.head_dim} is not a multiple of {_HEAD_DIM_MULTIPLE}",
            secondary=rotate,
            help="write `rotate = allgather`",
        )


RULE = Rule((CODE,), check, over=MeshDim.CP)
