"""What a plan's data becomes: rows, sequences, statistics and findings, as values and as text."""
