"""Generate what starts a plan's ranks: command lines, a batch script, a manifest. Pure functions."""
