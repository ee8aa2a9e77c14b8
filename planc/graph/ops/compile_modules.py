"""`compile.wrap`."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record

CompileBackend: TypeAlias = Literal["inductor", "aot_eager", "eager"]
CompileMode: TypeAlias = Literal["default", "max-autotune-no-cudagraphs"]


@record(kw_only=True)
class CompileModules(Op):
    op: Literal["compile.wrap"] = "compile.wrap"
    stage: ClassVar[Stage] = Stage.COMPILE
    summary: ClassVar[str] = "Compiles the forward and backward of each module with torch.compile."
    backend: CompileBackend
    mode: CompileMode | None
    """The mode of inductor; the other backends have none."""
    fullgraph: bool
    dynamic: bool
    modules: tuple[str, ...]

    def effects(self) -> Effects:
        return Effects(reads=(Resource.MODEL,), writes=(Resource.MODEL,))
