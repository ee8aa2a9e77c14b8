"""The results of a verification, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planc.vocab import MeshDim


class Item(StrEnum):
    """The items compared with one process, in the order in which a difference would first show."""

    RUN = "run"
    INITIAL_WEIGHTS = "initial weights"
    SAMPLE_IDS = "sample ids"
    LOSS = "loss"
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
