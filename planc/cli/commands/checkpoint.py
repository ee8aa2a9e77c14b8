"""`planc checkpoint`."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planc.cli.support import converting, options, pushing
from planc.cli.support.best_checkpoints import best_step, losses_text
from planc.cli.support.checkpoints import CHECKPOINT, checkpoints_of, newest_of, root_of
from planc.cli.support.exits import CLEAN, FINDINGS, UsageError, require_libraries
from planc.cli.support.export import export, export_adapter, model_of, named_model
from planc.cli.support.parser import add_subcommand
from planc.cli.support.terminal import write_view
from planc.runtime.checkpoint_format.base import base_problems, hash_files
from planc.runtime.checkpoint_format.best import judged_losses
from planc.runtime.checkpoint_format.compare import comparable, differences
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.layout import (
    leftovers,
    step_directory,
    step_of,
    strange_steps,
)
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.part import part_name, shard_name
from planc.runtime.checkpoint_format.part_files import Problem
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.errors import RunError
from planc.runtime.files.plain_files import kind_of
from planc.runtime.files.run_files import PLAN_NAME
from planc.runtime.model_files import weight_names
from planc.tables import format_bytes, plural, render_table
from planc.vocab import DType

DESCRIPTION = "Inspect, export, push and convert checkpoints, without starting a run."

EPILOG = """\
examples:
  planc checkpoint ls runs/llama
  planc checkpoint verify runs/llama
  planc checkpoint diff runs/a runs/b --values
  planc checkpoint export runs/llama --hf models/llama-tuned --dtype bfloat16
  planc checkpoint push runs/llama
  planc checkpoint convert runs/llama --dcp exports/llama-dcp

`planc checkpoint COMMAND --help` shows the options of a command."""

_LS = """\
List a run's checkpoints, and directories that an interrupted save left behind."""

_VERIFY = """\
Read every byte of a checkpoint, or of all checkpoints of a run, and compare it with what was saved: file
sizes, SHA-256, headers, and that every element of every tensor is stored exactly once. The weight files of
frozen parameters that a checkpoint leaves out are compared too."""

_DIFF = """\
Compare two checkpoints: steps, data, mesh, versions and tensors. To compare the plans that saved them, use
`planc diff`."""

_EXPORT = """\
Write a checkpoint as a directory that transformers loads: weights under transformers' names, config and
tokenizer. Adapters are merged, or written alone as a directory that peft loads. It verifies the whole
checkpoint first. One process is enough for a checkpoint saved on any mesh; it holds one tensor in memory at a
time."""

_PUSH = """\
Push the exports of a run to the repositories of the Hugging Face Hub that its plan states, or one export to
another repository. A push is one commit. It replaces the weights of an earlier one.

The Hub's own library reads HF_ENDPOINT, and the token from HF_TOKEN or from `hf auth login`."""

_CONVERT = """\
Convert a checkpoint to plain DCP, for torch.distributed.checkpoint and tools that read it, or plain DCP to a
planc checkpoint.

Plain DCP stores its metadata as a pickle, which can execute arbitrary code when loaded. planc reads it only
with --unpickle, in a process without files, sockets or environment variables that allows DCP's metadata
classes alone."""

_EXAMPLES = {
    "ls": "  planc checkpoint ls runs/llama",
    "verify": "  planc checkpoint verify runs/llama                         (every checkpoint of the run)\n"
    "  planc checkpoint verify runs/llama/checkpoints/step-500",
    "diff": "  planc checkpoint diff runs/a runs/b --values               (compares the newest of each)",
    "export": "  planc checkpoint export runs/llama --hf models/llama-tuned --dtype bfloat16\n"
    "  planc checkpoint export runs/llama --hf models/llama-best --best",
    "push": "  planc checkpoint push runs/llama                           (as the plan states)\n"
    "  planc checkpoint push models/llama-tuned --to org/llama-tuned --public",
    "convert": "  planc checkpoint convert runs/llama --dcp exports/llama-dcp\n"
    "  planc checkpoint convert exports/llama-dcp --planc converted --unpickle",
}


