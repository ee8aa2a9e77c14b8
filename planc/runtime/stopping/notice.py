"""Whether a run was told to end before its last step, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Notice:
    """What one rank knows. The thread that hears signals writes `heard`, the run all else.

    A run that is told to end finishes or leaves its step, saves, and ends; before that its ranks agree where,
    since only some of them may have heard.
    """

    heard: str = ""
    """`SIGTERM`, as this rank heard it; empty until then."""
    asked_at: float | None = None
    """When this rank learnt, by `time.monotonic`, that some rank was told to end."""
    step: int | None = None
    """The last step that is done. None until the first may begin, while there is nothing to save."""
    has_trained: bool = False
    """This process has changed a weight: there is something new to save."""
    left: list[str] = field(default_factory=list)
    """What the run left undone, in words; the same command does it."""
    is_agreed: bool = False
    """All ranks end after `step`."""
    is_over: bool = False
    """All that is to be saved is saved, or the run has failed."""
    has_failed: bool = False
    """For a reason of its own, which is being told."""

    def hear(self, name: str) -> None:
        """This rank is told to end, by a signal; what came first stays."""
        self.heard = self.heard or name
