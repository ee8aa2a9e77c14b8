"""A closed-form estimate of a plan: memory per rank, and communication per rank and step."""
