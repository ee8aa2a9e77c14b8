"""Run a plan's own code: the one place that does, and only where whoever started planc allows it."""

from __future__ import annotations

import functools
import hashlib
import stat
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planc.extend.declarations import imported_names
from planc.extend.decorators import MARK
from planc.extend.reference import Extension
from planc.runtime.errors import STOPS, ExitCode, RunError
from planc.source import tree_root

MAX_BYTES = 4_000_000


def load_extension(extension: Extension, *, base: Path, is_allowed: bool) -> Callable[..., Any]:
    """Run the file, and return the function that it registers under the extension's name.

    RunError unless that is allowed, and if the file is not the one that the plan was compiled with, if it
    imports other files of the plan's directory, or if its code fails.
    """
    if not is_allowed:
        raise not_permitted(extension)
    text = _text(extension, base)
    _require_alone(extension, text, base)
    module = _module(extension.file, text, str(base / extension.file))
    for value in vars(module).values():
        if getattr(value, MARK, None) == (extension.kind, extension.entry):
            registered: Callable[..., Any] = value
            return registered
    message = f"{extension.file} registers no {extension.kind} `{extension.entry}` when it is run"
    raise RunError(message, help="decorate a function or a class at the top level of the file")


def arguments_of(extension: Extension) -> dict[str, Any]:
    """The plan's arguments as the code gets them: a list is a list."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in extension.arguments}


def not_permitted(extension: Extension) -> RunError:
    """The error of code that nobody has permitted to run."""
    message = (
        f"`{extension.entry}` is code of the plan, in {extension.file}, which is not run unasked: "
        f"read {extension.file}, then add `--run-extensions`"
    )
    return RunError(message)


def fault_of(error: BaseException, *, file: str) -> str:
    """An error of a plan's own code, with the last line of the file that it passed."""
    traceback, line = error.__traceback__, 0
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.endswith(file):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    place = f"{file}:{line}: " if line else ""
    return f"{place}{type(error).__name__}: {error}"


def _text(extension: Extension, base: Path) -> str:
    """The file's text, if it is the one of the plan."""
    path = base / extension.file
    try:
        if not path.resolve(strict=True).is_relative_to(tree_root(base)):
            raise RunError(f"{extension.file} is outside the plan's tree")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise RunError(f"{extension.file} is not a regular file of at most {MAX_BYTES} bytes")
        text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"cannot read {extension.file}: {reason}", code=ExitCode.STORAGE) from error
    if hashlib.sha256(text.encode()).hexdigest() != extension.digest:
        message = f"{extension.file} has changed since the plan was compiled"
        raise RunError(message, help="compile the plan again; `planc diff` shows that its code differs")
    return text


def _require_alone(extension: Extension, text: str, base: Path) -> None:
    """RunError for an import of a file that no digest covers."""
    folder = (base / extension.file).parent
    for name in imported_names(text):
        near = [path for path in (folder / f"{name}.py", folder / name) if name and path.exists()]
        if name == "." or near:
            what = "relatively" if name == "." else f"`{name}`, a file of the plan's directory"
            raise RunError(
                f"{extension.file} imports {what}: the plan would not know of a change of it",
                help="move what it needs into the file itself, or into an installed package",
            )


@functools.cache
def _module(file: str, text: str, path: str) -> types.ModuleType:
    """The module of a text. It is listed, under a name that no import finds, as dataclasses look it up."""
    module = types.ModuleType(f"planc extension {file} {hashlib.sha256(text.encode()).hexdigest()[:12]}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, path, "exec"), vars(module))  # the plan's own code, which is allowed
    except STOPS:
        raise
    except BaseException as error:
        del sys.modules[module.__name__]
        raise RunError(f"running {file} fails: {fault_of(error, file=file)}", help=_help(error)) from error
    return module


def _help(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        package = error.name.partition(".")[0]
        return f"install `{package}` in the environment that planc runs in, here and on the run's machines"
    return "fix that line: the file must run by itself before the plan can use what it registers"
