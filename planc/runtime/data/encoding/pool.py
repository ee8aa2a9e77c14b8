"""Several processes that tokenize at once. Their results come in the order of the documents."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from planc.runtime.data.encoding.client import Encoder, Fault, Kind, Loading, Tokens
from planc.runtime.data.encoding.limits import Limits

_BYTES_A_PROCESS = 1 << 20
"""Text that takes about as long as a process takes to start: with less for each, fewer are started."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of one kind that one process tokenizes together: texts in UTF-8, or others as JSON."""

    items: Sequence[bytes]
    kind: Kind = "texts"

    @property
    def key(self) -> bytes:
        """A hash of all that decides the tokens with the tokenizer."""
        content = hashlib.sha256(json.dumps([self.kind, *map(len, self.items)]).encode())
        for item in self.items:
            content.update(item)
        return content.digest()


class Store(Protocol):
    """Keeps the tokens of batches for a later run. Used by several threads."""

    def find(self, key: bytes) -> Sequence[Tokens | Fault] | None: ...
    def keep(self, key: bytes, batch: Sequence[Tokens | Fault]) -> None: ...


class Encoders:
    """Up to `num_processes` processes that tokenize, each started when there is work for it.

    Each has a thread here that waits for it. What is in the `store` is not tokenized again. Raises DataError
    if the tokenizer or its template is faulty.
    """

    def __init__(
        self, loading: Loading, limits: Limits, *, num_processes: int, store: Store | None = None
    ) -> None:
        self._loading, self._limits, self.num_processes = loading, limits, num_processes
        self._store = store
        first = Encoder(loading, limits)
        self.vocab_size, self.end_of_document = first.vocab_size, first.end_of_document
        self.special_ids, self.mask_id, self.marks = first.special_ids, first.mask_id, first.marks
        self.after = first.after
        self._encoders = [first]
        # None is a process that may be started.
        self._idle: SimpleQueue[Encoder | None] = SimpleQueue()
        self._idle.put(first)
        self._num_allowed = 1
        self._threads: ThreadPoolExecutor | None = None

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The processes that have been started."""
        return tuple(encoder.process_id for encoder in self._encoders)

    def encode(self, batches: Iterable[Batch]) -> Iterator[Sequence[Tokens | Fault]]:
        """The tokens of each batch, in order. Holds two batches for each process, so none waits for one."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.num_processes, thread_name_prefix="planc-tokenize")
        pending: deque[Future[Sequence[Tokens | Fault]]] = deque()
        num_bytes = 0
        try:
            for batch in batches:
                num_bytes += sum(map(len, batch.items))
                self._allow(1 + num_bytes // _BYTES_A_PROCESS)
                pending.append(self._threads.submit(self._encoded, batch))
                if len(pending) >= 2 * self._num_allowed:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids, special tokens included. Raises DataError."""
        with self._encoder() as encoder:
            return encoder.decode(sequences)

    def close(self) -> None:
        """End the processes, also in the middle of their work."""
        for encoder in self._encoders:
            encoder.abandon()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for encoder in self._encoders:
            encoder.close()

    def _allow(self, wanted: int) -> None:
        """Let `wanted` processes work, or as many as there may be; a thread starts one when it needs it."""
        while self._num_allowed < min(wanted, self.num_processes):
            self._num_allowed += 1
            self._idle.put(None)

    def _encoded(self, batch: Batch) -> Sequence[Tokens | Fault]:
        if self._store is None:
            return self._tokenized(batch)
        key = batch.key
        found = self._store.find(key)
        if found is None:
            found = self._tokenized(batch)
            if all(isinstance(one, Tokens) or one.is_certain for one in found):
                self._store.keep(key, found)
        return found

    def _tokenized(self, batch: Batch) -> Sequence[Tokens | Fault]:
        with self._encoder() as encoder:
            return list(encoder.encode(batch.items, kind=batch.kind))

    @contextmanager
    def _encoder(self) -> Iterator[Encoder]:
        """A process that nobody else uses meanwhile."""
        encoder = self._idle.get()
        try:
            if encoder is None:
                encoder = Encoder(self._loading, self._limits)
                self._encoders.append(encoder)
            yield encoder
        finally:
            self._idle.put(encoder)
