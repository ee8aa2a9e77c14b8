"""Several processes tokenize: what they make does not depend on how many there are."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from planc.data_sources.kinds import JsonLinesSource
from planc.runtime.data import tokenizers
from planc.runtime.data.bad_documents import BadDocuments
from planc.runtime.data.encoding.client import Fault, Tokens
from planc.runtime.data.encoding.limits import Limits
from planc.runtime.data.encoding.pool import Encoders
from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import encode
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.sources import Document
from planc.runtime.data.spec import DataSpec
from planc.runtime.data.tokenizers import FileTokenizer, read_tokenizer
from tests.data.conversing import conversation, save_tokenizer
from tests.data.test_data_encoding import PANIC, saved
from tests.patience import PATIENCE_SECONDS

SPEC = DataSpec(JsonLinesSource(("*.jsonl",)), "tokenizer.json", 64, 0, skip_bad=40)
LINE = "The quick brown fox jumps over the lazy dog; number {} of them. "


def texts(number: int) -> list[str]:
    """Documents of very different lengths: those of one process are often ready before earlier ones."""
    return [LINE.format(place) * (1 + place * place % 97) for place in range(number)]


@contextlib.contextmanager
def loaded(folder: Path, *, num_processes: int, limits: Limits | None = None) -> Iterator[FileTokenizer]:
    name = "tokenizer" if (folder / "tokenizer").is_dir() else "tokenizer.json"
    files = read_tokenizer(name, base=folder, end_of_document=None)
    tokenizer = files.load(limits or Limits(), num_processes=num_processes)
    assert isinstance(tokenizer, FileTokenizer)
    with contextlib.closing(tokenizer):
        yield tokenizer


def documents(found: Sequence[str]) -> list[Document]:
    return [Document(f"a.jsonl:{place}", text, len(text.encode())) for place, text in enumerate(found, 1)]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_ids_are_those_of_the_library_in_the_order_of_the_documents(
    tmp_path: Path, num_processes: int
) -> None:
    reference = Tokenizer.from_buffer(saved(tmp_path))
    written = texts(1_100)
    with loaded(tmp_path, num_processes=num_processes) as tokenizer:
        found = list(tokenizer.encode(documents(written)))
        assert len(set(tokenizer.encoders.process_ids)) == num_processes
    assert len(found) == len(written)
    for text, one in zip(written, found, strict=True):
        assert not isinstance(one, Fault)
        assert one.ids.tolist() == reference.encode(text, add_special_tokens=False).ids


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_masks_are_those_of_the_characters_that_the_template_marks(
    tmp_path: Path, num_processes: int
) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    reference = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    answers = texts(1_100)
    talks = [
        [{"role": "user", "content": f"{place}?"}, {"role": "assistant", "content": answer}]
        for place, answer in enumerate(answers)
    ]
    rows = [conversation(talk) for talk in talks]
    with loaded(tmp_path, num_processes=num_processes) as tokenizer:
        found = list(tokenizer.encode(rows))
    for place, (answer, one) in enumerate(zip(answers, found, strict=True)):
        assert not isinstance(one, Fault) and one.is_target is not None
        before = f"<|im_start|>user\n{place}?<|im_end|>\n<|im_start|>assistant\n"
        expected = reference.encode(f"{before}{answer}<|im_end|>\n", add_special_tokens=False)
        assert one.ids.tolist() == expected.ids
        marked = range(len(before), len(before) + len(answer) + len("<|im_end|>"))
        assert one.is_target.tolist() == [start in marked for start, _ in expected.offsets]


def test_ids_do_not_depend_on_how_many_documents_are_tokenized_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = Tokenizer.from_buffer(saved(tmp_path))
    written = ["abc", "", "de" * 9, "f"]
    for num_bytes in (1, 4, 19):
        monkeypatch.setattr(tokenizers, "_MAX_BATCH_BYTES", num_bytes)
        with loaded(tmp_path, num_processes=2) as tokenizer:
            found = [
                one.ids.tolist() for one in tokenizer.encode(documents(written)) if isinstance(one, Tokens)
            ]
        assert found == [reference.encode(text, add_special_tokens=False).ids for text in written]


def lines_with_faults(number: int) -> bytes:
    """JSON Lines in which every fortieth can't be tokenized, and every fiftieth can't be read."""
    lines = []
    for place, text in enumerate(texts(number), 1):
        if place % 50 == 0:
            lines.append(b"{")
        else:
            lines.append(json.dumps({"text": PANIC.decode() if place % 40 == 0 else text}).encode())
    return b"\n".join(lines) + b"\n"


def prepared_bytes(base: Path, root: Path) -> dict[str, bytes]:
    """The files of prepared data, without the states of the source's files, which a copy doesn't share."""
    folder = prepare(root, want(SPEC, base=base), name="text").folder
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "known.json"}


def test_prepared_bytes_do_not_depend_on_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither do the names of bad documents, those of the source and those of the tokenizer in one order."""
    saved(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(lines_with_faults(400))
    made = {}
    for number in (1, 3):
        monkeypatch.setenv("RAYON_NUM_THREADS", str(number))
        made[number] = prepared_bytes(tmp_path, tmp_path / f"root-{number}")
    assert made[1] == made[3]
    named = json.loads(made[1]["index.json"])["left_out"]
    places = [place for place in range(1, 401) if place % 40 == 0 or place % 50 == 0]
    assert [int(one.split()[0].removeprefix("a.jsonl:")) for one in named] == places


@pytest.mark.parametrize("num_processes", [1, 3])
def test_the_first_fault_is_reported_whatever_is_read_ahead(tmp_path: Path, num_processes: int) -> None:
    saved(tmp_path)

    def source() -> Iterator[Document]:
        yield from documents(["fine", PANIC.decode(), *texts(200)])
        raise DataError("line 203 is not JSON", help="")

    with loaded(tmp_path, num_processes=num_processes) as tokenizer:
        with pytest.raises(DataError, match=r"^a\.jsonl:2 cannot be tokenized"):
            list(encode(source(), tokenizer=tokenizer))
        with pytest.raises(DataError, match="line 203"):
            list(encode(source(), tokenizer=tokenizer, bad=BadDocuments(1)))


@pytest.mark.slow
def test_a_process_that_dies_costs_no_document_of_any(tmp_path: Path) -> None:
    """Killed while they work, one after another: what they had is tokenized again."""
    saved(tmp_path)
    written = texts(1_100)
    with loaded(tmp_path, num_processes=3) as tokenizer:
        expected = [one.ids for one in tokenizer.encode(documents(written)) if not isinstance(one, Fault)]
        found = []
        for place, one in enumerate(tokenizer.encode(documents(written))):
            assert not isinstance(one, Fault)
            found.append(one.ids)
            if place % 400 == 0:
                for number in tokenizer.encoders.process_ids[place // 400 % 3 :][:1]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
    assert len(found) == len(expected)
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.slow
def test_little_is_read_ahead(tmp_path: Path) -> None:
    """Memory is bounded: of a source without an end, two batches for each process are held."""
    saved(tmp_path)
    num_read = 0

    def endless() -> Iterator[Document]:
        nonlocal num_read
        for place in itertools.count():
            text = LINE.format(place) * 20
            num_read += len(text)
            yield Document("here", text, len(text))

    with loaded(tmp_path, num_processes=2) as tokenizer:
        used, most = 0, 0
        for one in itertools.islice(tokenizer.encode(endless()), 5_000):
            assert not isinstance(one, Fault)
            used += one.num_text_bytes
            most = max(most, num_read - used)
    assert most < 5 * 2**19


def test_no_process_is_waited_for_once_the_work_is_dropped(tmp_path: Path) -> None:
    """A document that takes a minute does not keep a run that ends for another reason."""
    saved(tmp_path)
    slow = "x" * 28 + "z"
    with loaded(tmp_path, num_processes=2) as tokenizer:
        began = time.monotonic()
        stream = tokenizer.encode(documents([*texts(300), *[slow] * 4_000]))
        next(stream)
        ids = tokenizer.encoders.process_ids
        tokenizer.close()
        assert time.monotonic() - began < PATIENCE_SECONDS
    for number in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_a_tokenizer_is_loaded_once_for_little_text(tmp_path: Path) -> None:
    saved(tmp_path)
    with loaded(tmp_path, num_processes=3) as tokenizer:
        assert isinstance(tokenizer.encoders, Encoders)
        assert len(list(tokenizer.encode(documents(texts(9))))) == 9
        assert len(tokenizer.encoders.process_ids) == 1
