"""The results of a verification, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planc.tables import plural, render_table
from planc.vocab import MeshDim


class Item(StrEnum):
    """The items compared with one process, in the order in which a difference would first show."""

    RUN = "run"
    OWN_CODE = "own code"
    INITIAL_WEIGHTS = "initial weights"
    SAMPLE_IDS = "sample ids"
    LOSS = "loss"
    BALANCE = "balance of experts"
    GRAD_NORM = "gradient norm"
    GRADIENTS = "gradients"
    REPLICAS = "replicas"
    LEARNING_RATE = "learning rate"
    PARAMETERS = "parameters"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One item. `error` is relative, at most `limit`; None for exact comparisons."""

    item: Item
    ok: bool
    detail: str
    error: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A plan's verdicts, and the setup of the runs behind them."""

    name: str
    plan_hash: str
    mesh: tuple[tuple[MeshDim, int], ...]
    ran_mesh: tuple[tuple[MeshDim, int], ...]
    num_layers: int
    kept: tuple[int, ...]
    """The indices of the layers that were run."""
    sequence_length: int
    dtype: str
    num_steps: int
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        return all(verdict.ok for verdict in self.verdicts)

    @property
    def world_size(self) -> int:
        product = 1
        for _, size in self.ran_mesh:
            product *= size
        return product

    def data(self) -> dict[str, Any]:
        """The report as JSON; errors that are not finite are null, with `ok: false`."""
        return {
            "format_version": 1,
            "plan_hash": self.plan_hash,
            "ok": self.ok,
            "mesh": {mesh_dim.value: size for mesh_dim, size in self.mesh},
            "ran": {
                "mesh": {mesh_dim.value: size for mesh_dim, size in self.ran_mesh},
                "layers": list(self.kept),
                "sequence_length": self.sequence_length,
                "dtype": self.dtype,
                "steps": self.num_steps,
            },
            "items": [_verdict_data(verdict) for verdict in self.verdicts],
        }


def _verdict_data(verdict: Verdict) -> dict[str, Any]:
    is_finite = verdict.error is not None and verdict.error != float("inf")
    return {
        "item": verdict.item.value,
        "ok": verdict.ok,
        "error": verdict.error if is_finite else None,
        "limit": verdict.limit,
        "detail": verdict.detail,
    }


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