def add_arguments(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="COMMAND", required=True, title="commands")
    ls = add_subcommand(commands, "ls", "list a run's checkpoints", _LS, examples=_EXAMPLES)
    _add_checkpoints(ls)
    verify_parser = add_subcommand(
        commands, "verify", "check every byte of checkpoints", _VERIFY, examples=_EXAMPLES
    )
    _add_checkpoints(verify_parser)
    compare = add_subcommand(commands, "diff", "compare two checkpoints", _DIFF, examples=_EXAMPLES)
    compare.add_argument("old", metavar="OLD", help=CHECKPOINT)
    compare.add_argument("new", metavar="NEW", help="as OLD")
    compare.add_argument("--values", action="store_true", help="also compare tensor values; needs torch")
    verify_parser.add_argument(
        "--model", metavar="DIR", help="the directory of frozen parameters (default: as in the run's plan)"
    )
    for one in (ls, verify_parser, compare):
        options.add_output_format_argument(one)
    options.add_quiet_argument(verify_parser, help="print problems only")
    exporting = add_subcommand(
        commands, "export", "write a checkpoint for transformers or peft", _EXPORT, examples=_EXAMPLES
    )
    exporting.add_argument("checkpoint", metavar="CHECKPOINT", help=CHECKPOINT)
    written = exporting.add_mutually_exclusive_group(required=True)
    written.add_argument(
        "--hf", metavar="DIR", help="directory to write for transformers, with adapters merged"
    )
    written.add_argument("--adapter", metavar="DIR", help="directory to write for peft: adapters alone")
    exporting.add_argument(
        "--best",
        nargs="?",
        const="",
        metavar="NAME",
        help="of a run, export the checkpoint with the lowest loss in the evaluation NAME (default: the only "
        "one with `patience` or `keep_best`)",
    )
    exporting.add_argument(
        "--dtype",
        choices=[dtype.value for dtype in DType],
        metavar="DTYPE",
        help=f"dtype of parameters: {', '.join(DType)} (default: as saved)",
    )
    exporting.add_argument(
        "--model", metavar="DIR", help="the model's directory (default: as in the run's plan)"
    )
    exporting.add_argument(
        "--ema",
        action="store_true",
        help="export the moving averages of the trained weights (train.ema_decay)",
    )
    options.add_run_extensions_argument(exporting)
    options.add_quiet_argument(exporting, help="print errors only")
    push = add_subcommand(commands, "push", "push exports to the Hugging Face Hub", _PUSH, examples=_EXAMPLES)
    pushing.add_arguments(push)
    options.add_quiet_argument(push, help="print errors only")
    convert = add_subcommand(
        commands, "convert", "convert between planc's format and plain DCP", _CONVERT, examples=_EXAMPLES
    )
    convert.add_argument("checkpoint", metavar="CHECKPOINT", help=f"{CHECKPOINT}, or a plain DCP directory")
    converting.add_arguments(convert)
    options.add_quiet_argument(convert, help="print errors only")


def _add_checkpoints(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help=CHECKPOINT)


def run(arguments: Namespace) -> int:
    """0, or 1 if `verify` finds damage; UsageError for a path without a checkpoint."""
    try:
        code: int = _ACTIONS[arguments.action](arguments)
    except CheckpointError as error:
        raise UsageError(f"{error.message}\n{error.help}") from error
    return code


def _ls(arguments: Namespace) -> int:
    found = [row for folder in map(Path, arguments.checkpoints) for row in _rows(folder)]
    if arguments.output_format == "json":
        print(json.dumps(found, indent=2))
    else:
        cells = [
            [str(row[name]) if name != "size_bytes" else _size(row) for name in _COLUMNS] for row in found
        ]
        write_view(render_table(cells, header=tuple(_COLUMNS.values()), right=(1, 2, 3)), stream=sys.stdout)
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
    """Rows of `ls`: a directory's checkpoints, lowest step first, then leftovers of interrupted saves."""
    read = {checkpoint: _manifest_or_error(checkpoint) for checkpoint in checkpoints_of(folder)}
    losses = judged_losses(manifest for manifest in read.values() if isinstance(manifest, Manifest))
    is_run = step_of(folder.resolve()) is None
    for checkpoint, manifest in read.items():
        if isinstance(manifest, Manifest):
            yield _row(checkpoint, manifest, losses_text(manifest.step, losses, marks_best=is_run))
        else:
            yield _empty_row(checkpoint, f"damaged: {manifest.message}")
    if is_run:
        for path in leftovers(root_of(folder)):
            yield _empty_row(path, "left by an interrupted save")
        for path, kind in strange_steps(root_of(folder)):
            yield _empty_row(path, f"not a checkpoint: {kind}")


def _manifest_or_error(checkpoint: Path) -> Manifest | CheckpointError:
    try:
        return read_manifest(checkpoint)
    except CheckpointError as error:
        return error


def _empty_row(path: Path, state: str) -> dict[str, Any]:
    return {**dict.fromkeys(_COLUMNS, ""), "path": str(path), "state": state}


def _row(checkpoint: Path, manifest: Manifest, losses: str) -> dict[str, Any]:
    base = f", base {manifest.base.path}" if manifest.base is not None else ""
    origin = f", branched from {manifest.origin.path}" if manifest.origin is not None else ""
    mesh = ", ".join(f"{dim} {size}" for dim, size in manifest.mesh.items() if size > 1)
    return {
        "path": str(checkpoint),
        "step": manifest.step,
        "samples": manifest.progress.samples_consumed,
        "size_bytes": sum(size_bytes for _, size_bytes in _files(manifest)),
        "mesh": mesh or "1 rank",
        "plan_hash": manifest.plan_hash[:12],
        "state": f"committed{base}{origin}{losses}"
        if _is_whole(checkpoint, manifest)
        else "incomplete: run `planc checkpoint verify`",
    }


