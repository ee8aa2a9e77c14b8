"""The `compile` block as an op."""

from __future__ import annotations

from collections.abc import Iterator

from planc.graph.ops import CompileBackend, CompileMode, CompileModules
from planc.plan import spec
from planc.plan.bind import BoundPlan
from planc.plan.compile_backends import AotEager, Eager, Inductor, InductorMode


def compile_modules(bound: BoundPlan) -> Iterator[CompileModules]:
    """One op, if the plan compiles anything."""
    compilation = bound.plan.compile
    if compilation is None or not (bound.compiled or bound.plan.compiles_loss):
        return
    backend, mode = _backend(compilation)
    yield CompileModules(
        backend=backend,
        mode=mode,
        fullgraph=compilation.fullgraph,
        dynamic=compilation.dynamic,
        loss=bound.plan.compiles_loss,
        modules=tuple(bound.compiled),
        span=compilation.span,
    )


def _backend(compilation: spec.CompileSpec) -> tuple[CompileBackend, CompileMode | None]:
    """torch's name of the backend, and the mode if it has modes."""
    match compilation.backend:
        case Inductor(mode=InductorMode.DEFAULT):
            return "inductor", "default"
        case Inductor():
            return "inductor", "max-autotune-no-cudagraphs"
        case AotEager():
            return "aot_eager", None
        case Eager():
            return "eager", None
