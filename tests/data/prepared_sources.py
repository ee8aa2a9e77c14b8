"""Sources of every kind, made of the interpreter's own sources, and their data in memory and in files."""

from __future__ import annotations

import json
from pathlib import Path

import datasets

from planc.data_sources import Source
from planc.data_sources.kinds import ChatSource, HfDatasetSource, JsonLinesSource, TextSource
from planc.runtime.data.open import OpenData, open_data, open_prepared
from planc.runtime.data.prepared.folder import Prepared
from planc.runtime.data.prepared.layout import BLOCK_BYTES
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.sources import stdlib_files
from planc.runtime.data.spec import DataSpec, Packing
from planc.runtime.ranks.reads import Entry, Reads
from tests.data.conversing import save_tokenizer

SOURCES: dict[str, Source] = {
    "text": TextSource(("*.txt",)),
    "jsonl": JsonLinesSource(("*.jsonl",)),
    "chat": ChatSource(("chats/*.jsonl",)),
    "chat-all": ChatSource(("chats/*.jsonl",), train_on="all"),
    "hf_dataset": HfDatasetSource(("*.parquet",)),
}
SHARD_BYTES = 4 * BLOCK_BYTES
MODULES = ("argparse.py", "calendar.py", "code.py")


def make_sources(base: Path) -> Path:
    """A few modules in text files, their lines as records and as talks; with a tokenizer."""
    save_tokenizer(base / "tokenizer")
    sources = (path.read_text(encoding="utf-8") for name, path in stdlib_files() if name in MODULES)
    texts = [text[at : at + 3_000] for text in sources for at in range(0, len(text), 3_000)]
    for number, text in enumerate(texts):
        (base / f"{number:03}.txt").write_text(text, encoding="utf-8")
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    records = [{"text": line} for line in lines]
    (base / "lines.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    datasets.Dataset.from_dict({"text": lines}).to_parquet(str(base / "lines.parquet"))
    (base / "chats").mkdir()
    asked = zip(lines[0::2], lines[1::2], strict=False)
    talks = [
        {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]}
        for ask, answer in asked
    ]
    (base / "chats" / "a.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in talks))
    return base


def spec_of(kind: str, packing: Packing = "attend", *, length: int = 64, seed: int = 3) -> DataSpec:
    return DataSpec(SOURCES[kind], "tokenizer", length, seed, packing)


def in_memory(spec: DataSpec, *, base: Path) -> tuple[OpenData, tuple[Entry, ...]]:
    """The data, and what a rank records as read."""
    reads = Reads()
    return open_data(spec, base=base, model_vocab_size=400, reads=reads), reads.take()


def in_files(spec: DataSpec, *, base: Path, root: Path) -> tuple[OpenData, tuple[Entry, ...]]:
    """As `in_memory`, prepared in small files."""
    reads = Reads()
    wanted = want(spec, base=base, reads=reads)
    prepared = prepare(root, wanted, name="test", shard_bytes=SHARD_BYTES)
    return open_prepared(prepared, wanted, model_vocab_size=400, reads=reads), reads.take()


def prepared_in(root: Path, *, base: Path, spec: DataSpec) -> Prepared:
    return prepare(root, want(spec, base=base), name="test", shard_bytes=SHARD_BYTES)