def _is_whole(checkpoint: Path, manifest: Manifest) -> bool:
    """Whether every file exists with its size; `verify` reads their contents."""
    files = ((checkpoint / name, size_bytes) for name, size_bytes in _files(manifest))
    return all(kind_of(path) == "file" and path.stat().st_size == size_bytes for path, size_bytes in files)


def _files(manifest: Manifest) -> Iterator[tuple[str, int]]:
    """Every file of a checkpoint but its manifest, and its size in bytes."""
    for rank, part in enumerate(manifest.parts):
        if part is not None:
            yield part_name(rank), part.size_bytes
            yield shard_name(rank), part.shard_bytes
    if manifest.plan is not None:
        yield PLAN_NAME, manifest.plan.size_bytes


def _verify(arguments: Namespace) -> int:
    problems = {
        str(checkpoint): (*verify(checkpoint), *_base_problems(checkpoint, arguments.model))
        for folder in map(Path, arguments.checkpoints)
        for checkpoint in checkpoints_of(folder)
    }
    if arguments.output_format == "json":
        found = {path: [asdict(problem) for problem in listed] for path, listed in problems.items()}
        print(json.dumps(found, indent=2))
    else:
        for path, listed in problems.items():
            if listed or not arguments.quiet:
                verdict = plural(len(listed), "problem") if listed else "passed, every byte as saved"
                print(f"{path}: {verdict}")
            for problem in listed:
                print(f"  {problem}")
    return FINDINGS if any(problems.values()) else CLEAN


def _base_problems(checkpoint: Path, model: str | None) -> tuple[Problem, ...]:
    """The differences of files that hold frozen parameters from those that the checkpoint names."""
    try:
        base = read_manifest(checkpoint).base
    except CheckpointError:
        # `verify` reports it.
        return ()
    if base is None:
        return ()
    try:
        folder = named_model(model) if model else model_of(checkpoint)
        files = hash_files(folder, weight_names(folder))
    except UsageError as error:
        return (Problem("base", str(error).replace("\n", "; ")),)
    except RunError as error:
        return (Problem("base", error.message),)
    return tuple(
        Problem(f"{model or base.path}/{file.subject}", file.text) for file in base_problems(base, files)
    )


def _diff(arguments: Namespace) -> int:
    (first, before), (second, after) = (
        (path, read_manifest(path)) for path in map(newest_of, (arguments.old, arguments.new))
    )
    facts = differences(before, after)
    names = comparable(before, after)
    values = list(_distances(names, (first, before), (second, after))) if arguments.values else None
    if arguments.output_format == "json":
        found = {"differences": [asdict(fact) for fact in facts], "values": values}
        print(json.dumps(found, indent=2))
        return CLEAN
    sys.stdout.write(
        render_table([(fact.name, fact.before or "-", "->", fact.after or "-") for fact in facts])
    )
    print(f"{plural(len(names), 'tensor')} in both with the same shape and dtype")
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
            raise UsageError(
                f"{path} is damaged: {problems[0]}\n`planc checkpoint verify {path}` lists all problems"
            )
    return (asdict(distance) for distance in distances(names, first, second))


def _print_values(values: list[dict[str, Any]]) -> None:
    apart = sorted((value for value in values if value["largest"]), key=lambda one: -one["largest"])
    print(f"{len(values) - len(apart)} bitwise equal, {len(apart)} different")
    rows = [(one["name"], f"{one['largest']:.3e}") for one in apart[:_MAX_LISTED]]
    sys.stdout.write(render_table(rows, right=(1,), indent="  "))
    if len(apart) > _MAX_LISTED:
        print(f"  and {len(apart) - _MAX_LISTED} more")


_MAX_LISTED = 20


def _export(arguments: Namespace) -> int:
    checkpoint = newest_of(arguments.checkpoint)
    if arguments.best is not None:
        run = Path(arguments.checkpoint)
        step = best_step(run, map(read_manifest, checkpoints_of(run)), evaluation=arguments.best)
        checkpoint = step_directory(root_of(run), step=step)
    wanted = {"model": arguments.model, "dtype": arguments.dtype, "averaged": arguments.ema}
    if arguments.hf:
        permitted = arguments.run_extensions
        note = export(checkpoint, folder=arguments.hf, runs_extensions=permitted, **wanted)
    else:
        note = export_adapter(checkpoint, folder=arguments.adapter, **wanted)
    return _written(note, arguments)


def _push(arguments: Namespace) -> int:
    for note in pushing.pushed(arguments):
        _written(note, arguments)
    return CLEAN


def _convert(arguments: Namespace) -> int:
    if arguments.dcp:
        return _written(converting.to_plain(newest_of(arguments.checkpoint), arguments), arguments)
    return _written(converting.from_plain(Path(arguments.checkpoint), arguments), arguments)


def _written(note: str, arguments: Namespace) -> int:
    if not arguments.quiet:
        print(note, file=sys.stderr)
    return CLEAN


_ACTIONS = {
    "ls": _ls,
    "verify": _verify,
    "diff": _diff,
    "export": _export,
    "push": _push,
    "convert": _convert,
}
