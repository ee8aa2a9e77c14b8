"""Data that one process of each machine prepares, while all other ranks wait.

Preparing may take hours, and a collective may take minutes. So ranks wait for the rendezvous store, and look
for lost ranks meanwhile.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from planc.runtime.data.errors import DataError
from planc.runtime.data.prepared.folder import Prepared, find, named
from planc.runtime.data.prepared.prepare import Progress, prepare
from planc.runtime.data.prepared.wanted import Wanted
from planc.runtime.data.tokenizers import share_cpus
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.torch.run import Run
from planc.tables import format_bytes, plural

_PATIENCE = timedelta(seconds=5)
_TURNS_BETWEEN_LOOKS = 6
_NOTE_SECONDS = 60.0
_DONE, _FAILED = "done", "failed"


class FailedElsewhereError(Exception):
    """Another rank can't prepare its data; that rank reports why."""


@dataclass(frozen=True, slots=True)
class _Own:
    """This rank's data: what it is, where it is prepared, or why it can't be used."""

    wanted: Wanted | None = None
    prepared: Prepared | None = None
    failure: DataError | None = None
    is_absent: bool = False
    """It must be prepared first."""

    def result(self) -> tuple[Wanted, Prepared | None]:
        if self.failure is not None:
            raise self.failure
        assert self.wanted is not None
        return self.wanted, self.prepared


def require_prepared(run: Run, make: Callable[[], Wanted], *, label: str) -> tuple[Wanted, Prepared | None]:
    """The data that `make` describes, and where it is prepared; None if it stays in memory.

    Every rank must call it. Raises DataError for this rank's data, FailedElsewhereError for another's.
    """
    own = _look(run, make)
    preparers = _preparers(run, own, label=label)
    if preparers is None:
        return own.result()
    if run.launch.local_rank == 0:
        own = _prepare_own(run, own, preparers)
        preparers.finish(own.prepared, has_failed=own.failure is not None)
    if own.failure is None:
        preparers.wait()
    if own.is_absent:
        assert own.wanted is not None
        own = _Own(own.wanted, own.prepared or _find_made(_root(run), own.wanted, preparers))
    return own.result()


def _look(run: Run, make: Callable[[], Wanted]) -> _Own:
    try:
        wanted = make()
        if run.paths.prepared is None or wanted.stays_in_memory:
            return _Own(wanted)
        prepared = find(run.paths.prepared, wanted)
    except DataError as error:
        return _Own(failure=error)
    return _Own(wanted, prepared, is_absent=prepared is None)


def _preparers(run: Run, own: _Own, *, label: str) -> _Preparers | None:
    """The ranks that prepare; None if every rank has what it wants.

    Raises FailedElsewhereError if any rank has faulty data: then nothing is worth hours of tokenizing.
    """
    is_preparer, has_failed = run.launch.local_rank == 0, own.failure is not None
    counts = torch.tensor([own.is_absent, is_preparer, has_failed], dtype=torch.int64)
    if run.launch.world_size > 1:
        dist.all_reduce(counts)
    num_absent, num_preparers, num_failed = counts.tolist()
    if num_failed and not has_failed:
        raise FailedElsewhereError
    return _Preparers(run, label, num=num_preparers) if num_absent and not num_failed else None


def _prepare_own(run: Run, own: _Own, preparers: _Preparers) -> _Own:
    if not own.is_absent or own.wanted is None:
        return own
    try:
        return _Own(own.wanted, _prepare(run, own.wanted, preparers))
    except DataError as error:
        return _Own(own.wanted, failure=error)


def _root(run: Run) -> Path:
    assert run.paths.prepared is not None, "data without a directory stays in memory"
    return run.paths.prepared


def _find_made(root: Path, wanted: Wanted, preparers: _Preparers) -> Prepared:
    """The data that local rank 0 has prepared, or found to be what is wanted."""
    prepared = named(root, wanted, name=preparers.folder_name())
    if prepared is None:
        raise RunError(
            f"local rank 0 has prepared data that this rank does not find in {root}",
            code=ExitCode.STORAGE,
            help="give all ranks of a machine the same PLANC_DATA and the same view of the source's files",
        )
    return prepared


