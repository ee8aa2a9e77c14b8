"""The part that trials of all kinds of extensions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from planc.extend.reference import Extension
from planc.runtime.errors import STOPS, RunError
from planc.runtime.extensions import fault_of
from planc.runtime.torch.run import Run

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
