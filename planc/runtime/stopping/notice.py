"""A request to stop a run before its last step, and how far the run has come."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Notice:
    """One rank's view of a stop request. The signal thread writes `signal_name`, the run everything else.

    A run that is asked to stop finishes or abandons its step, saves, and ends. Its ranks agree where to stop
    first, because only some of them may have received a signal.
    """

    signal_name: str = ""
    """The signal that this rank received, such as `SIGTERM`; empty until then."""
    requested_at: float | None = None
    """When this rank learned that some rank was asked to stop, by `time.monotonic`."""
    step: int | None = None
    """The last finished step. None before the first step, when there is nothing to save."""
    has_trained: bool = False
    """This process has changed a weight, so there is something new to save."""
    saves: bool = True
    """The plan saves checkpoints."""
    undone: list[str] = field(default_factory=list)
    """Work that the run left undone, as text; the same command does it."""
    is_agreed: bool = False
    """All ranks end after `step`."""
    may_end_early: bool = False
    """The program that started the run may ask it to end, so ranks agree on it after every step."""
    ends_early: bool = False
    """This rank's program asked to end the run after the step that is done."""
    is_over: bool = False
    """Everything that must be saved is saved, or the run has failed."""
    has_failed: bool = False
    """The run failed for another reason, which is being reported."""

    def request(self, signal_name: str) -> None:
        """Record the signal that asks this rank to stop; the first one counts."""
        self.signal_name = self.signal_name or signal_name
