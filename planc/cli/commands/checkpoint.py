"""`planc checkpoint`."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planc.cli.support import converting
from planc.cli.support.exits import CLEAN, FINDINGS, UsageError
from planc.cli.support.export import export
from planc.cli.support.libraries import require_libraries
from planc.runtime.checkpoint_format.compare import comparable, differences
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import (
    committed_steps,
    leftovers,
    step_directory,
    step_of,
    strange_steps,
)
from planc.runtime.checkpoint_format.manifest import FileEntry, Manifest
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.run_directory.plain_files import kind_of
from planc.runtime.run_directory.run_files import PLAN_NAME
from planc.tables import format_bytes, plural, render_table
from planc.vocab import DType

DESCRIPTION = """\
Look at checkpoints, without starting a run. `ls` lists those of a run's folder. `verify` reads every byte
of one and compares it with what was saved: sizes, SHA-256, headers, and that every element of every tensor
is there once. `diff` says how two differ: steps, data, mesh, versions, tensors. What changed between the
plans that saved them, `planc diff` says. `export` writes one as a folder that transformers loads: weights
under transformers' names, config and tokenizer; one process does it, whatever mesh the checkpoint was saved
on, with one tensor in memory at a time, after it has verified all. `convert` makes plain DCP of one, for
torch.distributed.checkpoint and what reads it, or one of planc's of plain DCP. What plain DCP says of its
tensors is a pickle: a program that may do anything to who reads it, so that is read only with --unpickle, by
a process without files, sockets and environment, which refuses every name but those of DCP's metadata."""

EPILOG = """\
examples:
  planc checkpoint ls runs/llama
  planc checkpoint verify runs/llama                         (all of the run's)
  planc checkpoint verify runs/llama/checkpoints/step-500
  planc checkpoint diff runs/a runs/b --values               (the last of each; every value is compared)
  planc checkpoint export runs/llama --hf models/llama-tuned --dtype bfloat16
  planc checkpoint convert runs/llama --dcp exports/llama-dcp
  planc checkpoint convert exports/llama-dcp --planc converted --unpickle"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=tuple(_ACTIONS), metavar="ACTION", help="ls, verify, diff, export or convert"
    )
    parser.add_argument(
        "checkpoints", nargs="+", metavar="CHECKPOINT", help="a checkpoint's folder, or a run's"
    )
    parser.add_argument(
        "--values", action="store_true", help="diff: compare the values too, which needs torch"
    )
    parser.add_argument("--hf", metavar="FOLDER", help="export: the folder to write")
    parser.add_argument(
        "--dtype",
        choices=[dtype.value for dtype in DType],
        help="export: of parameters (default: the checkpoint's own)",
    )
    parser.add_argument(
        "--model",
        metavar="FOLDER",
        help="export, convert: the model's folder (export's default: where the run's plan says)",
    )
    converting.add_arguments(parser)
    parser.add_argument("--output-format", choices=("text", "json"), default="text")


def run(arguments: Namespace) -> int:
    """0, or 1 where `verify` finds damage; UsageError for what is no checkpoint."""
    for option, actions in _OPTIONS.items():
        if getattr(arguments, option) not in (None, False) and arguments.action not in actions:
            raise UsageError(f"--{option} is for `planc checkpoint {' or '.join(actions)}`")
    try:
        code: int = _ACTIONS[arguments.action](arguments)
    except CheckpointError as error:
        raise UsageError(f"{error.message}\n{error.help}") from error
    return code


_OPTIONS = {
    "values": ("diff",),
    "hf": ("export",),
    "dtype": ("export",),
    "model": ("export", "convert"),
    **dict.fromkeys(converting.OPTIONS, ("convert",)),
}


def _ls(arguments: Namespace) -> int:
    found = [row for folder in map(Path, arguments.checkpoints) for row in _rows(folder)]
    if arguments.output_format == "json":
        print(json.dumps(found, indent=2))
    else:
        cells = [
            [str(row[name]) if name != "size_bytes" else _size(row) for name in _COLUMNS] for row in found
        ]
        sys.stdout.write(render_table(cells, header=tuple(_COLUMNS.values()), right=(1, 2, 3)))
    return CLEAN


_COLUMNS = {
    "path": "checkpoint",
    "step": "step",
    "samples": "samples",
    "size_bytes": "size",
    "mesh": "mesh",
    "plan_hash": "plan",
    "state": "state",
}


def _size(row: Mapping[str, Any]) -> str:
    return format_bytes(row["size_bytes"]) if row["size_bytes"] != "" else ""


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """What `ls` says of a folder's checkpoints, lowest step first, and of what dead saves have left."""
    for checkpoint in _checkpoints(folder):
        try:
            yield _row(checkpoint, read_manifest(checkpoint))
        except CheckpointError as error:
            yield {
                **dict.fromkeys(_COLUMNS, ""),
                "path": str(checkpoint),
                "state": f"damaged: {error.message}",
            }
    if step_of(folder.resolve()) is None:
        for path in leftovers(_root(folder)):
            yield _empty_row(path, "left by a save that died")
        for path, kind in strange_steps(_root(folder)):
            yield _empty_row(path, f"not a checkpoint: it is a {kind}")


def _empty_row(path: Path, state: str) -> dict[str, Any]:
    return {**dict.fromkeys(_COLUMNS, ""), "path": str(path), "state": state}


