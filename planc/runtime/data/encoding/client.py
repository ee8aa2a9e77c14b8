"""The side of the run: starts the process that tokenizes, and names the document that ends it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import planc
from planc.runtime.data.chat import Templates
from planc.runtime.data.encoding.frames import parts_of, read_frame, write_frame
from planc.runtime.data.encoding.limits import Limits
from planc.runtime.data.errors import DataError
from planc.tables import format_bytes

_ENVIRONMENT = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")
"""Environment variables that the process gets: others may hold keys."""
_ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""There is a process for each CPU, as only those render templates at once."""
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); " \
    "from planc.runtime.data.encoding.worker import main; main()"  # fmt: skip
_PATIENCE = 20
"""The limit on a batch's elapsed time, in multiples of its CPU time: the machine may be busy."""
_MAX_WORDS = 1 << 16
_ID_TYPE = np.dtype("=u4")

Ids = npt.NDArray[np.int64]
Kind = Literal["texts", "text_pairs", "words", "conversations"]
"""A kind of documents: texts, two texts each, lists of words with their classes, or conversations."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of one text, [tokens]. `is_target` marks those that are trained on; None for all.

    `trains_end` is whether the end of the document is trained on too.
    """

    ids: Ids
    is_target: npt.NDArray[np.bool_] | None
    num_text_bytes: int
    trains_end: bool = True
    stops: bool = True
    """The same as in `talk.Rendered`."""
    unread: str = ""
    """Keys of the row that the template does not read, separated by commas."""
    classes: Ids | None = None
    """[tokens]: the class of a word at its first token, and IGNORED_LABEL elsewhere; None without words."""
    types: Ids | None = None
    """[tokens]: the `token_type_ids` of a pair of texts; None for others."""
    spans: Sequence[int] = ()
    """The start and the end of a pair's first text among the tokens, and those of its second."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason that a document has no tokens: a message is the document's name and `reason`.

    It `is_certain` if the same document has it at any time, and on any machine.
    """

    reason: str
    help: str
    is_certain: bool = True


class AbandonedError(Exception):
    """Nobody waits for the tokens any more."""


@dataclass(frozen=True, slots=True)
class Loading:
    """A tokenizer by name and the content of its files, and what else each process needs."""

    name: str
    files: Mapping[str, bytes]
    end_of_document: str | None
    chat_templates: Templates
    begin_of_document: str | None = None
    has_classes: bool = False
    by_word: bool = False
    by_pair: bool = False

    def header(self, limits: Limits, *, folder: str) -> dict[str, Any]:
        """The message that the files follow; the process makes `folder` to load them, and removes it."""
        return {
            "name": self.name,
            "end_of_document": self.end_of_document,
            "begin_of_document": self.begin_of_document,
            "has_template": bool(self.chat_templates),
            "has_classes": self.has_classes,
            "by_word": self.by_word,
            "by_pair": self.by_pair,
            "limits": limits.data(),
            "files": {path: len(content) for path, content in self.files.items()},
            "folder": folder,
        }


class Encoder:
    """Tokenizes in another process, and in a new one after a document that ended it.

    `vocab_size` is one more than the largest id, `special_ids` are those of special tokens, `mask_id` is that
    of the token that hides others, `after` are those after a text that has a class, `marks` names what
    documents begin and end with. Raises DataError if the tokenizer or its template is faulty.
    """

    def __init__(self, loading: Loading, limits: Limits) -> None:
        self._loading, self._limits = loading, limits
        self._process: _Process | None = None
        self._is_abandoned = False
        found = self._started().first
        self.vocab_size: int = found["vocab_size"]
        self.special_ids = frozenset[int](found["special_ids"])
        self.mask_id: int | None = found["mask"]
        self.after: tuple[int, ...] = tuple(found["after"])
        self.marks: str = found["marks"]
        self.end_of_document: int = found["end_of_document"]

    def encode(self, items: Sequence[bytes], *, kind: Kind = "texts") -> Iterator[Tokens | Fault]:
        """The tokens of each document.

        A batch that ends the process is tokenized again, one item at a time. AbandonedError once that is so.
        """
        header = {"kind": kind, "sizes": [*map(len, items)]}
        answer = self._started().ask(header, *items)
        if not isinstance(answer, str):
            yield from _parts(*answer, kind=kind)
            return
        self.close()
        if self._is_abandoned:
            raise AbandonedError
        if len(items) == 1:
            help = "shorten or remove it, or use another tokenizer"
            yield Fault(f"cannot be tokenized: {answer}", help, is_certain=False)
            return
        for item in items:
            yield from self.encode([item], kind=kind)

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of ids, special tokens included. Raises DataError."""
        parts = [np.asarray(ids, dtype=_ID_TYPE).tobytes() for ids in sequences]
        answer = self._started().ask({"decode": [*map(len, parts)]}, *parts)
        if isinstance(answer, str):
            self.close()
            raise DataError(f"{self._loading.name} cannot decode: {answer}", help="use another tokenizer")
        header, content = answer
        return [str(part, "utf-8") for part in parts_of(content, header["sizes"])]

    @property
    def process_id(self) -> int:
        """The process that tokenizes now."""
        return self._started().process_id

    def close(self) -> None:
        """End the process; it starts again if it is needed."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def abandon(self) -> None:
        """End the process from any thread, for good."""
        self._is_abandoned = True
        if (process := self._process) is not None:
            process.kill()

    def _started(self) -> _Process:
        if self._process is None:
            self._process = _Process(self._loading, self._limits)
        return self._process


