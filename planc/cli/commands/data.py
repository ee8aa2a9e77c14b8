"""`planc data`."""

from __future__ import annotations

import gc
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planc.cli.running.compiled import load_compiled
from planc.cli.support import options, plans, showing_data
from planc.cli.support.byte_progress import ByteProgress
from planc.cli.support.exits import CLEAN, FINDINGS, UsageError, require_libraries
from planc.cli.support.parser import add_subcommand
from planc.cli.support.terminal import write_view
from planc.graph.graph import Graph
from planc.hub.user_dirs import data_dir
from planc.runtime.errors import RunError
from planc.tables import format_bytes, format_number, plural, render_table

if TYPE_CHECKING:
    # Lazy: they import numpy, which only `run` needs otherwise.
    from planc.runtime.data.open import OpenData
    from planc.runtime.data.prepared.folder import Prepared
    from planc.runtime.data.prepared.index import Recipe

DESCRIPTION = "Look at a plan's data, tokenize it before a run, and check what is prepared."

EPILOG = """\
examples:
  planc data show llama.plan
  planc data prepare llama.plan
  planc data ls
  planc data verify llama.plan

Prepared data is in $PLANC_DATA, or in `data` in planc's cache directory.
`planc data COMMAND --help` shows the options of a command."""

_PREPARE = """\
Tokenize the training and evaluation data of a plan into files that every rank reads in place, so a run starts
without tokenizing. Memory stays flat, whatever the size of the data. Data that is prepared already is left as
it is. A preparation that was interrupted, even killed, resumes: what it tokenized is not tokenized again.

A run prepares what is missing by itself, in one process on each machine, while its accelerators wait. Data
that takes a second or two to tokenize is never prepared: every rank keeps it in memory."""

_LS = """\
List prepared data, and directories that an interrupted preparation left behind."""

_VERIFY = """\
Read every byte of prepared data and compare it with what was prepared. For a plan, also read every byte of
the source's files: a run compares only their sizes and times."""

_EXAMPLES = {
    "prepare": "  planc data prepare llama.plan\n"
    "  planc data prepare llama.plan --to /shared/data           (runs need PLANC_DATA=/shared/data)",
    "show": showing_data.EXAMPLES,
    "ls": "  planc data ls\n  planc data ls /shared/data",
    "verify": "  planc data verify                         (all prepared data)\n"
    "  planc data verify llama.plan              (the data of one plan, and its source)",
}
_DIRECTORY = "directory of prepared data (default: $PLANC_DATA, or `data` in planc's cache directory)"


def add_arguments(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="COMMAND", required=True, title="commands")
    prepare = add_subcommand(
        commands, "prepare", "tokenize the data of a plan into files", _PREPARE, examples=_EXAMPLES
    )
    options.add_plan_argument(prepare, help="a .plan file, or an artifact from `planc compile`", type=Path)
    prepare.add_argument("--to", type=Path, metavar="DIR", help=_DIRECTORY)
    options.add_set_argument(prepare)
    options.add_run_extensions_argument(prepare)
    options.add_quiet_argument(prepare, help="print errors only")
    ls = add_subcommand(commands, "ls", "list prepared data", _LS, examples=_EXAMPLES)
    ls.add_argument("directory", nargs="?", type=Path, metavar="DIR", help=_DIRECTORY)
    options.add_output_format_argument(ls)
    show = add_subcommand(
        commands, "show", showing_data.SUMMARY, showing_data.DESCRIPTION, examples=_EXAMPLES
    )
    showing_data.add_arguments(show)
    verify = add_subcommand(
        commands, "verify", "check every byte of prepared data", _VERIFY, examples=_EXAMPLES
    )
    verify.add_argument(
        "target", nargs="?", type=Path, metavar="PLAN|DIR", help=f"a plan or an artifact, or a {_DIRECTORY}"
    )
    options.add_set_argument(verify)
    options.add_run_extensions_argument(verify)
    options.add_quiet_argument(verify, help="print problems only")


