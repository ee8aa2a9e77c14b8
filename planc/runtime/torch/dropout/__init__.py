"""Dropout whose masks are the same on every mesh: each element's follows from its global position."""
