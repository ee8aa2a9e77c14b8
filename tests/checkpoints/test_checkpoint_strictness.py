"""Checkpoints that lie with their hashes renewed: `verify` accepts nothing that a reader then refuses."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError, safe_open

from planc.runtime.checkpoint_format import commit
from planc.runtime.checkpoint_format.verify import verify
from tests.checkpoints.sample import manifest_at, write_shards

SHARD = "rank-00001.safetensors"
SEED = 20261122


def resealed(fields: dict[str, Any]) -> str:
    """The text of a manifest with these fields, sealed as whoever knows how would seal it."""
    text = json.dumps(fields, separators=(",", ":"))
    return f'{text[:-1]},"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}'


def edit(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = checkpoint / "manifest.json"
    fields = json.loads(path.read_text())
    del fields["sha256"]
    change(fields)
    path.write_text(resealed(fields))


def put_shard(checkpoint: Path, content: bytes) -> None:
    """Replaces a shard, which keeps its length: the manifest and the part state no hash of its header."""
    size_bytes = (checkpoint / SHARD).stat().st_size
    (checkpoint / SHARD).write_bytes(content[:size_bytes].ljust(size_bytes, b"\0"))


def shard(fields: object, *, num_bytes: int) -> bytes:
    header = json.dumps(fields).encode()
    return len(header).to_bytes(8, "little") + header + bytes(num_bytes)


WANTED = "model.weight@2,0"


def field(begin: int, end: int, *, length: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": [1, length], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("fields", "num_bytes"),
    [
        ({WANTED: field(0, 12, length=3), "other": field(8, 20, length=3)}, 20),
        ({WANTED: field(0, 12, length=3), "other": field(0, 12, length=3)}, 12),
        ({WANTED: field(4, 16, length=3)}, 16),
        ({WANTED: field(0, 12, length=3)}, 16),
        ({WANTED: field(0, 12, length=3), "other": field(16, 20, length=1)}, 20),
    ],
    ids=["overlap", "one place for two", "bytes before", "bytes after", "a hole"],
)
def test_a_shard_that_the_library_refuses_is_a_problem(
    fields: dict[str, object], num_bytes: int, checkpoint: Path
) -> None:
    put_shard(checkpoint, shard(fields, num_bytes=num_bytes))
    with pytest.raises(SafetensorError), safe_open(checkpoint / SHARD, framework="numpy"):
        pass
    assert [problem.subject for problem in verify(checkpoint)] == [SHARD]


def mutants(seed: int, *, count: int) -> Iterator[bytes]:
    """Files of one to three tensors whose headers are changed at random, some of them not at all."""
    chosen = random.Random(seed)
    for _ in range(count):
        fields: dict[str, Any] = {}
        end = 0
        for index in range(chosen.randint(1, 3)):
            shape = [chosen.choice((0, 1, 2, 3)) for _ in range(chosen.randint(0, 2))]
            dtype, width = chosen.choice((("F64", 8), ("F32", 4), ("BF16", 2), ("U8", 1)))
            begin, end = end, end + width * _product(shape)
            fields[f"t{index}"] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        num_bytes = max(0, end + chosen.choice((0, 0, 0, 0, -1, 1, 8)))
        for _ in range(chosen.choice((0, 0, 1, 1, 2))):
            _spoil(fields, chosen)
        text = json.dumps(fields)
        if chosen.random() < 0.2:
            text = _spoiled_text(text, chosen)
        header = text.encode()
        length = len(header) + chosen.choice((0, 0, 0, 0, 0, 1, -1))
        yield length.to_bytes(8, "little", signed=False) + header + bytes(num_bytes)


def _product(shape: list[int]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


def _spoil(fields: dict[str, Any], chosen: random.Random) -> None:
    one = fields[chosen.choice([name for name in fields if name.startswith("t")])]
    match chosen.randrange(6):
        case 0:
            moved = chosen.choice((-8, -4, -1, 1, 4, 8))
            *begin, end = one["data_offsets"] or [0]
            one["data_offsets"] = [*begin, end + moved]
        case 1:
            one["shape"] = [*(one["shape"] or []), chosen.choice((0, 1, 2, -1, 2**63, 2**64, 1.0, True, "1"))]
        case 2:
            one["dtype"] = chosen.choice(("F32", "F16", "I8", "F4", "f32", None))
        case 3:
            one["data_offsets"] = (one["data_offsets"] or [])[: chosen.randrange(2)]
        case 4:
            fields["__metadata__"] = chosen.choice(({}, {"a": "b"}, {"a": 1}, None, []))
        case _:
            one[chosen.choice(("shape", "dtype", "data_offsets"))] = None


def _spoiled_text(text: str, chosen: random.Random) -> str:
    match chosen.randrange(4):
        case 0:
            return f" {text}"
        case 1:
            return f"{text}   "
        case 2:
            return text[:-1] + ',"t0":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
        case _:
            return text[:-1]


def test_no_other_header_is_accepted(checkpoint: Path) -> None:
    sound = (checkpoint / SHARD).read_bytes()
    for content in mutants(SEED, count=500):
        put_shard(checkpoint, content)
        assert [problem.subject for problem in verify(checkpoint)] == [SHARD]
    put_shard(checkpoint, sound)
    assert verify(checkpoint) == ()


@pytest.mark.parametrize("change", [str.upper, lambda text: text.replace(",", ", ", 1)[: len(text)]])
def test_a_header_that_only_looks_different_is_refused(
    change: Callable[[str], str], checkpoint: Path
) -> None:
    content = (checkpoint / SHARD).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].decode()
    assert change(header) != header
    put_shard(checkpoint, content[:8] + change(header).encode() + content[8 + length :])
    assert [str(problem) for problem in verify(checkpoint)] == [
        f"{SHARD}: its header is not the one that was saved"
    ]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("progress.samples_consumed", 10**30),
        ("progress.samples_consumed", 2**63),
        ("progress.samples_consumed", -1),
        ("progress.samples_consumed", 24.0),
        ("progress.samples_consumed", True),
        ("progress.skipped_in_a_row", 4),
        ("progress.skipped_in_a_row", 10**30),
        ("progress.epoch", 25),
        ("progress.epoch", 10**30),
        ("progress.seed", 10**30),
        ("progress.recent_losses", [float("nan")]),
        ("progress.recent_losses", [float("inf")]),
        ("progress.scheduler", {"last_lr": float("nan")}),
        ("progress.batch", {"samples": 7}),
        ("progress.batch", {"samples": 0}),
        ("progress.batch", {"samples": 8, "since_step": 4, "since_samples": 32}),
        ("progress.data_fingerprint", "x" * 10**6),
        ("step", 10**30),
        ("mesh.dp_shard", 10**30),
        ("parts.1.size_bytes", 10**30),
        ("parts.1.shard_bytes", 10**30),
        ("contents.grids.0.writers", [[0, 1, 10**30]]),
        ("contents.grids.0.cuts", [[[1, 2**62], [1, 1]], [[3, 1]]]),
        ("contents.tensors.model.weight.grid", 10**30),
        ("contents.tensors.model.weight.shape", [10**30, 3]),
        ("plan", {"size_bytes": 2**40, "sha256": "0" * 64}),
    ],
)
def test_a_number_that_no_run_writes_is_refused(place: str, value: object, checkpoint: Path) -> None:
    names = [
        int(name) if name.isdigit() else name.replace("+", ".")
        for name in place.replace("model.weight", "model+weight").split(".")
    ]

    def change(fields: dict[str, Any]) -> None:
        inner: Any = fields
        for name in names[:-1]:
            inner = inner[name]
        inner[names[-1]] = value

    edit(checkpoint, change)
    [problem] = verify(checkpoint)
    assert problem.subject == "manifest.json"


def test_samples_that_the_steps_make_are_accepted(checkpoint: Path) -> None:
    edit(checkpoint, lambda fields: fields["progress"].update(batch={"samples": 8}))
    assert verify(checkpoint) == ()
    edit(
        checkpoint,
        lambda fields: fields["progress"].update(batch={"samples": 4, "since_step": 1, "since_samples": 16}),
    )
    assert verify(checkpoint) == (), "the batch was changed after step 1"


@pytest.mark.parametrize("key", ["step", "progress", "samples_consumed", "model.weight", "size_bytes"])
def test_a_key_that_stands_twice_is_refused(key: str, checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    fields = json.loads(path.read_text())
    del fields["sha256"]
    sealed = resealed(fields)
    start = sealed.index(f'"{key}":')
    _, end = json.JSONDecoder().raw_decode(sealed, start + len(key) + 3)
    text = sealed[: sealed.rindex(',"sha256"')] + "}"
    text = text[:start] + sealed[start:end] + "," + text[start:]
    path.write_text(f'{text[:-1]},"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}')
    [problem] = verify(checkpoint)
    assert f'the key "{key}" stands twice' in problem.text


def test_a_plan_that_is_not_as_it_was_saved_is_a_problem(tmp_path: Path) -> None:
    temporary = commit.begin(tmp_path, step=3)
    write_shards(temporary, step=3)
    directory = commit.finish(temporary, manifest=manifest_at(3), plan="a plan")
    assert verify(directory) == ()
    (directory / "plan.json").write_text("b plan")
    [problem] = verify(directory)
    assert str(problem).startswith("plan.json: ")
    (directory / "plan.json").unlink()
    assert [problem.subject for problem in verify(directory)] == ["plan.json"]
