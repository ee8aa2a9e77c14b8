"""Where rank 0 sends metrics besides the run's folder."""

from planc.runtime.trackers.following import Following
from planc.runtime.trackers.tracker import Opening, Tracker

__all__ = ["Following", "Opening", "Tracker"]
