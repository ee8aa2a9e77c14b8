"""The kinds of configs, one module each."""
