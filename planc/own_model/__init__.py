"""The inventory of a plan's own model class, probed by running its file in a process of its own."""
