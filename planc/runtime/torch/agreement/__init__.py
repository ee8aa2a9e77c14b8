"""The agreement of ranks before step 1: on reads, versions, settings, and the run directory."""
