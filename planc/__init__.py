"""planc: a declarative plan compiler for distributed training of Hugging Face models."""

__version__ = "0.1.0"
DOCUMENTATION = "https://planc.readthedocs.io/en/latest"
"""Where `docs/` is published: the one place, which `pyproject.toml` repeats and a test compares."""
