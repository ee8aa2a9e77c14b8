"""A plan's data as it becomes rows and sequences, with statistics and findings, as values and as text."""
