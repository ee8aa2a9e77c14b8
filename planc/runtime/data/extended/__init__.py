"""Data sources and row transforms of extensions: their documents, and the probe for determinism."""
