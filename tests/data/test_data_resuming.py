"""A preparation that is interrupted resumes: its bytes are those of one that was not, and no work is lost."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from planc.cli.main import main
from planc.data_sources.kinds import ChatSource
from planc.runtime.data import tokenizers
from planc.runtime.data.encoding.client import Encoder, Fault, Tokens
from planc.runtime.data.errors import DataError
from planc.runtime.data.prepared import parts
from planc.runtime.data.prepared import prepare as preparing
from planc.runtime.data.prepared.folder import Prepared
from planc.runtime.data.prepared.leftovers import unfinished
from planc.runtime.data.prepared.parts import Parts, interrupted
from planc.runtime.data.prepared.prepare import Progress, prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from tests.data.conversing import save_tokenizer
from tests.patience import WAIT_SECONDS

SPEC = DataSpec(ChatSource(("chats/*.jsonl",)), "tokenizer", 64, 0, "isolate", skip_bad=100)
NUM_FILES, FILE_BYTES = 3, 250_000
INTERRUPTED_BYTES = 550_000
BATCH_BYTES, MAX_BATCH_BYTES = 1 << 12, 1 << 14
SLACK_BYTES = 6 * MAX_BATCH_BYTES
"""What is lost when a preparation is interrupted, and where a change of a file ends."""
KILLS_OF_A_CHAIN = 5


@pytest.fixture(autouse=True)
def many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "_BATCH_BYTES", BATCH_BYTES)
    monkeypatch.setattr(tokenizers, "_MAX_BATCH_BYTES", MAX_BATCH_BYTES)
    monkeypatch.setattr(preparing, "_REPORT_BYTES", 1)


def talks(seed: int) -> Iterator[bytes]:
    """Rows of conversations; one in three hundred is bad in its JSON, another in its messages."""
    draw = random.Random(seed)
    for number in count():
        words = [f"{draw.choice(('what', 'how', 'why'))} {draw.randint(0, 10**6)}" for _ in range(4)]
        answer = " ".join(words) * draw.randint(1, 12)
        talk = [{"role": "user", "content": words[0]}, {"role": "assistant", "content": answer}]
        row = json.dumps({"messages": [] if number % 300 == 99 else talk}).encode()
        yield b"{" if number % 300 == 199 else row


def write(path: Path, *, seed: int) -> None:
    found, content = talks(seed), bytearray()
    while len(content) < FILE_BYTES:
        content += next(found) + b"\n"
    path.write_bytes(content)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("base")
    save_tokenizer(base / "tokenizer")
    (base / "chats").mkdir()
    for number in range(NUM_FILES):
        write(base / "chats" / f"{number}.jsonl", seed=number)
    return base


@pytest.fixture(scope="module")
def expected(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes that are prepared without an interruption."""
    return content(prepare(tmp_path_factory.mktemp("root"), want(SPEC, base=base), name="chats"))


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each batch that a process is asked to tokenize."""
    sizes: list[int] = []
    real = Encoder.encode

    def encode(self: Encoder, items: Sequence[bytes], **settings: object) -> Iterator[Tokens | Fault]:
        sizes.append(sum(map(len, items)))
        return real(self, items, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(Encoder, "encode", encode)
    return sizes


def content(prepared: Prepared) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in prepared.folder.iterdir()}


def prepared_bytes(root: Path, base: Path, *, say: Callable[[str], None] = print) -> dict[str, bytes]:
    return content(prepare(root, want(SPEC, base=base), name="chats", say=say))


def whole_bytes(root: Path, base: Path, tokenized: list[int]) -> int:
    """The bytes that are tokenized without an interruption."""
    del tokenized[:]
    prepared_bytes(root, base)
    return sum(tokenized)


def interrupt(root: Path, base: Path, *, after: int) -> None:
    """Prepare until as many bytes of text are done, and no further."""

    def report(progress: Progress) -> None:
        if progress.num_text_bytes >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(root, want(SPEC, base=base), name="chats", report=report)
    assert interrupted(root) and not unfinished(root)


def killed(root: Path, base: Path, *, after: int, seconds: float) -> bool:
    """Whether a process that prepares the data is killed before it is done.

    It is killed so many seconds after it has read so many bytes of text, or all of them.
    """
    read, told = os.pipe()
    child = os.fork()
    if child == 0:

        def report(progress: Progress) -> None:
            if progress.num_text_bytes >= after:
                os.write(told, b".")

        try:
            prepare(root, want(SPEC, base=base), name="chats", report=report)
        finally:
            os._exit(0)
    os.close(told)
    ready, _, _ = select.select([read], [], [], WAIT_SECONDS)
    assert ready, "the preparation neither goes on nor ends"
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.close(read)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.slow
@pytest.mark.parametrize("least_kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_the_bytes_after_kills_at_any_moment_are_those_without(
    least_kills: int, base: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """Killed at random moments, some while the last files are written; each goes through several."""
    draw = random.Random(36)
    total = NUM_FILES * FILE_BYTES
    num_kills = num_chains = 0
    while num_kills < least_kills:
        root = tmp_path / f"root-{num_chains}"
        root.mkdir()
        moments = sorted(draw.uniform(0, 1.05 * total) for _ in range(KILLS_OF_A_CHAIN))
        for after in moments:
            num_kills += killed(root, base, after=int(after), seconds=draw.uniform(0, 0.2))
        assert prepared_bytes(root, base) == expected
        assert not interrupted(root) and not unfinished(root)
        num_chains += 1
    assert num_chains < least_kills


def test_what_was_tokenized_is_not_tokenized_again(
    base: Path, expected: dict[str, bytes], tmp_path: Path, tokenized: list[int]
) -> None:
    interrupt(tmp_path / "root", base, after=INTERRUPTED_BYTES)
    first = sum(tokenized)
    said = list[str]()
    assert prepared_bytes(tmp_path / "root", base, say=said.append) == expected
    both = sum(tokenized)
    assert first >= INTERRUPTED_BYTES - SLACK_BYTES
    assert both <= whole_bytes(tmp_path / "afresh", base, tokenized) + SLACK_BYTES
    assert len(said) == 1 and said[0].startswith("resuming an interrupted preparation: ")
    assert not interrupted(tmp_path / "root") and not unfinished(tmp_path / "root")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["another file", "a row more in the first", "a row less in the first"])
def test_a_changed_file_costs_its_own_part(
    change: str, expected: dict[str, bytes], tmp_path: Path, tokenized: list[int]
) -> None:
    base, root = tmp_path / "base", tmp_path / "root"
    base.mkdir()
    save_tokenizer(base / "tokenizer")
    (base / "chats").mkdir()
    for number in range(NUM_FILES):
        write(base / "chats" / f"{number}.jsonl", seed=number)
    interrupt(root, base, after=INTERRUPTED_BYTES)
    first = base / "chats" / "0.jsonl"
    rows = first.read_bytes().splitlines(keepends=True)
    if change == "another file":
        write(base / "chats" / "00.jsonl", seed=99)
    elif change == "a row more in the first":
        first.write_bytes(b"".join([rows[0], rows[1], *rows[1:]]))
    else:
        first.write_bytes(b"".join([rows[0], *rows[2:]]))
    del tokenized[:]
    found = prepared_bytes(root, base)
    resumed = sum(tokenized)
    assert resumed <= whole_bytes(tmp_path / "afresh", base, tokenized) - INTERRUPTED_BYTES + SLACK_BYTES
    assert found == prepared_bytes(tmp_path / "afresh", base)
    assert found["index.json"] != expected["index.json"]


def test_a_failed_preparation_keeps_what_it_tokenized(
    base: Path, tmp_path: Path, tokenized: list[int]
) -> None:
    """One document too many is bad, at the end of hours: with it fixed, or allowed, nothing is lost."""
    strict = DataSpec(SPEC.source, "tokenizer", 64, 0, "isolate", skip_bad=5)
    with pytest.raises(DataError, match="after 5 that `skip_bad` leaves out"):
        prepare(tmp_path / "root", want(strict, base=base), name="chats")
    first = sum(tokenized)
    prepare(tmp_path / "root", want(SPEC, base=base), name="chats")
    both = sum(tokenized)
    assert first > SLACK_BYTES
    assert both <= whole_bytes(tmp_path / "afresh", base, tokenized) + SLACK_BYTES


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("damage", ["a flipped bit of each part", "the last one is cut short", "other bytes"])
def test_damaged_parts_are_tokenized_again(
    damage: str, base: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    interrupt(tmp_path, base, after=INTERRUPTED_BYTES)
    (folder,) = interrupted(tmp_path)
    (path,) = folder.iterdir()
    written = bytearray(path.read_bytes())
    if damage == "a flipped bit of each part":
        written[200::1_000] = bytes(one ^ 1 for one in written[200::1_000])
    elif damage == "the last one is cut short":
        del written[-1_000:]
    else:
        written = bytearray(os.urandom(len(written)))
    path.write_bytes(written)
    assert prepared_bytes(tmp_path, base) == expected


def test_parts_that_can_not_be_written_cost_nothing_now(
    base: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> object:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(parts, "create_to_write", full)
    said = list[str]()
    assert prepared_bytes(tmp_path, base, say=said.append) == expected
    assert len(said) == 1 and "No space left on device; if this preparation is interrupted" in said[0]


def test_parts_made_by_other_code_are_not_used(
    base: Path, tmp_path: Path, tokenized: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(tmp_path, base, after=INTERRUPTED_BYTES)
    monkeypatch.setattr(parts, "_rules", lambda: "0" * 16)
    del tokenized[:]
    said = list[str]()
    prepared_bytes(tmp_path, base, say=said.append)
    assert said == []
    assert sum(tokenized) > 0.9 * NUM_FILES * FILE_BYTES


def test_parts_of_a_preparer_that_died_after_its_last_step_are_removed(
    base: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("planc.runtime.data.prepared.prepare.remove_parts", lambda *of, **settings: None)
        prepared_bytes(tmp_path, base)
    assert interrupted(tmp_path)
    assert prepared_bytes(tmp_path, base) == expected
    assert not interrupted(tmp_path)


def test_what_is_tokenized_so_far_is_listed(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(tmp_path, base, after=INTERRUPTED_BYTES)
    assert main(["data", "ls", str(tmp_path), "--output-format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["path"] == str(interrupted(tmp_path)[0])
    assert row["state"] == "tokenized so far: the same preparation resumes from it"


def test_a_part_holds_all_that_documents_have(tmp_path: Path) -> None:
    """Every field of tokens and of faults, those that are added later too."""
    tokens = {"ids": np.array([5, 70_000]), "is_target": np.array([True, False]), "num_text_bytes": 7}
    tokens["classes"] = np.array([3, -100], dtype=np.int32)
    tokens["types"] = np.array([0, 1], dtype=np.int32)
    unknown = {one.name: 3 for one in fields(Tokens) if one.name not in tokens}
    found = [
        Tokens(**{**tokens, **unknown}),  # type: ignore[arg-type]
        Fault("reason", "help"),
        Tokens(np.array([], dtype=np.int64), None, 0),
        Tokens(np.array([9]), np.array([True]), 1),
    ]
    first = Parts(tmp_path, key="a", say=print)
    first.keep(b"k" * 32, found)
    first.close()
    second = Parts(tmp_path, key="a", say=print)
    read = second.find(b"k" * 32)
    assert second.find(b"k" * 8 + b"l" * 24) is None
    second.close()
    assert read is not None and len(read) == len(found)
    for one, other in zip(read, found, strict=True):
        assert type(one) is type(other)
        for field in fields(other):
            value, wanted = getattr(one, field.name), getattr(other, field.name)
            assert np.array_equal(value, wanted) if wanted is not None else value is None
            assert not isinstance(wanted, np.ndarray) or value.dtype == wanted.dtype
