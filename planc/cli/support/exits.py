"""Exit codes, the error for wrong usage, and libraries that only some commands need."""

from __future__ import annotations

from importlib.util import find_spec

from planc.outgoing import message_text

CLEAN = 0
FINDINGS = 1
"""A plan has errors, or `diff --exit-code` found a difference."""
COULD_NOT_RUN = 2
"""Wrong usage, an unreadable file, a bug."""
READER_GONE = 141
"""The reader of the output closed it: 128 + SIGPIPE, as a shell reports it of other commands."""
INTERRUPTED = 130


class FaultyPlan(Exception):
    """The end of a command by a plan with errors, which have been printed; `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class UsageError(ValueError):
    """An error that the user can correct. `main` prints it and exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message_text(message))


LIBRARIES = (
    *("torch", "transformers", "safetensors", "tokenizers", "datasets", "jinja2", "numpy"),
    *("huggingface_hub", "filelock"),
)
"""Import names of the extra `run`."""


def require_libraries(what: str, *names: str, extra: str = "run") -> None:
    """UsageError unless all of the libraries are installed. Imports none of them."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UsageError(needs(what, missing, extra=extra))


def missing_library(error: BaseException) -> str | None:
    """The library of the extra `run` whose import failed, in planc or in another library."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name is not None:
            name = cause.name.partition(".")[0]
            if name in LIBRARIES:
                return name
        cause = cause.__cause__ or cause.__context__
    return None


def needs(what: str, missing: list[str], *, extra: str = "run") -> str:
    """The error for missing libraries, with the command that installs them."""
    return f"{what} needs {' and '.join(missing)}: pip install 'planc[{extra}]'"
