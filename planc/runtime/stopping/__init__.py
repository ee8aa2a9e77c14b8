"""Stopping a run: the request, the grace period, and the points where all ranks can leave."""
