"""The process that tokenizes: what ends it names one document, and every other one has its tokens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from planc.data_sources.kinds import JsonLinesSource
from planc.runtime.data.encoding.client import Encoder, Fault, Loading, Tokens
from planc.runtime.data.encoding.limits import Limits
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import open_data
from planc.runtime.data.prepared.folder import folders
from planc.runtime.data.prepared.leftovers import unfinished
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from planc.runtime.data.tokenizers import read_tokenizer
from tests.patience import PATIENCE_SECONDS

GPT_LIKE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NESTED = r"(x+)+y|[^x]|x"
"""Takes time that doubles with every x."""
PANIC = b"x" * 40
SPEC = DataSpec(JsonLinesSource(("*.jsonl",)), "tokenizer.json", 4, 0)


def saved(folder: Path, pattern: str = NESTED) -> bytes:
    """A tokenizer of bytes whose pattern is matched by Oniguruma, and the end of a document."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: place for place, one in enumerate(alphabet)}, merges=[]))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path.read_bytes()


@pytest.fixture
def encoder(tmp_path: Path) -> Iterator[Encoder]:
    loading = Loading("tokenizer.json", {"tokenizer.json": saved(tmp_path)}, None, {})
    with contextlib.closing(Encoder(loading, Limits(cpu_seconds=1))) as encoder:
        yield encoder


def fault(found: Tokens | Fault) -> str:
    assert isinstance(found, Fault), found
    return found.reason


def num_tokens(found: list[Tokens | Fault]) -> list[int]:
    return [len(one.ids) if isinstance(one, Tokens) else -1 for one in found]


def test_a_panic_of_the_library_is_one_documents_fault(encoder: Encoder) -> None:
    found = list(encoder.encode([b"ab", PANIC, b"xxx", b"", PANIC]))
    assert num_tokens(found) == [2, -1, 3, 0, -1]
    assert fault(found[1]).startswith("cannot be tokenized: the tokenizers library fails: Onig")
    assert num_tokens(list(encoder.encode([b"abc"]))) == [3]


def test_millions_of_spaces_under_a_pattern_like_gpt_4s_are_a_fault_with_a_name(tmp_path: Path) -> None:
    """The panic that ended a run without a word: a BaseException, which no `except Exception` sees."""
    saved(tmp_path, GPT_LIKE)
    text = " " * 11_000_000
    (tmp_path / "a.jsonl").write_text(f'{{"text": "short"}}\n{{"text": "{text}"}}\n')
    with pytest.raises(DataError) as caught:
        prepare(tmp_path / "root", want(SPEC, base=tmp_path), name="text")
    assert caught.value.message.startswith("a.jsonl:2 cannot be tokenized: the tokenizers library fails")
    assert len(caught.value.message) < 300
    assert not folders(tmp_path / "root") and not unfinished(tmp_path / "root")


def test_memory_beyond_the_limit_is_one_documents_fault(tmp_path: Path) -> None:
    limits = Limits(memory_bytes=2**26, memory_bytes_a_byte=16)
    loading = Loading("tokenizer.json", {"tokenizer.json": saved(tmp_path)}, None, {})
    with contextlib.closing(Encoder(loading, limits)) as encoder:
        found = list(encoder.encode([b"ab", b"ab" * 2_000_000, b"abc"]))
    assert num_tokens(found) == [2, -1, 3]
    assert fault(found[1]) == "cannot be tokenized: it takes more than 125 MiB of memory"


def test_a_process_that_is_killed_while_it_waits_costs_no_document(encoder: Encoder) -> None:
    assert num_tokens(list(encoder.encode([b"ab"]))) == [2]
    before = encoder.process_id
    os.kill(before, signal.SIGKILL)
    assert num_tokens(list(encoder.encode([b"ab", b"c"]))) == [2, 1]
    assert encoder.process_id != before


def test_signals_to_a_run_do_not_end_its_tokenization(encoder: Encoder) -> None:
    before = encoder.process_id
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(before, number)
    assert num_tokens(list(encoder.encode([b"ab"]))) == [2]
    assert encoder.process_id == before
    # Ctrl-C reaches the group of the terminal, which this process is not in.
    assert os.getpgid(before) != os.getpgid(0)


class LingeringTimer(threading.Timer):
    """A cancelled timer whose thread goes on, as one does that a busy machine has not scheduled yet."""

    released = threading.Event()

    def run(self) -> None:
        super().run()
        self.released.wait(PATIENCE_SECONDS)


@pytest.fixture
def lingering_timers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threading, "Timer", LingeringTimer)
    yield
    LingeringTimer.released.set()


@pytest.mark.usefixtures("lingering_timers")
def test_no_process_is_left(tmp_path: Path) -> None:
    """The timers of both processes still run while these are closed and dropped."""
    loading = Loading("tokenizer.json", {"tokenizer.json": saved(tmp_path)}, None, {})
    closed, dropped = Encoder(loading, Limits()), Encoder(loading, Limits())
    ids = [closed.process_id, dropped.process_id]
    closed.close()
    del dropped
    for number in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_it_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    loading = Loading("tokenizer.json", {"tokenizer.json": saved(tmp_path)}, None, {})
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        encoder = Encoder(loading, Limits())
        os.write(write, str(encoder.process_id).encode())
        threading.Event().wait(PATIENCE_SECONDS)
        os._exit(0)
    number = int(os.read(read, 20))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    ends = time.monotonic() + PATIENCE_SECONDS
    while Path(f"/proc/{number}/cmdline").exists() and Path(f"/proc/{number}/cmdline").read_bytes():
        assert time.monotonic() < ends, "the process that tokenizes goes on without its run"
        time.sleep(0.05)


def test_it_gets_no_keys_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    loading = Loading("tokenizer.json", {"tokenizer.json": saved(tmp_path)}, None, {})
    with contextlib.closing(Encoder(loading, Limits())) as encoder:
        assert b"hf_secret" not in Path(f"/proc/{encoder.process_id}/environ").read_bytes()


def test_a_tokenizer_that_takes_more_than_its_limit_to_load_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    files = json.loads((tmp_path / "tokenizer.json").read_text())
    files["model"]["vocab"].update(
        {f"a token of some length {number}": 257 + number for number in range(10**6)}
    )
    loading = Loading("tokenizer.json", {"tokenizer.json": json.dumps(files).encode()}, None, {})
    with pytest.raises(DataError, match=r"^tokenizer\.json cannot be loaded: it takes more than 100 MiB"):
        Encoder(loading, Limits(memory_bytes=100 * 2**20, memory_bytes_a_byte=0))


def test_data_in_memory_names_the_document_too(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "a.jsonl").write_text(f'{{"text": "{PANIC.decode()}"}}\n')
    with pytest.raises(DataError, match=r"^a\.jsonl:1 cannot be tokenized"):
        open_data(SPEC, base=tmp_path, model_vocab_size=400)


def test_the_digest_and_the_ids_do_not_depend_on_the_process(tmp_path: Path) -> None:
    saved(tmp_path)
    files = read_tokenizer("tokenizer.json", base=tmp_path, end_of_document=None)
    first, second = files.load(), files.load()
    assert (first.vocab_size, first.end_of_document) == (second.vocab_size, second.end_of_document)
    assert first.vocab_size == 257 and first.end_of_document == 256
    first.close()
    second.close()
