"""Pipeline schedules as data: the order of each rank's actions, their simulation, and balanced stages."""
