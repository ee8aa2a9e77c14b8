"""Whatever differs from what was saved is found."""

from __future__ import annotations

import hashlib
import json
import os
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors import safe_open

from planc.runtime.checkpoint_format.coverage import coverage_problem
from planc.runtime.checkpoint_format.grid import Box
from planc.runtime.checkpoint_format.hashing import divided
from planc.runtime.checkpoint_format.manifest import Manifest, PartEntry
from planc.runtime.checkpoint_format.part_files import Share, shares
from planc.runtime.checkpoint_format.records import seal
from planc.runtime.checkpoint_format.shards import Entry, encode_header
from planc.runtime.checkpoint_format.verify import read_manifest, verify, verify_parts
from tests.checkpoints.sample import manifest_at, save_sample, shard_bytes

SHARD = "rank-00001.safetensors"
PART = "rank-00001.json"


def test_an_undamaged_checkpoint_has_no_problems(checkpoint: Path) -> None:
    assert verify(checkpoint) == ()


@pytest.mark.parametrize("name", [SHARD, PART])
def test_every_flipped_bit_is_found(name: str, checkpoint: Path) -> None:
    path = checkpoint / name
    data = path.read_bytes()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        assert [problem.subject for problem in verify(checkpoint)] == [name]


@pytest.mark.parametrize("name", [SHARD, PART])
def test_every_truncation_is_found(name: str, checkpoint: Path) -> None:
    path = checkpoint / name
    size_bytes = path.stat().st_size
    for length in reversed(range(size_bytes)):
        os.truncate(path, length)
        assert [str(problem) for problem in verify(checkpoint)] == [
            f"{name}: holds {length} bytes, but {size_bytes} were saved"
        ]


@pytest.mark.parametrize("name", [SHARD, PART])
def test_a_longer_file_is_found(name: str, checkpoint: Path) -> None:
    with (checkpoint / name).open("ab") as stream:
        stream.write(b" ")
    assert [problem.subject for problem in verify(checkpoint)] == [name]


@pytest.mark.parametrize("name", [SHARD, PART])
def test_a_missing_file_is_found(name: str, checkpoint: Path) -> None:
    (checkpoint / name).unlink()
    assert [str(problem) for problem in verify(checkpoint)] == [
        f"{name}: cannot be read (No such file or directory)"
    ]


def test_a_file_of_another_step_is_found(checkpoint: Path) -> None:
    (checkpoint / SHARD).write_bytes(shard_bytes(Entry("model.weight@2,0", "float32", (1, 3)), fill=4))
    assert [problem.text for problem in verify(checkpoint)] == [
        "its SHA-256 differs from the one that was saved, in model.weight@2,0"
    ]


@pytest.mark.parametrize("name", [SHARD, PART])
def test_a_linked_file_is_not_followed(name: str, checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / name).rename(tmp_path / "elsewhere")
    (checkpoint / name).symlink_to(tmp_path / "elsewhere")
    assert [problem.subject for problem in verify(checkpoint)] == [name]


@pytest.mark.parametrize("name", [SHARD, PART])
def test_a_pipe_does_not_hang(name: str, checkpoint: Path) -> None:
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    assert [problem.text for problem in verify(checkpoint)] == [
        f"{name} can't be read: it is a named pipe, not a plain file"
    ]


def test_the_part_of_another_save_is_found(checkpoint: Path) -> None:
    other = save_sample(checkpoint.parent, step=4)
    for name in (SHARD, PART):
        (checkpoint / name).write_bytes((other / name).read_bytes())
    assert [str(problem) for problem in verify(checkpoint)] == [
        f"{PART}: its SHA-256 differs from the one that was saved"
    ]


def test_one_part_in_place_of_another_is_found(checkpoint: Path) -> None:
    for suffix in (".json", ".safetensors"):
        data = (checkpoint / f"rank-00000{suffix}").read_bytes()
        (checkpoint / f"rank-00001{suffix}").write_bytes(data)
    assert [problem.subject for problem in verify(checkpoint)] == [PART]


def put_part(checkpoint: Path, text: str) -> None:
    """Replaces a part, and its size and hash in the manifest, as whoever knows how would."""
    (checkpoint / PART).write_text(text)
    fields = json.loads((checkpoint / "manifest.json").read_text())
    del fields["sha256"]
    entry = {"size_bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    fields["parts"][1].update(entry)
    (checkpoint / "manifest.json").write_text(seal(Manifest.model_validate_json(json.dumps(fields))))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"step":3', '"step":4', "is of rank 1 at step 4"),
        ('"rank":1', '"rank":0', "is of rank 0 at step 3"),
        (
            "weight@2,0",
            "weight@1,0",
            "holds model.weight@1,0, which the manifest does not place there",
        ),
        ('"model.weight@2,0"', '"model.bias@0":"' + "0" * 64 + '","model.weight@2,0"', "holds model.bias@0"),
        ('"rank":1', '"rank":1,"rank":1', 'the key "rank" stands twice'),
        ('"model.weight@2,0":"', '"model.weight@2,0":"x', "is not a part: chunks.model.weight@2,0"),
        ('{"step"', '[{"step"', "is not a part"),
        ('"step":3', '"step":3,"comment":""', "is not a part: comment"),
    ],
)
def test_a_part_that_lies_with_its_hash_renewed_is_found(
    old: str, new: str, problem: str, checkpoint: Path
) -> None:
    text = (checkpoint / PART).read_text()
    assert old in text
    put_part(checkpoint, text.replace(old, new))
    [found] = verify(checkpoint)
    assert (found.subject, problem in found.text) == (PART, True), found


