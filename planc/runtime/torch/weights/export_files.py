"""The weight files of an export, dealt to the ranks: each writes its own in a thread while all gather."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby, islice, zip_longest
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Self

from planc.runtime.checkpoint_format.shards import Entry
from planc.runtime.run_directory import export_folder
from planc.runtime.torch.weights.views import View

Files = Mapping[str, Sequence[Entry]]
"""The tensors of each weight file."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Consecutive tensors of a file that are parts of the same tensors of the model: gathered at once."""

    writer: int
    """The rank that writes the file."""
    views: tuple[View, ...]


def deal(files: Files, *, num_ranks: int) -> list[Files]:
    """The files that each rank writes. Few files go to ranks far apart, so to different nodes."""
    num_writers = min(len(files), num_ranks)
    dealt: list[dict[str, Sequence[Entry]]] = [{} for _ in range(num_ranks)]
    for index, (name, entries) in enumerate(files.items()):
        dealt[index % num_writers * (num_ranks // num_writers)][name] = entries
    return [*dealt]


def turns(dealt: Sequence[Files], views: Mapping[str, View]) -> Iterator[Turn]:
    """The order in which ranks gather: a turn of each writer in rotation, so all of them write at once."""
    lanes = (_turns_of(writer, files, views) for writer, files in enumerate(dealt))
    return (turn for round_ in zip_longest(*lanes) for turn in round_ if turn is not None)


def _turns_of(writer: int, files: Files, views: Mapping[str, View]) -> Iterator[Turn]:
    for entries in files.values():
        held = (views[entry.key] for entry in entries)
        for _, together in groupby(held, key=lambda view: view.sources):
            yield Turn(writer, tuple(together))


class Writer:
    """Writes a rank's files one after another, in a thread, as their elements are put.

    At most two turns wait in memory: the one that is written and the next.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        self._turns: Queue[Sequence[memoryview] | None] = Queue(maxsize=1)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="export")
        self._written = self._pool.submit(self._write, folder, files)

    def __enter__(self) -> Self:
        return self

    def put(self, elements: Sequence[memoryview]) -> None:
        """Give the elements of a turn's tensors; waits while the turn before the last one is written."""
        self._turns.put(elements)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until the thread has ended: with complete files, unless the export was abandoned."""
        self._turns.put(None)
        self._pool.shutdown()

    def require_written(self) -> None:
        """Raises the CheckpointError that ended the thread."""
        self._written.result()

    def _write(self, folder: Path, files: Files) -> None:
        elements = chain.from_iterable(iter(self._turns.get, None))
        try:
            for name, entries in files.items():
                export_folder.write_file(folder / name, entries, data=islice(elements, len(entries)))
        finally:
            # The ranks gather on together even if one of them can't write.
            for _ in elements:
                pass
