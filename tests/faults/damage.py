"""Flipped bits, and files cut, lost, doubled and exchanged: nothing of a damaged checkpoint may be loaded."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from planc.runtime.checkpoint_format.errors import CheckpointError, CorruptCheckpointError
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.manifest import MANIFEST_NAME
from planc.runtime.torch.checkpoint import load
from tests.faults.outcome import Injection, Row
from tests.faults.state import build, digests, fill, saved_root

STEP, OTHER = 1, 2
SEED = 20261121


def refusal_problem(directory: Path) -> str:
    """Unless loading is refused as damage, and has changed nothing of the model before."""
    state = build(world_size=1)
    fill(state, step=99)
    before = digests(state)
    try:
        load(state, directory=directory)
    except CorruptCheckpointError:
        return "" if digests(state) == before else "refused, but tensors have changed"
    except CheckpointError as error:
        return f"refused as {type(error).__name__}: {error.message}"
    return "loaded as if nothing were wrong"


def flip_row(folder: Path, *, num_flips: int) -> Row:
    """Single bits, evenly over the files and at random within each."""
    directory = step_directory(saved_root(folder / "flips"), step=STEP)
    names = sorted(path.name for path in directory.iterdir())
    chosen = random.Random(SEED)
    injections = []
    for index in range(num_flips):
        path = directory / names[index % len(names)]
        whole = path.read_bytes()
        position, bit = chosen.randrange(len(whole)), chosen.randrange(8)
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :])
        injections.append(_refused(f"bit {bit} of byte {position} of {path.name}", directory))
        path.write_bytes(whole)
    return Row("7", "a flipped bit in any file", _PROMISE, tuple(injections))


def exchange_row(folder: Path) -> Row:
    """Files cut, lost, doubled and exchanged, between ranks, steps and runs."""
    root = saved_root(folder / "whole", steps=(STEP, OTHER))
    injections = []
    for name, damage in _damages():
        copy = Path(shutil.copytree(root, folder / "damaged"))
        damage(step_directory(copy, step=STEP), step_directory(copy, step=OTHER))
        injections.append(_refused(name, step_directory(copy, step=STEP)))
        shutil.rmtree(copy)
    return Row(
        "8",
        "files cut, lost, lengthened, doubled, exchanged between ranks and steps",
        _PROMISE,
        tuple(injections),
    )


_PROMISE = "refused as damage (exit 7) before a tensor of the model has changed"
_SHARDS = ("rank-00000.safetensors", "rank-00001.safetensors")
_PARTS = ("rank-00000.json", "rank-00001.json")

Damage = Callable[[Path, Path], object]
"""Done to a step's directory, with another step's next to it."""


def _damages() -> Iterator[tuple[str, Damage]]:
    for name in (*_SHARDS, *_PARTS, MANIFEST_NAME):
        for kept in (0.0, 0.1, 0.5, 0.9, 1.0):
            yield f"{name} cut to {kept:.0%} less a byte", _cut(name, kept=kept)
        yield f"{name} lost", _lose(name)
        yield f"{name} with a byte more", _lengthen(name)
        yield f"{name} with itself behind it", _double(name)
        yield f"{name} all zeros", _zero(name)
        yield f"{name} of another step", _take(name)
    yield "shards of two ranks exchanged", _exchange(*_SHARDS)
    yield "parts of two ranks exchanged", _exchange(*_PARTS)
    yield (
        "one rank's part in place of the other's",
        lambda one, _: shutil.copy(one / _PARTS[0], one / _PARTS[1]),
    )
    yield (
        "one rank's shard in place of the other's",
        lambda one, _: shutil.copy(one / _SHARDS[0], one / _SHARDS[1]),
    )
    yield (
        "both shards of another step",
        lambda one, other: [shutil.copy(other / name, one / name) for name in _SHARDS],
    )
    yield (
        "both files of a rank of another step",
        lambda one, other: [shutil.copy(other / name, one / name) for name in (_SHARDS[0], _PARTS[0])],
    )
    yield "the whole of another step", _replace


def _cut(name: str, *, kept: float) -> Damage:
    def damage(one: Path, _: Path) -> None:
        data = (one / name).read_bytes()
        (one / name).write_bytes(data[: max(0, int(len(data) * kept) - 1)])

    return damage


def _lose(name: str) -> Damage:
    return lambda one, _: (one / name).unlink()


def _lengthen(name: str) -> Damage:
    return lambda one, _: (one / name).write_bytes((one / name).read_bytes() + b"\0")


def _double(name: str) -> Damage:
    return lambda one, _: (one / name).write_bytes((one / name).read_bytes() * 2)


def _zero(name: str) -> Damage:
    return lambda one, _: (one / name).write_bytes(bytes((one / name).stat().st_size))


def _take(name: str) -> Damage:
    return lambda one, other: shutil.copy(other / name, one / name)


def _exchange(*names: str) -> Damage:
    def damage(one: Path, _: Path) -> None:
        first, second = (one / name for name in names)
        first.rename(one / "aside")
        second.rename(first)
        (one / "aside").rename(second)

    return damage


def _replace(one: Path, other: Path) -> None:
    shutil.rmtree(one)
    shutil.copytree(other, one)


def _refused(name: str, directory: Path) -> Injection:
    began = time.monotonic()
    problem = refusal_problem(directory)
    return Injection(name, problem, time.monotonic() - began)
