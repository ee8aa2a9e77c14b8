"""The line of a step's metrics, which waits for the ranks' maxima where the host does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from planc.runtime.observer import StepMetrics

if TYPE_CHECKING:
    # Lazy: it imports this module.
    from planc.runtime.torch.copies import Arrival
    from planc.runtime.torch.session import Session


@dataclass(frozen=True, slots=True)
class Line:
    """A step's metrics without the most of any rank: memory, compiled graphs, time by phase, own time."""

    metrics: StepMetrics
    num_memory: int
    has_graphs: bool
    phases: tuple[str, ...]
    num_steps: int
    """The steps of the ranks' own times."""
    most: Arrival
    load: Arrival | None = None
    """The tokens of experts; None in a line that an evaluation alone asks for."""


def write_line(session: Session) -> None:
    """Report the line that is not written yet, if there is one. The host waits if a maximum is not there."""
    line, session.line = session.line, None
    if line is None:
        return
    most: npt.NDArray[np.int64] = line.most.values().numpy()
    times = most[line.num_memory + line.has_graphs :]
    phase_seconds = {phase: int(ns) / 1e9 for phase, ns in zip(line.phases, times, strict=False)}
    metrics = replace(
        line.metrics,
        memory_bytes=int(most[0]),
        memory_reserved_bytes=int(most[1]) if line.num_memory > 1 else None,
        compiled_graphs=int(most[line.num_memory]) if line.has_graphs else None,
        phase_seconds=phase_seconds,
        expert_load=session.expert_load.by_layer(line.load) if session.expert_load and line.load else {},
        stragglers=_note_stragglers(session, line, times[len(line.phases) :]),
    )
    session.observer.stepped(metrics)


def _note_stragglers(session: Session, line: Line, own_ns: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """The ranks that slow down the others, the same on every rank; new ones are reported."""
    if session.own_time is None:
        return ()
    stragglers = session.own_time.stragglers
    for found in stragglers.add(own_ns / 1e9, num_steps=line.num_steps):
        session.observer.noted(f"warning: step {line.metrics.step}: {found}")
    return stragglers.named
