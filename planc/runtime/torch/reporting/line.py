"""The line of a step's metrics, which waits for the ranks' maxima where the host does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planc.runtime.observer import Observer, StepMetrics
from planc.runtime.torch.copies import Arrival
from planc.runtime.torch.reporting.own_time import OwnTime
from planc.runtime.torch.training.balance import Balance
from planc.runtime.torch.training.expert_load import ExpertLoad


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
    experts: ExpertLoad | None = None
    added: Arrival | None = None
    """The sums of the losses that are added; None as `load` is."""
    balance: Balance | None = None

    def write(self, observer: Observer, own_time: OwnTime | None) -> None:
        """Report it. The host waits if a maximum is not there."""
        most: npt.NDArray[np.int64] = self.most.values().numpy()
        times = most[self.num_memory + self.has_graphs :]
        phase_seconds = {phase: int(ns) / 1e9 for phase, ns in zip(self.phases, times, strict=False)}
        balance, z = self.balance.values(self.added) if self.balance and self.added else (None, None)
        load = self.experts.by_layer(self.load) if self.experts and self.load else {}
        metrics = replace(
            self.metrics,
            memory_bytes=int(most[0]),
            memory_reserved_bytes=int(most[1]) if self.num_memory > 1 else None,
            compiled_graphs=int(most[self.num_memory]) if self.has_graphs else None,
            phase_seconds=phase_seconds,
            expert_load=load,
            expert_dropped=self.experts.dropped(self.load) if self.experts and self.load else {},
            balance_loss=balance,
            z_loss=z,
            stragglers=self._note_stragglers(observer, own_time, times[len(self.phases) :]),
        )
        for found in self.experts.newly_starving(load) if self.experts and load else ():
            observer.noted(f"warning: step {self.metrics.step}: {found}")
        observer.stepped(metrics)

    def _note_stragglers(
        self, observer: Observer, own_time: OwnTime | None, own_ns: npt.NDArray[np.int64]
    ) -> tuple[int, ...]:
        """The ranks that slow down the others, the same on every rank; new ones are reported."""
        if own_time is None:
            return ()
        stragglers = own_time.stragglers
        for found in stragglers.add(own_ns / 1e9, num_steps=self.num_steps):
            observer.noted(f"warning: step {self.metrics.step}: {found}")
        return stragglers.named
