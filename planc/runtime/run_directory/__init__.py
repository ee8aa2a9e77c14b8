"""A run's directory: its files, how they are opened, and what would keep a run from saving."""
