"""The lowering of a bound plan to its execution graph."""

from planc.lower.pipeline import Lowered, draft_graph, trace_passes, verified

__all__ = ["Lowered", "draft_graph", "trace_passes", "verified"]
