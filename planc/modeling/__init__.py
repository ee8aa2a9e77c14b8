"""Building transformers models: initialization, dtypes, rotary embeddings, positions. Imports torch."""
