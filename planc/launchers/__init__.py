"""The text that starts a plan's ranks: command lines of launchers, a batch script, a manifest. Pure."""
