"""Run a plan on this rank from Python: the session of `planc run`, which raises where that command exits."""

from __future__ import annotations

import io
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from planc.cli.running.run_errors import error_text, record, run_directory, tell_torchrun
from planc.cli.running.session import Session
from planc.cli.running.starting import Options
from planc.cli.running.watching import listen, silent
from planc.outgoing import guard
from planc.python.checking import texts
from planc.python.results import CompiledPlan, RunResult, State
from planc.runtime.callbacks import Callback, Metric, require_callbacks, require_metrics
from planc.runtime.cpus import unsupported_system
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.failures import exit_code, summary
from planc.runtime.observer import Step
from planc.runtime.process import Launch, is_under_torchrun

_RUNS = itertools.count()
"""Each run of one process meets under keys of its own."""


class Run:
    """A run of a plan on this rank, one step at a time: `for step in planc.Run(plan): ...`.

    Every rank iterates over its own `Run` of the same plan, as under torchrun; a single process needs no
    launcher. Leaving the loop early ends the run without saving; `stop()` saves first. `result` is there
    once the loop is over. A run that can't start or continue raises RunError, with the exit code, the place
    in the plan and the help that `planc run` would print.

    Under torchrun, SIGTERM and the like make the run save and end, as they do `planc run`. In other programs
    signals are the program's own.
    """

    def __init__(
        self,
        plan: str | Path | CompiledPlan,
        *,
        overrides: Sequence[str] = (),
        run_dir: str | Path | None = None,
        stop_after: int | None = None,
        allow_change: Sequence[str] = (),
        allow_release: Sequence[str] = (),
        callbacks: Sequence[Callback] = (),
        metrics: Sequence[Metric] = (),
        quiet: bool = False,
    ) -> None:
        self._compiled = plan.compiled if isinstance(plan, CompiledPlan) else None
        self._options = Options(
            plan=Path(plan.name if isinstance(plan, CompiledPlan) else plan),
            set=texts("overrides", overrides),
            run_dir=None if run_dir is None else Path(run_dir),
            stop_after=stop_after,
            allow_change=texts("allow_change", allow_change),
            allow_release=texts("allow_release", allow_release),
        )
        if self._compiled is not None and overrides:
            raise ValueError("a compiled plan takes no overrides: compile the plan again with them")
        self._readers = (require_callbacks(callbacks), require_metrics(metrics))
        self._is_quiet = quiet
        self._session: Session | None = None
        # The steps hold the run. If the run held them too, leaving a loop would not end them.
        self._steps: weakref.ref[Generator[Step, None, None]] | None = None
        self._result: RunResult | None = None

    @property
    def result(self) -> RunResult:
        """The end of the run; ValueError before that."""
        if self._result is None:
            raise ValueError("the run has not ended yet")
        return self._result

    def stop(self) -> None:
        """End the run after the step that is done, as if it were the last: what a run saves at its end is
        saved. It is enough that one rank asks: all end after the same step."""
        if self._session is None:
            raise ValueError("the run has not started yet")
        self._session.end()

    def __iter__(self) -> Iterator[Step]:
        if self._steps is not None:
            raise ValueError("a Run runs once: make another one to run again")
        steps = self._run()
        self._steps = weakref.ref(steps)
        return steps

    def close(self) -> None:
        """End a run whose loop was left early; nothing is saved."""
        steps = self._steps() if self._steps is not None else None
        if steps is not None:
            steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> Generator[Step, None, None]:
        session = self._session = self._opened()
        state: State = "failed"
        try:
            is_setup = True
            for step in session.steps():
                if not is_setup and session.backend is not None:
                    yield session.backend.figures(step=step)
                is_setup = False
            state = session.state
        except RunError as error:
            _record(error, session)
            if error.help:
                error.add_note(f"help: {error.help}")
            raise
        except KeyboardInterrupt:
            _record(RunError("interrupted", code=ExitCode.INTERRUPTED), session)
            raise
        except GeneratorExit:
            state = "stopped"
            session.write_stopped()
            raise
        except BaseException as error:
            code = exit_code(error)
            _record(RunError(summary(error, code=code), code=code, is_shared=False), session)
            raise
        finally:
            session.listener.close()
            if session.compiled is not None and session.directory is not None:
                session.directory.release()
                self._result = RunResult(
                    state=state,
                    code=session.code,
                    last_step=session.last_step,
                    num_steps=session.compiled.graph.num_steps,
                    directory=session.directory.path,
                    checkpoint=session.checkpoint,
                )

    def _opened(self) -> Session:
        if refusal := unsupported_system("run"):
            raise RunError(refusal)
        # Rank 0 reports until the launch is known.
        launch = Launch()
        directory = run_directory(self._options.run_dir) if self._options.run_dir else None
        is_main = threading.current_thread() is threading.main_thread()
        own = listen if is_under_torchrun(os.environ) and is_main else silent
        listener = own(launch, directory)
        listener.notice.may_end_early = True
        stream = _outlet(None if self._is_quiet else sys.stdout)
        given = (self._compiled, next(_RUNS), *self._readers)
        return Session(self._options, listener, stream, launch, directory, *given)


def run(
    plan: str | Path | CompiledPlan,
    *,
    overrides: Sequence[str] = (),
    run_dir: str | Path | None = None,
    stop_after: int | None = None,
    allow_change: Sequence[str] = (),
    allow_release: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    metrics: Sequence[Metric] = (),
    quiet: bool = False,
) -> RunResult:
    """Run a plan on this rank to its end, as `planc run` does: see `Run` for its arguments and errors."""
    whole = Run(
        plan,
        overrides=overrides,
        run_dir=run_dir,
        stop_after=stop_after,
        allow_change=allow_change,
        allow_release=allow_release,
        callbacks=callbacks,
        metrics=metrics,
        quiet=quiet,
    )
    for _ in whole:
        pass
    return whole.result


def _record(error: RunError, session: Session) -> None:
    """Record a failure where `planc run` does: status.json, and torchrun's own file."""
    session.listener.notice.has_failed = session.listener.notice.is_over = True
    session.code = error.code
    record(error, session.launch, session.directory)
    tell_torchrun(error_text(error))


class _Outlet(io.TextIOBase):
    """Another stream's text, without closing or changing that stream."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return (self._stream and self._stream.encoding) or "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno() if self._stream is not None else super().fileno()

    def write(self, text: str) -> int:
        return self._stream.write(text) if self._stream is not None else len(text)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()


def _outlet(stream: TextIO | None) -> TextIO:
    """A stream that writes harmless text to `stream`, with `***` for every secret of the environment.

    The caller's own stream stays as it is, for its own text. None discards what is written.
    """
    guarded = _Outlet(stream)
    guard(guarded, environment=os.environ)  # type: ignore[arg-type]
    return guarded  # type: ignore[return-value]