def run(arguments: Namespace) -> int:
    """0, or 1 if `verify` finds damage; UsageError for data that can't be prepared."""
    require_libraries("planc data", "numpy", "filelock")
    # Off for short commands (planc.cli.main); tokenizing makes garbage.
    gc.enable()
    # Imported here because it imports numpy.
    from planc.runtime.data.errors import DataError

    actions = {"prepare": _prepare, "show": _show, "ls": _ls, "verify": _verify}
    try:
        return actions[arguments.action](arguments)
    except DataError as error:
        raise UsageError(f"{error.message}\n{error.help}") from error
    except RunError as error:
        raise UsageError("\n".join(filter(None, (error.message, error.help)))) from error


def _prepare(arguments: Namespace) -> int:
    from planc.data_view.parts import parts
    from planc.runtime.data.open import open_in_memory, open_prepared
    from planc.runtime.data.prepared.folder import find
    from planc.runtime.data.prepared.prepare import Progress, prepare, remove_finished_parts

    graph, base = _opened(arguments.plan, arguments)
    root = arguments.to or data_dir()
    for part in parts(graph, base=base, runs_extensions=arguments.run_extensions):
        wanted, began = part.wanted, time.monotonic()
        if wanted.stays_in_memory:
            size = format_bytes(wanted.size_bytes)
            _say(arguments, f"{part.label}: nothing to prepare; {size} are small enough for memory")
            _say_data(open_in_memory(wanted, model_vocab_size=part.vocab_size), arguments)
            continue
        prepared = find(root, wanted)
        if prepared is not None:
            remove_finished_parts(root, wanted, say=partial(_say, arguments))
            _say(arguments, f"{part.label}: {_summary(prepared)}, prepared already in {prepared.folder}")
            _say_data(open_prepared(prepared, wanted, model_vocab_size=part.vocab_size), arguments)
            continue
        with ByteProgress(part.label, total=wanted.size_bytes, is_quiet=arguments.quiet) as progress:

            def report(now: Progress, progress: ByteProgress = progress) -> None:
                progress.show(now.num_text_bytes, note=plural(now.num_tokens, "token"))

            prepared = prepare(root, wanted, name=graph.name, report=report, say=progress.say)
        seconds = time.monotonic() - began
        _say(
            arguments, f"{part.label}: {_summary(prepared)}, ready after {seconds:.1f} s in {prepared.folder}"
        )
        _say_data(open_prepared(prepared, wanted, model_vocab_size=part.vocab_size), arguments)
    return CLEAN


def _show(arguments: Namespace) -> int:
    return showing_data.show(*_opened(arguments.plan, arguments), arguments)


def _ls(arguments: Namespace) -> int:
    rows = list(_rows(arguments.directory or data_dir()))
    if arguments.output_format == "json":
        print(json.dumps(rows, indent=2))
    else:
        cells = [[_cell(name, row[name]) for name in _COLUMNS] for row in rows]
        write_view(render_table(cells, header=tuple(_COLUMNS.values()), right=(1, 2, 3)), stream=sys.stdout)
    return CLEAN


_COLUMNS = {
    "path": "directory",
    "documents": "documents",
    "tokens": "tokens",
    "size_bytes": "size",
    "source": "source",
    "packing": "packing",
    "state": "state",
}


def _cell(name: str, value: object) -> str:
    if isinstance(value, int):
        return format_bytes(value) if name == "size_bytes" else format_number(value)
    return str(value)


def _rows(root: Path) -> Iterator[dict[str, Any]]:
    from planc.runtime.data.errors import DataError
    from planc.runtime.data.prepared.folder import folders, read_prepared, require_sizes
    from planc.runtime.data.prepared.leftovers import unfinished
    from planc.runtime.data.prepared.parts import interrupted

    for folder in folders(root):
        try:
            found = read_prepared(folder)
            require_sizes(found)
        except DataError as error:
            yield {**dict.fromkeys(_COLUMNS, ""), "path": str(folder), "state": f"damaged: {error.message}"}
            continue
        index = found.index
        yield {
            "path": str(folder),
            "documents": index.num_documents,
            "tokens": index.arrays["tokens"].length,
            "size_bytes": index.size_bytes,
            "source": " ".join(filter(None, index.recipe.source)),
            "packing": _packing(index.recipe),
            "state": "complete",
        }
    for folder in unfinished(root):
        state = "in preparation, or left by an interrupted one"
        yield {**dict.fromkeys(_COLUMNS, ""), "path": str(folder), "state": state}
    for folder in interrupted(root):
        state = "tokenized so far: the same preparation resumes from it"
        yield {**dict.fromkeys(_COLUMNS, ""), "path": str(folder), "state": state}


