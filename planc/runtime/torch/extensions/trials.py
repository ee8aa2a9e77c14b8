"""The part that trials of all kinds of extensions share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from planc.extend.reference import Extension
from planc.runtime.errors import STOPS, ExitCode, RunError
from planc.runtime.extensions import fault_of
from planc.runtime.failures import exit_code
from planc.runtime.torch.run import Run
from planc.source import Span

P = ParamSpec("P")
T = TypeVar("T")


class RefusedError(Exception):
    """A trial of a contract failed: `reason` is what is wrong with the code, `help` what to write."""

    def __init__(self, reason: str, help: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.help = help


def tried(run: Run, extension: Extension, trial: Callable[[], tuple[T, tuple[str, ...]]]) -> T:
    """The result of the trials of an extension; what they showed is noted in the run's log.

    RunError with the reason if one fails, or if the code itself does.
    """
    result, note = result_and_note(extension, trial)
    show(run, note)
    return result


def show(run: Run, note: str) -> None:
    """Note what a trial showed."""
    run.observer.noted(note)
    run.shown.append(note)


def result_and_note(extension: Extension, trial: Callable[[], tuple[T, tuple[str, ...]]]) -> tuple[T, str]:
    """The result of the trials, and a line on what they showed; RunError as `tried`."""
    what = f"the {extension.kind} `{extension.entry}` of {extension.file}"
    try:
        result, shown = trial()
    except (*STOPS, RunError):
        raise
    except RefusedError as error:
        raise RunError(f"{what} {error.reason}", help=error.help) from error
    except BaseException as error:
        raise RunError(f"{what} fails: {fault_of(error, file=extension.file)}") from error
    return result, f"{what}: {', '.join(shown)}"


def with_place(function: Callable[P, T], extension: Extension, *, span: Span | None) -> Callable[P, T]:
    """The function, whose faults in a step name its file, its line and the plan's line.

    A lack of memory and lost peers keep the errors that they have.
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (*STOPS, RunError):
            raise
        except BaseException as error:
            if exit_code(error) is not ExitCode.INTERNAL:
                raise
            fault = fault_of(error, file=extension.file)
            text = f"the {extension.kind} `{extension.entry}` of {extension.file} fails: {fault}"
            raise RunError(text, span=span, is_shared=False) from error

    return called
