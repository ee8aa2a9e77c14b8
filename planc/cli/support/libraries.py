"""The libraries that only some commands need: `pip install 'planc[run]'` brings them."""

from __future__ import annotations

from importlib.util import find_spec

from planc.cli.support.exits import UsageError

LIBRARIES = (
    *("torch", "transformers", "safetensors", "tokenizers", "datasets", "jinja2", "numpy"),
    *("huggingface_hub", "filelock"),
)
"""By the names that they are imported by."""


def require_libraries(what: str, *names: str) -> None:
    """UsageError unless all of the libraries are installed. Imports none of them."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UsageError(needs(what, missing))


def missing_library(error: BaseException) -> str | None:
    """The library of the extra `run` for whose absence an import failed, here or in another library."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ModuleNotFoundError) and found.name is not None:
            name = found.name.partition(".")[0]
            if name in LIBRARIES:
                return name
        found = found.__cause__ or found.__context__
    return None


def needs(what: str, missing: list[str]) -> str:
    """The sentence that says what is missing, and how to get it."""
    return f"{what} needs {' and '.join(missing)}: pip install 'planc[run]'"
