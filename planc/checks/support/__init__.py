"""What rules share: the type of a rule, names for groups of findings, and remedies."""
