"""Data that one process of each machine prepares, while all other ranks wait.

Preparing may take hours, and a collective may take minutes. So ranks wait for the rendezvous store, and look
for lost ranks meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from planc.runtime.data.errors import DataError
from planc.runtime.data.prepared.folder import Prepared, find
from planc.runtime.data.prepared.prepare import Progress, prepare
from planc.runtime.data.prepared.wanted import Wanted
from planc.runtime.data.tokenizers import share_cpus
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.torch.session import Session
from planc.tables import format_bytes, plural

_PATIENCE = timedelta(seconds=5)
_NOTE_SECONDS = 60.0
_DONE, _FAILED = "done", "failed"


class FailedElsewhereError(Exception):
    """Another rank can't prepare its data; that rank reports why."""


def require_prepared(
    session: Session, make: Callable[[], Wanted], *, label: str
) -> tuple[Wanted, Prepared | None]:
    """The data that `make` describes, prepared if it is too large for memory: then None.

    Every rank must call it. Raises DataError for this rank's data, FailedElsewhereError for another's.
    """
    root, launch = session.paths.prepared, session.launch
    wanted: Wanted | None = None
    prepared: Prepared | None = None
    failure: DataError | None = None
    try:
        wanted = make()
        prepared = None if _stays(wanted, root) else find(_there(root), wanted)
    except DataError as error:
        failure = error
    is_absent = wanted is not None and failure is None and prepared is None and not _stays(wanted, root)
    preparers = _Preparers(session, label, num=1)
    if launch.world_size > 1:
        counts = torch.tensor([is_absent, launch.local_rank == 0], dtype=torch.int64)
        dist.all_reduce(counts)
        if not counts[0]:
            return _result(wanted, prepared, failure)
        preparers = _Preparers(session, label, num=int(counts[1]))
    if launch.local_rank == 0:
        try:
            if is_absent and wanted is not None:
                prepared = _prepare(session, wanted, preparers)
        except DataError as error:
            failure = error
        preparers.finish(has_failed=failure is not None)
    if launch.world_size > 1:
        preparers.wait()
    if is_absent and prepared is None and failure is None and wanted is not None:
        prepared = _find_made(_there(root), wanted.now())
    return _result(wanted, prepared, failure)


def _stays(wanted: Wanted, root: Path | None) -> bool:
    return root is None or wanted.stays_in_memory


def _there(root: Path | None) -> Path:
    assert root is not None, "data without a directory stays in memory"
    return root


def _result(
    wanted: Wanted | None, prepared: Prepared | None, failure: DataError | None
) -> tuple[Wanted, Prepared | None]:
    if failure is not None:
        raise failure
    assert wanted is not None
    return wanted, prepared


def _find_made(root: Path, wanted: Wanted) -> Prepared:
    """The data that local rank 0 has prepared."""
    prepared = find(root, wanted)
    if prepared is None:
        raise RunError(
            f"local rank 0 has prepared data that this rank does not find in {root}",
            code=ExitCode.STORAGE,
            help="give all ranks of a machine the same PLANC_DATA and the same view of the source's files",
        )
    return prepared


def _prepare(session: Session, wanted: Wanted, preparers: _Preparers) -> Prepared:
    root, noted = _there(session.paths.prepared), session.observer.noted
    size = f"{format_bytes(wanted.size_bytes)} of " if wanted.files else ""
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

    prepared = prepare(root, wanted, name=session.graph.name, report=report, say=say)
    noted(f"data: {prepared.folder.name} is ready after {time.monotonic() - began:.1f} s")
    return prepared


@dataclass(frozen=True, slots=True)
class _Preparers:
    """The ranks that prepare, one of each machine, and what the others know of them through the store."""

    session: Session
    label: str
    num: int

    @property
    def _verdict(self) -> str:
        return f"data/{self.label}/verdict"

    def finish(self, *, has_failed: bool) -> None:
        """Report that this rank's data is ready, or can't be made."""
        if self.session.launch.world_size == 1:
            return
        store = self._store
        try:
            if has_failed:
                store.set(self._verdict, _FAILED)
            elif store.add(f"data/{self.label}/ready", 1) == self.num:
                store.set(self._verdict, _DONE)
        except RuntimeError as error:
            raise _store_lost() from error

    def wait(self) -> None:
        """Return when all preparers are done. FailedElsewhereError if one failed; RunError for lost ranks."""
        while not self._is_decided():
            watch = self.session.watch
            if watch is not None and (lost := watch.known_lost()):
                raise RunError(
                    f"while waiting for data to be prepared: {lost}",
                    code=ExitCode.COMMUNICATION,
                    is_shared=False,
                )
        self.require_no_failure()

    def require_no_failure(self) -> None:
        if self.session.launch.world_size == 1:
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
        assert self.session.store is not None, "several ranks have a store"
        return self.session.store


def _store_lost() -> RunError:
    return RunError(
        "the rendezvous store does not respond: rank 0, its machine or its torchrun agent has exited",
        code=ExitCode.COMMUNICATION,
        is_shared=False,
    )