def _row(checkpoint: Path, manifest: Manifest) -> dict[str, Any]:
    mesh = ", ".join(f"{dim} {size}" for dim, size in manifest.mesh.items() if size > 1)
    return {
        "path": str(checkpoint),
        "step": manifest.step,
        "samples": manifest.progress.samples_consumed,
        "size_bytes": sum(file.size_bytes for _, file in _files(manifest)),
        "mesh": mesh or "1 rank",
        "plan_hash": manifest.plan_hash[:12],
        "state": "committed" if _is_whole(checkpoint, manifest) else "incomplete: `verify` says what is gone",
    }


def _is_whole(checkpoint: Path, manifest: Manifest) -> bool:
    """Whether every file is there with its size; what is in them is for `verify`."""
    files = ((checkpoint / name, file.size_bytes) for name, file in _files(manifest))
    return all(kind_of(path) == "file" and path.stat().st_size == size_bytes for path, size_bytes in files)


def _files(manifest: Manifest) -> tuple[tuple[str, FileEntry], ...]:
    """Every file that a manifest names, and what it says of it."""
    plan = ((PLAN_NAME, manifest.plan),) if manifest.plan is not None else ()
    return (*manifest.files.items(), *plan)


def _verify(arguments: Namespace) -> int:
    problems = {
        str(checkpoint): verify(checkpoint)
        for folder in map(Path, arguments.checkpoints)
        for checkpoint in _checkpoints(folder)
    }
    if arguments.output_format == "json":
        found = {path: [asdict(problem) for problem in listed] for path, listed in problems.items()}
        print(json.dumps(found, indent=2))
    else:
        for path, listed in problems.items():
            print(
                f"{path}: {plural(len(listed), 'problem') if listed else 'sound, every byte as it was saved'}"
            )
            for problem in listed:
                print(f"  {problem}")
    return FINDINGS if any(problems.values()) else CLEAN


def _diff(arguments: Namespace) -> int:
    if len(arguments.checkpoints) != 2:
        raise UsageError("`planc checkpoint diff` compares two checkpoints")
    (first, before), (second, after) = (
        (path, read_manifest(path)) for path in map(_one, arguments.checkpoints)
    )
    facts = differences(before, after)
    names = comparable(before, after)
    values = list(_distances(names, (first, before), (second, after))) if arguments.values else None
    if arguments.output_format == "json":
        found = {"differences": [asdict(one) for one in facts], "values": values}
        print(json.dumps(found, indent=2))
        return CLEAN
    sys.stdout.write(render_table([(one.name, one.before or "-", "->", one.after or "-") for one in facts]))
    print(f"{plural(len(names), 'tensor')} in both, of one shape and dtype")
    if values is not None:
        _print_values(values)
    return CLEAN


def _distances(
    names: tuple[str, ...], first: tuple[Path, Manifest], second: tuple[Path, Manifest]
) -> Iterator[dict[str, Any]]:
    require_libraries("planc checkpoint diff --values", "torch")
    # It imports torch, which takes a second.
    from planc.runtime.torch.checkpoint.chunks import distances

    for path, _ in (first, second):
        if problems := verify(path):
            raise UsageError(f"{path} is damaged: {problems[0]}\n`planc checkpoint verify {path}` says all")
    return (asdict(distance) for distance in distances(names, first, second))


def _print_values(values: list[dict[str, Any]]) -> None:
    apart = sorted((one for one in values if one["largest"]), key=lambda one: -one["largest"])
    print(f"{len(values) - len(apart)} equal in every bit, {len(apart)} apart")
    rows = [(one["name"], f"{one['largest']:.3e}") for one in apart[:_MAX_LISTED]]
    sys.stdout.write(render_table(rows, right=(1,), indent="  "))
    if len(apart) > _MAX_LISTED:
        print(f"  and {len(apart) - _MAX_LISTED} more")


_MAX_LISTED = 20


def _export(arguments: Namespace) -> int:
    if len(arguments.checkpoints) != 1 or not arguments.hf:
        raise UsageError("`planc checkpoint export` takes one checkpoint, and `--hf FOLDER` to write")
    checkpoint = _one(arguments.checkpoints[0])
    return export(checkpoint, folder=arguments.hf, model=arguments.model, dtype=arguments.dtype)


def _convert(arguments: Namespace) -> int:
    if len(arguments.checkpoints) != 1:
        raise UsageError("`planc checkpoint convert` takes one checkpoint")
    if arguments.dcp:
        return converting.to_plain(_one(arguments.checkpoints[0]), arguments)
    return converting.from_plain(Path(arguments.checkpoints[0]), arguments)


def _root(folder: Path) -> Path:
    """The folder of steps: a run's, or the one named itself."""
    return folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder


def _checkpoints(folder: Path) -> tuple[Path, ...]:
    """The checkpoint named, or all of the run's folder that is named; UsageError where there is none."""
    if step_of(folder.resolve()) is not None:
        if not folder.is_dir():
            raise UsageError(_absent(folder))
        return (folder,)
    root = _root(folder)
    found = tuple(step_directory(root, step=step) for step in committed_steps(root))
    if not found:
        raise UsageError(f"{folder} is no checkpoint, and no run's folder with one: name a `step-N`")
    return found


def _absent(folder: Path) -> str:
    steps = committed_steps(folder.resolve().parent)
    there = (
        f"there are {', '.join(f'step-{step}' for step in steps[-_MAX_LISTED:])}" if steps else "nor others"
    )
    return f"{folder} is not there: {there}"


def _one(name: str) -> Path:
    """The checkpoint named, or the last of the run's folder."""
    return _checkpoints(Path(name))[-1]


_ACTIONS = {"ls": _ls, "verify": _verify, "diff": _diff, "export": _export, "convert": _convert}
