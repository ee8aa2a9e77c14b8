"""What ranks agree on before step 1: reads, versions, settings, and the run directory."""
