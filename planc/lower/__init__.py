"""The lowering of a bound plan to its execution graph."""

from planc.lower.pipeline import compile_graph, draft_graph, trace_passes

__all__ = ["compile_graph", "draft_graph", "trace_passes"]
