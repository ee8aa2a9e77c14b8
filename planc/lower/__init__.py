"""The lowering of a bound plan to its execution graph."""

from planc.lower.pipeline import Lowered, compile_graph, draft_graph, trace_passes, verified

__all__ = ["Lowered", "compile_graph", "draft_graph", "trace_passes", "verified"]
