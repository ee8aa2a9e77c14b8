"""Whatever differs from what was saved is found."""

from __future__ import annotations

import json
import os
from io import BytesIO
from itertools import product
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.coverage import coverage_problem
from planc.runtime.checkpoint_format.errors import CorruptCheckpointError
from planc.runtime.checkpoint_format.manifest import Chunk, Manifest, TensorEntry, seal
from planc.runtime.checkpoint_format.shards import Entry, decode_header, encode_header
from planc.runtime.checkpoint_format.verify import read_manifest, verify, verify_files
from tests.checkpoints.sample import shard_bytes

SHARD = "rank-00001.safetensors"


def test_an_undamaged_checkpoint_has_no_problems(checkpoint: Path) -> None:
    assert verify(checkpoint) == ()


def test_every_flipped_bit_is_found(checkpoint: Path) -> None:
    shard = checkpoint / SHARD
    data = shard.read_bytes()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        shard.write_bytes(damaged)
        assert [problem.subject for problem in verify(checkpoint)] == [SHARD]


def test_every_truncation_is_found(checkpoint: Path) -> None:
    shard = checkpoint / SHARD
    size_bytes = shard.stat().st_size
    for length in reversed(range(size_bytes)):
        os.truncate(shard, length)
        assert [str(problem) for problem in verify(checkpoint)] == [
            f"{SHARD}: holds {length} bytes, but {size_bytes} were saved"
        ]


def test_a_missing_file_is_found(checkpoint: Path) -> None:
    (checkpoint / SHARD).unlink()
    assert [str(problem) for problem in verify(checkpoint)] == [
        f"{SHARD}: cannot be read (No such file or directory)"
    ]


def test_a_file_of_another_step_is_found(checkpoint: Path) -> None:
    (checkpoint / SHARD).write_bytes(shard_bytes(Entry("model.weight@2,0", "float32", (1, 3)), fill=4))
    assert [problem.text for problem in verify(checkpoint)] == [
        "its SHA-256 differs from the one that was saved"
    ]


def test_a_linked_file_is_not_followed(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / SHARD).rename(tmp_path / "elsewhere")
    (checkpoint / SHARD).symlink_to(tmp_path / "elsewhere")
    assert [problem.subject for problem in verify(checkpoint)] == [SHARD]


def test_a_pipe_does_not_hang(checkpoint: Path) -> None:
    (checkpoint / SHARD).unlink()
    os.mkfifo(checkpoint / SHARD)
    assert [problem.text for problem in verify(checkpoint)] == [
        f"{SHARD} can't be read: it is a named pipe, not a plain file"
    ]


def test_a_chunk_of_another_dtype_than_its_file_is_found(checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["tensors"]["model.weight"]["dtype"] = "int32"
    (checkpoint / "manifest.json").write_text(seal(Manifest.model_validate_json(json.dumps(manifest))))
    assert [problem.text for problem in verify(checkpoint)] == [
        "model.weight@0,0 is not int32 [2, 3] in the file",
        "model.weight@2,0 is not int32 [1, 3] in the file",
    ]


def test_an_invalid_manifest_is_a_problem(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text("{}")
    assert [problem.subject for problem in verify(checkpoint)] == ["manifest.json"]


def test_only_the_named_files_are_read(checkpoint: Path) -> None:
    manifest = read_manifest(checkpoint)
    (checkpoint / SHARD).unlink()
    assert verify_files(checkpoint, manifest=manifest, names=["rank-00000.safetensors"]) == ()
    assert len(verify_files(checkpoint, manifest=manifest, names=[SHARD])) == 1


def tensor(shape: tuple[int, ...], *boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> TensorEntry:
    chunks = (
        Chunk(file="a.safetensors", key=str(index), offsets=offsets, sizes=sizes)
        for index, (offsets, sizes) in enumerate(boxes)
    )
    return TensorEntry(dtype="float32", shape=shape, chunks=tuple(chunks))


@pytest.mark.parametrize(
    "whole",
    [
        tensor((), ((), ())),
        tensor((0, 4)),
        tensor((3,), ((2,), (1,)), ((0,), (2,))),
        tensor((2, 2), ((0, 0), (1, 1)), ((0, 1), (1, 1)), ((1, 0), (1, 2))),
    ],
)
def test_chunks_that_hold_every_element_once_are_accepted(whole: TensorEntry) -> None:
    assert coverage_problem(whole) is None


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (tensor(()), "1 of 1 elements are in no chunk"),
        (tensor((), ((), ()), ((), ())), "chunk [] and chunk [] overlap"),
        (tensor((3,), ((0,), (2,))), "1 of 3 elements are in no chunk"),
        (tensor((3,), ((0,), (2,)), ((1,), (2,))), "chunk [0:2] and chunk [1:3] overlap"),
        (tensor((3,), ((0,), (4,))), "chunk [0:4] is not a box within shape [3]"),
        (tensor((3,), ((0,), (0,))), "chunk [0:0] is not a box within shape [3]"),
        (tensor((3,), ((0, 0), (3, 1))), "chunk [0:3, 0:1] is not a box within shape [3]"),
        # The volume is right: 4 elements in no chunk, 4 in two.
        (
            tensor((4, 4), ((0, 0), (4, 2)), ((0, 1), (4, 2))),
            "chunk [0:4, 0:2] and chunk [0:4, 1:3] overlap",
        ),
    ],
)
def test_chunks_that_do_not_are_refused(broken: TensorEntry, problem: str) -> None:
    assert coverage_problem(broken) == problem


def test_coverage_agrees_with_counting_elements() -> None:
    spans = [(start, size) for start in range(3) for size in range(1, 4 - start)]
    boxes = [((row, column), (height, width)) for (row, height), (column, width) in product(spans, spans)]
    for one, other in product(boxes, boxes):
        counts = dict.fromkeys(product(range(3), range(3)), 0)
        for (row, column), (height, width) in (one, other):
            for place in product(range(row, row + height), range(column, column + width)):
                counts[place] += 1
        is_covered = set(counts.values()) == {1}
        assert (coverage_problem(tensor((3, 3), one, other)) is None) == is_covered


def test_a_header_reads_back() -> None:
    entries = (Entry("a", "float64", ()), Entry("b", "bfloat16", (2, 3)), Entry("c", "bool", (0,)))
    header = encode_header(entries)
    data = BytesIO(header)
    assert decode_header(data, size_bytes=len(header) + 8 + 12) == entries


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}', "stands twice"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}', "its length does not match its shape"),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "outside the file"),
        (b'{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}', "F33"),
        (b"[" * 100_000, "not a safetensors header"),
        (b"[1]", "not a safetensors header"),
    ],
)
def test_a_header_that_is_not_one_is_refused(header: bytes, problem: str) -> None:
    data = len(header).to_bytes(8, "little") + header + bytes(4)
    with pytest.raises(CorruptCheckpointError, match=problem):
        decode_header(BytesIO(data), size_bytes=len(data))


def test_a_header_longer_than_its_file_is_refused() -> None:
    data = (2**63).to_bytes(8, "little") + b"{}"
    with pytest.raises(CorruptCheckpointError, match="longer than the file"):
        decode_header(BytesIO(data), size_bytes=len(data))