class _Process:
    """A process that has loaded the tokenizer; `first` is its answer to that. Raises DataError."""

    def __init__(self, loading: Loading, limits: Limits) -> None:
        self._limits = limits
        pipe = subprocess.PIPE
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", _START, json.dumps(_import_path())),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env={**kept, **_ONE_THREAD},
            start_new_session=True,
        )
        self.close = weakref.finalize(self, _end, self._process)
        # The other process makes and removes it: so it goes if this one is killed, and here if that one is.
        folder = os.path.join(tempfile.gettempdir(), f"planc-tokenizer-{secrets.token_hex(8)}")
        try:
            header = loading.header(limits, folder=folder)
            self.first = self._load(loading.name, header, *loading.files.values())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        turns = [
            self._load(template.origin, {"template": name, **asdict(template)})["turn"]
            for name, template in loading.chat_templates.items()
        ]
        self.first["marks"] = "; ".join((self.first["marks"], *dict.fromkeys(filter(None, turns))))

    def _load(self, name: str, header: Mapping[str, Any], *content: bytes) -> dict[str, Any]:
        """The answer to a message before any batch. Raises DataError."""
        answer = self.ask(header, *content)
        if isinstance(answer, str):
            self.close()
            raise DataError(f"{name} cannot be loaded: {answer}", help="use another tokenizer")
        if "message" in answer[0]:
            self.close()
            raise DataError(answer[0]["message"], help=answer[0]["help"])
        return answer[0]

    @property
    def process_id(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def ask(self, header: Mapping[str, Any], *content: bytes) -> tuple[dict[str, Any], memoryview] | str:
        """The answer to one message; why there is none, if the process has ended or is of no more use."""
        num_bytes = sum(map(len, content))
        seconds = self._limits.seconds(num_bytes)
        is_late = threading.Event()
        process = self._process

        # Not `self`: a timer's thread may outlive this call, and would keep a dropped process from its end.
        def end() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(_PATIENCE * seconds, end)
        timer.start()
        try:
            answer = self._exchanged(header, content)
        finally:
            timer.cancel()
        memory = format_bytes(self._limits.memory(num_bytes))
        if answer is None and is_late.is_set():
            return f"it takes more than {_PATIENCE * seconds:_} s"
        if answer is None:
            return self._death(seconds=seconds, memory=memory)
        if answer[0].get("is_memory"):
            return f"it takes more than {memory} of memory"
        if "failure" in answer[0]:
            return f"the tokenizers library fails: {answer[0]['failure']}"
        return answer

    def _exchanged(
        self, header: Mapping[str, Any], content: Sequence[bytes]
    ) -> tuple[dict[str, Any], memoryview] | None:
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        # One that has ended reads nothing more.
        with contextlib.suppress(BrokenPipeError):
            write_frame(self._process.stdin, dict(header), *content)
        return read_frame(self._process.stdout)

    def _death(self, *, seconds: int, memory: str) -> str:
        """Explain why the process has ended without an answer."""
        assert self._process.stderr is not None, "it is a pipe"
        words = self._process.stderr.read(_MAX_WORDS).decode(errors="replace")
        code = self._process.wait()
        if "memory allocation of" in words:
            return f"it takes more than {memory} of memory"
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if name == "SIGXCPU":
            return f"it takes more than {seconds:_} s of CPU time"
        if name == "SIGKILL":
            return "its process was killed, as systems do when memory is short"
        lines = words.strip().splitlines() or ["no message"]
        return f"its process ends with {name}: {lines[-1][-200:]}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):
            stream.close()
    process.wait()


def _import_path() -> list[str]:
    """Return this process's import path, for the other one to import the same."""
    root = str(Path(planc.__file__).parents[1])
    return [*dict.fromkeys([*(os.path.abspath(path) for path in sys.path), root])]


_OF_TOKENS: Mapping[Kind, np.dtype[Any]] = {
    "conversations": np.dtype(np.bool_),
    **dict.fromkeys(("words", "text_pairs"), np.dtype("=i4")),
}
"""The dtype of a token's value next to the ids: whether it is trained on, its class, or its type."""


def _parts(header: dict[str, Any], content: memoryview, *, kind: Kind) -> Iterator[Tokens | Fault]:
    """The tokens of each document, from the answer to a batch: all ids, and then what is known of each."""
    of_token = _OF_TOKENS.get(kind)
    num_tokens = len(content) // (_ID_TYPE.itemsize + (of_token.itemsize if of_token else 0))
    ids = np.frombuffer(content, dtype=_ID_TYPE, count=num_tokens).astype(np.int64)
    known = np.frombuffer(content, dtype=of_token or np.bool_, offset=num_tokens * _ID_TYPE.itemsize)
    place = 0
    for answer in header["answers"]:
        if "reason" in answer:
            yield Fault(answer["reason"], answer["help"])
            continue
        part = slice(place, place + answer["tokens"])
        place = part.stop
        yield Tokens(
            ids[part],
            known[part] if kind == "conversations" else None,
            answer["bytes"],
            trains_end=answer.get("trains_end", True),
            stops=answer.get("stops", True),
            unread=answer.get("unread", ""),
            classes=known[part].astype(np.int64) if kind == "words" else None,
            types=known[part].astype(np.int64) if kind == "text_pairs" else None,
            spans=answer.get("spans", ()),
        )
