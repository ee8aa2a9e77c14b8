"""Shows that a plan computes what one device computes: its own graph, on a tiny model of the same kind."""
