"""The differences between two plans, grouped by consequence: as data, and as text, Markdown or JSON."""
