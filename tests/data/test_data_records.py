"""Records of files of every kind: compressed, in lists, in columns, in directories, in parts of splits."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest

from planc.data_sources import Source
from planc.data_sources.kinds import ChatSource, HfDatasetSource, JsonLinesSource, TextSource
from planc.runtime.data import json_rows
from planc.runtime.data.bad_documents import BadDocuments, Faults
from planc.runtime.data.chat import Conversation
from planc.runtime.data.documents import source_documents
from planc.runtime.data.errors import DataError
from planc.runtime.data.prepared.source_files import source_files
from planc.runtime.data.records import file_records, split_records
from planc.runtime.data.sources import Document
from planc.runtime.ranks.reads import Entry, Reads
from tests.data.conversing import TALK

LINES = b'{"text": "one"}\n{"text": "t\xc3\xbc"}\n'
TALKS = [{"messages": TALK[:3], "n": number} for number in range(20)]


def _zstd(content: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": _zstd
}  # fmt: skip
each_compression = pytest.mark.parametrize("suffix", COMPRESSIONS)


def texts(
    source: Source, *, base: Path, reads: Reads | None = None, bad: BadDocuments | None = None
) -> list[str]:
    found = source_documents(source, base=base, reads=reads, bad=bad)
    return [one.text for one in found if isinstance(one, Document)]


def talks(source: ChatSource, *, base: Path) -> list[Any]:
    found = source_documents(source, base=base)
    return [json.loads(one.content)["messages"] for one in found if isinstance(one, Conversation)]


@each_compression
def test_compressed_files_are_read_by_their_content(tmp_path: Path, suffix: str) -> None:
    compressed = COMPRESSIONS[suffix](LINES)
    (tmp_path / f"a.jsonl.{suffix}").write_bytes(compressed)
    (tmp_path / "b.jsonl").write_bytes(compressed)
    (tmp_path / f"a.txt.{suffix}").write_bytes(COMPRESSIONS[suffix]("é\r\n".encode()))
    reads = Reads()
    assert texts(JsonLinesSource((f"*.jsonl.{suffix}",)), base=tmp_path, reads=reads) == ["one", "tü"]
    assert reads.take() == (Entry("file", f"a.jsonl.{suffix}", hashlib.sha256(compressed).hexdigest()),)
    assert texts(HfDatasetSource(("b.jsonl",)), base=tmp_path) == ["one", "tü"]
    assert texts(TextSource((f"*.txt.{suffix}",)), base=tmp_path) == ["é\r\n"]


@each_compression
def test_parts_that_were_compressed_one_by_one_are_all_read(tmp_path: Path, suffix: str) -> None:
    parts = [COMPRESSIONS[suffix](line) for line in LINES.splitlines(keepends=True)]
    (tmp_path / "a").write_bytes(b"".join(parts))
    assert texts(JsonLinesSource(("a",)), base=tmp_path) == ["one", "tü"]


@pytest.mark.sampled(every=4)
@each_compression
@pytest.mark.parametrize(
    "source", [JsonLinesSource(("*",)), TextSource(("*",)), ChatSource(("*",), ignore=("n",))]
)
def test_a_compressed_file_that_is_cut_is_named(tmp_path: Path, suffix: str, source: Source) -> None:
    whole = COMPRESSIONS[suffix](b"".join(b'{"text": "%d"}\n' % number for number in range(99_999)))
    (tmp_path / f"a.{suffix}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=f"a.{suffix} is damaged: its .* data cannot be decompressed"):
        list(source_documents(source, base=tmp_path, bad=Faults()))


def test_a_byte_order_mark_is_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + LINES)
    (tmp_path / "b").write_bytes(b'\xef\xbb\xbf{"text": "\xff"}\n')
    assert texts(JsonLinesSource(("a",)), base=tmp_path) == ["one", "tü"]
    assert texts(TextSource(("a",)), base=tmp_path) == [LINES.decode()]
    with pytest.raises(DataError, match="b:1 is not UTF-8 at byte 13"):
        texts(JsonLinesSource(("b",)), base=tmp_path)
    with pytest.raises(DataError, match="b is not UTF-8 at byte 13"):
        texts(TextSource(("b",)), base=tmp_path)


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\n{"text": "one"}\r\n \t\r\n\n{"text": "two"}\n{"text": 3}\n\n')
    found, bad = JsonLinesSource(("a.jsonl",)), Faults()
    assert texts(found, base=tmp_path, bad=bad) == ["one", "two"]
    assert list(bad.messages) == ['field "text" of a.jsonl:6 is not a string']
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n\n{"text": "two"}\n\n')
    reference = datasets.load_dataset(
        "json", data_files=[str(tmp_path / "a.jsonl")], split="train", streaming=True
    )
    assert texts(found, base=tmp_path) == [row["text"] for row in reference]


def test_an_empty_file_has_no_rows_and_an_empty_text_is_a_document_as_in_datasets(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.txt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(LINES)
    assert texts(JsonLinesSource(("*.jsonl",)), base=tmp_path) == ["one", "tü"]
    reference = datasets.load_dataset(
        "text", data_files=[str(tmp_path / "a.txt")], sample_by="document", split="train", streaming=True
    )
    assert texts(TextSource(("*.txt",)), base=tmp_path) == [row["text"] for row in reference] == [""]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("part_bytes", [1, 7, 1 << 16])
def test_a_list_in_json_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, part_bytes: int
) -> None:
    monkeypatch.setattr(json_rows, "_PART_BYTES", part_bytes)
    rows = [
        {"text": "[é, {\U0001f600}]\n", "n": 12.5e3},
        {"text": "", "deep": [{"a": [1]}]},
        {"text": "x" * 99},
    ]
    text = json.dumps(rows, indent=indent, ensure_ascii=False)
    (tmp_path / "a.json").write_text(f" \n{text}\n \n", encoding="utf-8")
    found = list(file_records(tmp_path / "a.json", name="a.json"))
    assert [one.values for one in found] == rows
    assert [one.origin for one in found] == [
        f"a.json:{line}" for line in ([3, 7, 17] if indent else [2, 2, 2])
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"text": "a"},\n {"text": }]', "a.json:2 is not JSON: Expecting value"),
        ('[{"text": "a"},\n', "a.json:2 is not JSON"),
        ('[{"text": "a"}\n', "a.json:2 is not JSON: the list has no end"),
        ('[{"text": "a"}\n{"text": "b"}]', "a.json:2 is not JSON: expected `,` or `]`"),
        ('[{"text": "a"},\n7]', "a.json:2 is not a JSON object"),
        ('[{"text": "a"}]\n{}', "a.json:2 has text after the end of its list"),
        ("[" * 100_000, "a.json:1 is not JSON"),
    ],
)
def test_a_fault_in_a_list_is_reported_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError) as caught:
        texts(JsonLinesSource(("a.json",)), base=tmp_path)
    assert caught.value.message.startswith(message)


def test_an_empty_list_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(" [ ]\n")
    assert texts(JsonLinesSource(("a.json",)), base=tmp_path) == []


def saved(base: Path) -> None:
    """The same conversations in every kind of file and directory."""
    table = datasets.Dataset.from_list(TALKS)
    table.to_parquet(str(base / "a.parquet"))
    table.save_to_disk(str(base / "saved"), num_shards=2)
    halves = datasets.DatasetDict({"train": table, "test": table.select(range(3))})
    halves.save_to_disk(str(base / "halves"))
    (base / "folder" / "data").mkdir(parents=True)
    table.select(range(9)).to_parquet(str(base / "folder/data/train-00000-of-00002.parquet"))
    table.select(range(9, 20)).to_parquet(str(base / "folder/data/train-00001-of-00002.parquet"))
    table.select(range(4)).to_parquet(str(base / "folder/data/test-00000-of-00001.parquet"))
    (base / "a.json").write_text(json.dumps(TALKS, indent=1))
    (base / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, TALKS)).encode()))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("talks")
    saved(folder)
    return folder


@pytest.mark.parametrize(
    "pattern", ["a.parquet", "saved", "saved/*.arrow", "halves", "folder", "a.json", "a.jsonl.gz"]
)
def test_conversations_come_from_every_kind_of_file(base: Path, pattern: str) -> None:
    source = ChatSource((pattern,), ignore=("n",))
    assert talks(source, base=base) == [row["messages"] for row in TALKS]
    assert all(one.path.is_file() and one.size_bytes > 0 for one in source_files(source, base=base))


SPLITS = [
    ("folder", "test"), ("folder", "train[:10%]"), ("folder", "train[5:12]+test[-2:]"),
    ("folder", "train[-10%:]"), ("a.parquet", "train[25%:75%]"), ("a.json", "train[3:]"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "split"), SPLITS)
def test_a_part_of_a_split_is_that_of_datasets(base: Path, place: str, split: str) -> None:
    path = base / place
    kind, files = ("json" if path.suffix == ".json" else "parquet"), None if path.is_dir() else [str(path)]
    reference = datasets.load_dataset(str(path) if path.is_dir() else kind, data_files=files, split=split)
    found = [one.values["n"] for one in split_records(HfDatasetSource((place,), split=split), base=base)]
    assert found == list(reference["n"])


def test_a_split_of_a_saved_directory_is_found(base: Path) -> None:
    assert len(talks(ChatSource(("halves",), split="test", ignore=("n",)), base=base)) == 3
    assert len(talks(ChatSource(("halves",), split="test[:1]", ignore=("n",)), base=base)) == 1
    assert len(talks(ChatSource(("saved",), split="train[:25%]", ignore=("n",)), base=base)) == 5


@pytest.mark.parametrize(
    ("place", "split", "message", "help"),
    [
        ("folder", "trian", "folder has no split `trian`", "train, test"),
        ("halves", "trian", "halves has no split `trian`", "train, test"),
        ("saved", "test", "saved has no split `test`", "train"),
        ("folder", "train[:10", "split `train[:10` cannot be read", "train[:10%]"),
        ("folder", "train[:200%]", "split `train[:200%]` cannot be read", "train[:10%]"),
        ("folder", "trian[:2]", "folder has no split `trian`", "train, test"),
        (
            "a.json",
            "test",
            "split `test` of `a.json`: files have the split `train` alone",
            "leave `split` out",
        ),
    ],
)
def test_a_faulty_split_is_named(base: Path, place: str, split: str, message: str, help: str) -> None:
    with pytest.raises(DataError) as caught:
        talks(ChatSource((place,), split=split, ignore=("n",)), base=base)
    assert caught.value.message.startswith(message)
    assert help in caught.value.help


@pytest.mark.parametrize("source", [TextSource(("a.parquet",)), JsonLinesSource(("a.parquet",))])
def test_columns_in_place_of_text_are_named_with_the_call_that_reads_them(base: Path, source: Source) -> None:
    with pytest.raises(DataError, match=r"a\.parquet is a file in the format Parquet, not text") as caught:
        texts(source, base=base)
    assert 'hf_dataset("a.parquet")' in caught.value.help


def test_a_directory_without_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="the directory empty cannot be read as a dataset"):
        talks(ChatSource(("empty",), ignore=("n",)), base=tmp_path)


def test_a_file_of_columns_with_signs_of_a_glob_in_its_name_is_read(base: Path, tmp_path: Path) -> None:
    (tmp_path / "a[1].parquet").write_bytes((base / "a.parquet").read_bytes())
    assert len(talks(ChatSource(("a*.parquet",), ignore=("n",)), base=tmp_path)) == 20


@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize(
    "row",
    [
        '{"text": "a", "text": "b"}',
        '{"text": "a", "meta": [{"id": 1, "id": 1}]}',
        '{"text": "a", "\\u0074ext": "b"}',
    ],
)
def test_a_key_that_an_object_has_twice_is_an_error_with_its_line(
    tmp_path: Path, row: str, is_list: bool
) -> None:
    lines = ['{"text": "one"}', row, '{"text": "two"}']
    (tmp_path / "a.json").write_text("[\n" + ",\n".join(lines) + "\n]" if is_list else "\n".join(lines))
    source, line = JsonLinesSource(("a.json",)), 3 if is_list else 2
    with pytest.raises(DataError, match=rf'^a\.json:{line} has the key "(text|id)" twice in one object'):
        texts(source, base=tmp_path)
    bad = BadDocuments(limit=1)
    assert texts(source, base=tmp_path, bad=bad) == ["one", "two"]
    assert len(bad.messages) == 1


def test_a_key_that_a_message_or_a_tool_has_twice_is_an_error(tmp_path: Path) -> None:
    for row in (
        '{"messages": [{"role": "user", "role": "assistant", "content": "x"}]}',
        '{"messages": [{"role": "assistant", "content": "x"}], "tools": "[{\\"a\\": 1, \\"a\\": 2}]"}',
    ):
        (tmp_path / "a.jsonl").write_text(row)
        with pytest.raises(DataError, match=r"^(\"tools\" of )?a\.jsonl:1 has the key .* twice"):
            talks(ChatSource(("a.jsonl",)), base=tmp_path)