def _packing(recipe: Recipe) -> str:
    """The packings that prepared data is for."""
    if recipe.sequence_length is None:
        return "attend, isolate"
    skips = ", too_long = skip" if recipe.too_long == "skip" else ""
    word = "whole" if recipe.layout == "whole" else "none"
    return f"{word}, {format_number(recipe.sequence_length)} tokens{skips}"


def _verify(arguments: Namespace) -> int:
    from planc.runtime.data.prepared.folder import folders

    target = arguments.target or data_dir()
    if target.suffix in (".plan", ".json"):
        return _verify_plan(target, arguments)
    found = folders(target)
    if not found:
        raise UsageError(f"no prepared data in {target}: run `planc data prepare PLAN`")
    return FINDINGS if sum(_verify_folder(folder, arguments) for folder in found) else CLEAN


def _verify_plan(plan: Path, arguments: Namespace) -> int:
    from planc.data_view.parts import parts
    from planc.runtime.data.prepared.folder import find, of_same_sizes
    from planc.runtime.data.prepared.verify import source_problems

    graph, base = _opened(plan, arguments)
    num_problems = 0
    for part in parts(graph, base=base, runs_extensions=arguments.run_extensions):
        if part.wanted.stays_in_memory:
            _say(arguments, f"{part.label}: nothing is prepared; it is small enough for memory")
            continue
        # Its content is compared below.
        prepared = find(data_dir(), part.wanted) or next(of_same_sizes(data_dir(), part.wanted), None)
        if prepared is None:
            raise UsageError(
                f"{part.label}: not prepared in {data_dir()}, or its source has changed: "
                f"run `planc data prepare {plan}`"
            )
        num_problems += _verify_folder(prepared.folder, arguments)
        with ByteProgress(part.label, total=part.wanted.size_bytes, is_quiet=arguments.quiet) as progress:
            listed = list(source_problems(prepared, part.wanted, advance=progress.advance))
        num_problems += _report(
            f"{part.label}: {plural(len(prepared.index.files), 'file')}", listed, arguments
        )
    return FINDINGS if num_problems else CLEAN


def _verify_folder(folder: Path, arguments: Namespace) -> int:
    """The number of problems of prepared data, which are printed."""
    from planc.runtime.data.prepared.verify import problems

    with ByteProgress(folder.name, total=None, is_quiet=arguments.quiet) as progress:
        listed = list(problems(folder, advance=progress.advance))
    return _report(str(folder), listed, arguments)


def _report(what: str, problems: list[str], arguments: Namespace) -> int:
    if problems or not arguments.quiet:
        print(f"{what}: {plural(len(problems), 'problem') if problems else 'passed, every byte as prepared'}")
    for problem in problems:
        print(f"  {problem}")
    return len(problems)


def _opened(path: Path, arguments: Namespace) -> tuple[Graph, Path]:
    """The graph of a plan or an artifact, and where its paths start. FaultyPlan for one with errors."""
    if path.suffix == ".json":
        compiled = load_compiled(path, arguments.set)
        return compiled.graph, compiled.base
    checked = plans.check(
        str(path), settings=plans.settings(arguments), runs_extensions=arguments.run_extensions
    )
    return plans.require_sound(checked).compiled, path.parent


def _summary(prepared: Prepared) -> str:
    index = prepared.index
    tokens = plural(index.arrays["tokens"].length, "token")
    bad = f", without {plural(len(index.left_out), 'bad document')}" if index.left_out else ""
    return f"{plural(index.num_documents, 'document')}, {tokens}, {format_bytes(index.size_bytes)}{bad}"


def _say_data(data: OpenData, arguments: Namespace) -> None:
    """Print what a run would print of it. Each bad document is named also under --quiet."""
    from planc.runtime.data.summary import summary_of

    _say(arguments, f"  {summary_of(data.dataset)}")
    for message in data.left_out:
        print(f"  left out: {message}")


def _say(arguments: Namespace, text: str) -> None:
    if not arguments.quiet:
        print(text)
