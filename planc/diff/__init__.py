"""What a change of a plan changes, grouped by consequence: first as data, then as text, Markdown or JSON."""
