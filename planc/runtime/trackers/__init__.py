"""Trackers: where rank 0 sends metrics, in addition to the run directory."""

from planc.runtime.trackers.following import Following
from planc.runtime.trackers.tracker import Opening, Tracker

__all__ = ["Following", "Opening", "Tracker"]