def _prepare(run: Run, wanted: Wanted, preparers: _Preparers) -> Prepared:
    root, noted = _root(run), run.observer.noted
    size = f"{format_bytes(wanted.size_bytes)} of " if wanted.size_bytes else ""
    noted(f"data: tokenizing {size}{preparers.label} data once, into {root}")
    # The other ranks of this machine wait.
    share_cpus(1)
    began = asked = printed = time.monotonic()

    def report(progress: Progress) -> None:
        nonlocal asked, printed
        now = time.monotonic()
        if now - asked >= _PATIENCE.total_seconds():
            asked = now
            preparers.require_no_failure()
        if now - printed >= _NOTE_SECONDS:
            printed = now
            text, tokens = format_bytes(progress.num_text_bytes), plural(progress.num_tokens, "token")
            noted(f"data: {text} of text, {tokens} so far, {now - began:.0f} s")

    def say(text: str) -> None:
        noted(f"data: {text}")

    prepared = prepare(root, wanted, name=run.graph.name, report=report, say=say)
    noted(f"data: {prepared.folder.name} is ready after {time.monotonic() - began:.1f} s")
    return prepared


@dataclass(frozen=True, slots=True)
class _Preparers:
    """The ranks that prepare, one of each machine, and what the others know of them through the store."""

    run: Run
    label: str
    num: int

    @property
    def _verdict(self) -> str:
        return f"data/{self.label}/verdict"

    @property
    def _folder(self) -> str:
        """The key of the data's directory on this machine."""
        launch = self.run.launch
        return f"data/{self.label}/folder/{launch.rank - launch.local_rank}"

    def folder_name(self) -> str:
        """The name of the directory that local rank 0 has prepared. It has finished."""
        try:
            return str(self._store.get(self._folder).decode())
        except RuntimeError as error:
            raise _store_lost() from error

    def finish(self, prepared: Prepared | None, *, has_failed: bool) -> None:
        """Report that this rank's data is ready, and where, or can't be made."""
        if self.run.launch.world_size == 1:
            return
        store = self._store
        try:
            store.set(self._folder, prepared.folder.name if prepared is not None else "")
            if has_failed:
                store.set(self._verdict, _FAILED)
            elif store.add(f"data/{self.label}/ready", 1) == self.num:
                store.set(self._verdict, _DONE)
        except RuntimeError as error:
            raise _store_lost() from error

    def wait(self) -> None:
        """Return when all preparers are done. FailedElsewhereError if one failed; RunError for lost ranks."""
        if self.run.launch.world_size == 1:
            return
        launch, watch = self.run.launch, self.run.watch
        for turn in itertools.count(1):
            if self._is_decided():
                break
            # On many machines a look takes every rank's record from the store.
            looks = launch.is_one_machine or (launch.local_rank == 0 and turn % _TURNS_BETWEEN_LOOKS == 0)
            if looks and watch is not None and (lost := watch.known_lost()):
                raise RunError(
                    f"while waiting for data to be prepared: {lost}",
                    code=ExitCode.COMMUNICATION,
                    is_shared=False,
                )
        self.require_no_failure()

    def require_no_failure(self) -> None:
        if self.run.launch.world_size == 1:
            return
        store = self._store
        try:
            if store.check([self._verdict]) and store.get(self._verdict).decode() == _FAILED:
                raise FailedElsewhereError
        except RuntimeError as error:
            raise _store_lost() from error

    def _is_decided(self) -> bool:
        """Whether the verdict came within a few seconds."""
        try:
            self._store.wait([self._verdict], _PATIENCE)
        except RuntimeError:  # torch's DistError is one: the time is up, or the store is lost
            try:
                return bool(self._store.check([self._verdict]))
            except RuntimeError as error:
                raise _store_lost() from error
        return True

    @property
    def _store(self) -> dist.Store:  # type: ignore[name-defined]
        assert self.run.store is not None, "several ranks have a store"
        return self.run.store


def _store_lost() -> RunError:
    return RunError(
        "the rendezvous store does not respond: rank 0, its machine or its torchrun agent has exited",
        code=ExitCode.COMMUNICATION,
        is_shared=False,
    )