def test_a_part_without_its_chunk_is_found(checkpoint: Path) -> None:
    put_part(checkpoint, '{"step":3,"rank":1,"chunks":{}}')
    assert [str(problem) for problem in verify(checkpoint)] == [f"{PART}: does not hold model.weight@2,0"]


def test_a_shard_length_that_its_tensors_do_not_have_is_found(checkpoint: Path) -> None:
    fields = json.loads((checkpoint / "manifest.json").read_text())
    del fields["sha256"]
    fields["parts"][1]["shard_bytes"] += 1
    (checkpoint / "manifest.json").write_text(seal(Manifest.model_validate_json(json.dumps(fields))))
    [problem] = verify(checkpoint)
    assert problem.subject == SHARD


def test_a_chunk_of_another_dtype_than_its_file_is_found(checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["contents"]["tensors"]["model.weight"]["dtype"] = "int32"
    (checkpoint / "manifest.json").write_text(seal(Manifest.model_validate_json(json.dumps(manifest))))
    assert [problem.text for problem in verify(checkpoint)] == [
        "its header is not the one that was saved",
        "its header is not the one that was saved",
    ]


def test_an_invalid_manifest_is_a_problem(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text("{}")
    assert [problem.subject for problem in verify(checkpoint)] == ["manifest.json"]


def test_only_the_named_parts_are_read(checkpoint: Path) -> None:
    manifest = read_manifest(checkpoint)
    (checkpoint / SHARD).unlink()
    assert verify_parts(checkpoint, manifest=manifest, parts=[Share(0)]) == ()
    assert len(verify_parts(checkpoint, manifest=manifest, parts=[Share(1)])) == 1


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("num_writers", [1, 2, 3, 4, 6])
def test_any_number_of_ranks_share_every_chunk_once(num_writers: int, world_size: int) -> None:
    entry = PartEntry(size_bytes=1, sha256="0" * 64, shard_bytes=1)
    # Every second rank writes nothing.
    parts = tuple(entry if rank % 2 else None for rank in range(2 * num_writers))
    manifest = manifest_at(3).model_copy(update={"parts": parts})
    found = [
        (share.rank, index, share.count)
        for rank in range(world_size)
        for share in shares(manifest, rank=rank, world_size=world_size)
        for index in [share.index]
    ]
    counts = {rank: count for rank, _, count in found}
    assert sorted(found) == sorted(
        (rank, index, count) for rank, count in counts.items() for index in range(count)
    )
    assert sorted(counts) == list(range(1, 2 * num_writers, 2))


@pytest.mark.parametrize("num_groups", [1, 2, 3, 7])
def test_division_keeps_every_item_and_their_order(num_groups: int) -> None:
    items = list(range(20))
    groups = divided(items, [item % 5 for item in items], num_groups=num_groups)
    assert len(groups) == num_groups
    assert [item for group in groups for item in group] == items


def tensor(shape: tuple[int, ...], *boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> Whole:
    return Whole(shape, tuple(Box(offsets, sizes) for offsets, sizes in boxes))


class Whole(NamedTuple):
    shape: tuple[int, ...]
    chunks: tuple[Box, ...]


@pytest.mark.parametrize(
    "whole",
    [
        tensor((), ((), ())),
        tensor((0, 4)),
        tensor((3,), ((2,), (1,)), ((0,), (2,))),
        tensor((2, 2), ((0, 0), (1, 1)), ((0, 1), (1, 1)), ((1, 0), (1, 2))),
    ],
)
def test_chunks_that_hold_every_element_once_are_accepted(whole: Whole) -> None:
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
def test_chunks_that_do_not_are_refused(broken: Whole, problem: str) -> None:
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


def test_a_header_is_what_the_library_reads(tmp_path: Path) -> None:
    entries = (Entry("a", "float64", ()), Entry("b", "bfloat16", (2, 3)), Entry("c", "bool", (0,)))
    path = tmp_path / "x.safetensors"
    path.write_bytes(encode_header(entries) + bytes(8 + 12))
    with safe_open(path, framework="pt") as file:
        found = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  it is not a dict
        shapes = {key: (one.get_dtype(), tuple(one.get_shape())) for key, one in found.items()}
    assert shapes == {"a": ("F64", ()), "b": ("BF16", (2, 3)), "c": ("BOOL", (0,))}
