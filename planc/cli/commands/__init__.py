"""Commands: one file each, listed in `planc.cli.main`."""
