"""A report as text."""

from __future__ import annotations

from collections.abc import Iterable

from planc.tables import plural, render_table
from planc.verify.outcome import Report, Verdict
from planc.vocab import MeshDim


def report_text(report: Report) -> str:
    """The setup of the run, and a line for every item."""
    ran = (
        f"  ran {mesh_text(report)} on {plural(report.world_size, 'rank')}, "
        f"{len(report.kept)} of {report.num_layers} layers, {report.sequence_length} tokens, {report.dtype}"
    )
    rows = [(verdict.item.value, *_cells(verdict)) for verdict in report.verdicts]
    return f"{report.name}  {report.plan_hash[:12]}\n{ran}\n" + render_table(rows, indent="  ", right=(2,))


def _cells(verdict: Verdict) -> tuple[str, str, str]:
    error = "" if verdict.error is None else f"{verdict.error:.1e}"
    over = "" if verdict.ok or verdict.limit is None else f" (limit {verdict.limit:.0e})"
    return "ok" if verdict.ok else "DIFFERS", error, f"{verdict.detail}{over}"


def mesh_text(report: Report) -> str:
    """`dp_shard 2 for 64 · tp 2`: the ranks that ran, for those of the plan."""
    small = dict(report.ran_mesh)
    return _sizes((mesh_dim, size, small[mesh_dim]) for mesh_dim, size in report.mesh) or "without a mesh"


def _sizes(dims: Iterable[tuple[MeshDim, int, int]]) -> str:
    wide = ((mesh_dim, size, small) for mesh_dim, size, small in dims if size > 1)
    return " · ".join(
        f"{mesh_dim.value} {small}" + (f" for {size}" if size != small else "")
        for mesh_dim, size, small in wide
    )
