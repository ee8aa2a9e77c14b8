"""Prepared data is what every rank would have tokenized for itself: same samples, order and records."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planc.data_sources.kinds import HfHubSource, PythonStdlibSource
from planc.runtime.data.evaluation import EvaluationSet
from planc.runtime.data.loader import BatchLoader, BatchSource
from planc.runtime.data.open import OpenData, open_prepared
from planc.runtime.data.packing import PackedDataset
from planc.runtime.data.padded import PaddedDataset
from planc.runtime.data.prepared.folder import find, folders
from planc.runtime.data.prepared.layout import BLOCK_BYTES, HEADER_BYTES, SHARD_BYTES
from planc.runtime.data.prepared.leftovers import unfinished
from planc.runtime.data.prepared.prepare import Progress, prepare
from planc.runtime.data.prepared.stored_array import STARTS_PER_SAMPLE, StoredArray, StoredStarts
from planc.runtime.data.prepared.wanted import MAX_BYTES_IN_MEMORY, MAX_BYTES_OF_BYTES, want
from planc.runtime.data.spec import DataSpec, Packing
from planc.runtime.ranks.reads import Reads
from tests.data.prepared_sources import SOURCES, in_files, in_memory, make_sources, prepared_in, spec_of

PACKINGS: tuple[Packing, ...] = ("attend", "isolate", "whole", "none")
GLOBAL_BATCH = 12


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


def require_equal_batches(memory: OpenData, files: OpenData, *, num_steps: int) -> None:
    """Compares what two data-parallel ranks read in as many steps."""
    for rank in range(2):
        loaders = [
            BatchLoader(BatchSource(one.dataset, one.order, GLOBAL_BATCH, 3, 2, rank))
            for one in (memory, files)
        ]
        for _ in range(num_steps):
            for ours, theirs in zip(*(loader.next_step() for loader in loaders), strict=True):
                for name in ("inputs", "labels", "position_ids", "sample_ids"):
                    expected, found = getattr(ours, name), getattr(theirs, name)
                    assert expected.dtype == found.dtype == np.int64
                    np.testing.assert_array_equal(expected, found)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("kind", SOURCES)
def test_every_batch_of_an_epoch_is_equal(kind: str, packing: Packing, base: Path, root: Path) -> None:
    spec = spec_of(kind, packing, length=512 if packing == "none" else 64)
    (memory, recorded), (files, reads) = in_memory(spec, base=base), in_files(spec, base=base, root=root)
    assert memory.dataset.num_sequences > 40
    require_equal_batches(memory, files, num_steps=memory.dataset.num_sequences // GLOBAL_BATCH + 2)
    assert files.fingerprint == memory.fingerprint
    assert set(reads) == set(recorded)
    assert files.dataset.summary() == memory.dataset.summary()
    assert files.dataset.max_token_id == memory.dataset.max_token_id


def test_the_standard_library_is_equal_in_files_of_any_size(base: Path, root: Path) -> None:
    spec = DataSpec(PythonStdlibSource(), "bytes", 512, 1, "isolate")
    memory, recorded = in_memory(spec, base=base)
    wanted = want(spec, base=base)
    for shard_bytes in (1 << 20, SHARD_BYTES):
        reads = Reads()
        prepared = prepare(root / str(shard_bytes), wanted, name="stdlib", shard_bytes=shard_bytes)
        files = open_prepared(prepared, wanted, model_vocab_size=300, reads=reads)
        assert files.fingerprint == memory.fingerprint
        assert set(reads.take()) == set(recorded)
        require_equal_batches(memory, files, num_steps=20)


def test_a_sequence_may_span_several_files(base: Path, root: Path) -> None:
    spec = spec_of("text", length=5 * BLOCK_BYTES // 2)
    (memory, _), (files, _) = in_memory(spec, base=base), in_files(spec, base=base, root=root)
    for index in range(memory.dataset.num_sequences):
        np.testing.assert_array_equal(memory.dataset[index], files.dataset[index])


def test_evaluations_are_equal(base: Path, root: Path) -> None:
    spec = spec_of("chat", "isolate")
    (memory, _), (files, _) = in_memory(spec, base=base), in_files(spec, base=base, root=root)
    sets = [EvaluationSet(one.dataset, 7, 2) for one in (memory, files)]
    assert sets[0].num_target_tokens == sets[1].num_target_tokens > 0
    pairs = zip(*(one.micro_batches(dp_size=2, dp_rank=1) for one in sets), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours.labels, theirs.labels)


def test_starts_are_found_among_thousands(base: Path, root: Path) -> None:
    (memory, _), (files, _) = (
        in_memory(spec_of("jsonl", "isolate"), base=base),
        in_files(spec_of("jsonl", "isolate"), base=base, root=root),
    )
    assert isinstance(memory.dataset, PackedDataset) and isinstance(files.dataset, PackedDataset)
    expected, starts = memory.dataset.document_starts, files.dataset.document_starts
    assert isinstance(expected, np.ndarray) and isinstance(starts, StoredStarts)
    assert len(expected) > STARTS_PER_SAMPLE
    edges = [0, 1, *(int(expected[place]) for place in (1, STARTS_PER_SAMPLE - 1, STARTS_PER_SAMPLE, -1))]
    for first in (*edges, *(edge + 1 for edge in edges), *range(0, memory.dataset.num_tokens, 4_999)):
        for stop in (first, first + 1, first + 500, memory.dataset.num_tokens):
            wanted = expected[(expected >= first) & (expected < stop)]
            np.testing.assert_array_equal(starts.within(first, stop), wanted)


def test_numpy_opens_every_file(base: Path, root: Path) -> None:
    files, _ = in_files(spec_of("text", "none", length=2_000), base=base, root=root)
    assert isinstance(files.dataset, PaddedDataset)
    tokens = files.dataset.tokens
    assert isinstance(tokens, StoredArray)
    parts = [np.load(path) for path in sorted(tokens.folder.glob("tokens-?????.npy"))]
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate(parts), tokens[:])
    for path in tokens.folder.glob("*.npy"):
        assert np.load(path, mmap_mode="r").ndim == 1


def test_what_is_prepared_is_not_prepared_again(base: Path, tmp_path: Path) -> None:
    spec = spec_of("text")
    first = prepared_in(tmp_path, base=base, spec=spec)
    assert first.folder.name.startswith("test-")
    wanted = want(spec, base=base)
    assert find(tmp_path, wanted) == first
    before = [path.stat().st_mtime_ns for path in sorted(first.folder.iterdir())]
    assert prepare(tmp_path, wanted, name="another") == first
    assert [path.stat().st_mtime_ns for path in sorted(first.folder.iterdir())] == before
    assert folders(tmp_path) == (first.folder,)


def test_what_decides_the_tokens_is_in_the_key_and_nothing_else(base: Path) -> None:
    def key(spec: DataSpec) -> str:
        return want(spec, base=base).key

    spec = spec_of("text")
    same = [
        replace(spec, **one)
        for one in ({"sequence_length": 128}, {"shuffle_seed": 9}, {"packing": "isolate"})
    ]
    assert {key(one) for one in same} == {key(spec)}
    cut = replace(spec, packing="none")
    others = [
        cut,
        replace(cut, sequence_length=128),
        replace(spec, tokenizer="bytes"),
        replace(spec, end_of_document="</s>"),
        *(spec_of(kind) for kind in SOURCES if kind != "text"),
    ]
    assert len({key(one) for one in (spec, *others)}) == len(others) + 1


def test_a_changed_template_changes_the_key_of_chats_alone(tmp_path: Path) -> None:
    base = make_sources(tmp_path)
    before = [want(spec_of(kind), base=base).key for kind in ("text", "chat")]
    path = base / "tokenizer" / "chat_template.jinja"
    path.write_text(f"{path.read_text()} ")
    after = [want(spec_of(kind), base=base).key for kind in ("text", "chat")]
    assert before[0] == after[0] and before[1] != after[1]


@pytest.mark.parametrize(
    ("tokenizer", "limit"), [("tokenizer", MAX_BYTES_IN_MEMORY), ("bytes", MAX_BYTES_OF_BYTES)]
)
def test_small_data_stays_in_memory(tokenizer: str, limit: int, base: Path) -> None:
    spec = replace(spec_of("text"), tokenizer=tokenizer)
    wanted = want(spec, base=base)
    (first, *_) = wanted.files
    assert wanted.stays_in_memory
    assert replace(wanted, files=(replace(first, size_bytes=limit),)).stays_in_memory
    assert not replace(wanted, files=(replace(first, size_bytes=limit + 1),)).stays_in_memory


def test_a_dataset_of_the_hub_never_stays_in_memory(base: Path) -> None:
    spec = replace(spec_of("text"), source=HfHubSource("org/name", "0" * 40))
    assert not want(spec, base=base).stays_in_memory


def test_progress_counts_text_and_tokens(base: Path, tmp_path: Path) -> None:
    spec = DataSpec(PythonStdlibSource(), "bytes", 64, 1)
    found: list[Progress] = []
    prepare(tmp_path, want(spec, base=base), name="stdlib", report=found.append)
    assert len(found) > 5
    assert found == sorted(found, key=lambda one: (one.num_text_bytes, one.num_tokens))
    assert 0 < found[-1].num_tokens <= found[-1].num_text_bytes + 10_000
    assert not unfinished(tmp_path)


def test_a_file_has_a_header_and_its_data(base: Path, root: Path) -> None:
    prepared = prepared_in(root, base=base, spec=spec_of("text"))
    array = prepared.index.arrays["tokens"]
    assert array.dtype == "uint16" and len(array.shards) > 2
    for number, shard in enumerate(array.shards):
        size = os.stat(prepared.folder / f"tokens-{number:05}.npy").st_size
        assert size == shard.data.size_bytes <= HEADER_BYTES + 4 * BLOCK_BYTES
