"""`planc import`."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from functools import partial
from pathlib import Path
from typing import Any

from planc import strict_json
from planc.cli.support import plans
from planc.cli.support.exits import CLEAN, FINDINGS, UsageError
from planc.cli.support.options import STDIN, add_output_format_argument
from planc.cli.support.terminal import write_view
from planc.hub.names import is_hub
from planc.hub.user_dirs import cache_dir
from planc.import_configs import facts
from planc.import_configs.detect import BY_NAME, Undetected
from planc.import_configs.facts import Fact
from planc.import_configs.importing import Result, UnusedAcceptance, import_config
from planc.import_configs.kind import NoteKind
from planc.import_configs.leaves import MAX_BYTES, SourceError
from planc.import_configs.lowering import Target
from planc.import_configs.report import errors_text, notes_text, result_data
from planc.inventory.files import InventoryError
from planc.inventory.known import KnownModels

DESCRIPTION = """\
Write a config of another tool as a plan.

CONFIG is a torchtitan config (TOML, or the printed JSON of a Python config), an accelerate YAML, a DeepSpeed
JSON, a NeMo Automodel, Axolotl, TRL, LLaMA-Factory or ms-swift recipe (YAML), the JSON of transformers'
TrainingArguments, or a shell script that starts one of these or Megatron-LM. Its kind is recognized by its
keys. Several files of one training are read together, such as a recipe with its accelerate YAML and its
DeepSpeed JSON. What has a counterpart goes into the plan. Other keys and values that can't be right are notes
with the line, the reason, and what is nearest.

A key that decides what is trained and that no plan has, such as an adapter, stops the import, and so does
a key that planc doesn't know. --accept KEY trains without it.

The plan is written to -o, with the notes on standard output; without -o the plan goes to standard output,
and the notes to standard error. Options give what CONFIG leaves to the launch, and win over it."""

EPILOG = """\
examples:
  planc import llama3_8b.toml --model models/llama-3.1-8b --gpus 8 --data 'data/*.txt' -o imported.plan
  planc import zero3.json --model models/llama-3.1-8b --gpus 8 --sequence-length 4096 --steps 1000
  planc import recipe.yaml --from axolotl --model models/llama-3.1-8b --gpus 8 --steps 500
  planc import arguments.json accelerate.yaml --model models/llama-3.1-8b --sequence-length 4096
  planc import lora.yaml --model models/llama-3.1-8b --gpus 8 --steps 500 --accept load_in_8bit

A config that lacks what a plan needs, or that trains what no plan does, exits with 1 and names the option
that helps. So does one with a value that can't be right, though its plan is written."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="CONFIG",
        nargs="+",
        help="a config: .toml, .yaml, .json or .sh, or - for standard input",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the plan to a file")
    parser.add_argument(
        "--from",
        dest="kind",
        choices=tuple(BY_NAME),
        metavar="KIND",
        help=f"kind of the first CONFIG: {', '.join(BY_NAME)}",
    )
    parser.add_argument(
        "--model",
        type=_name,
        metavar="DIR",
        help="the model: a directory with a config.json, or hf://org/name@COMMIT",
    )
    parser.add_argument("--gpus", type=_count, metavar="N", help="number of devices")
    parser.add_argument("--data", type=_name, metavar="GLOB", help="files to train on (default: data/*.txt)")
    parser.add_argument(
        "--data-as", choices=("chat", "text"), help="whether the data are conversations or documents"
    )
    parser.add_argument(
        "--weights", choices=("pretrained", "random"), help="the weights that training starts from"
    )
    parser.add_argument("--sequence-length", type=_count, metavar="N", help="tokens per sequence")
    parser.add_argument("--micro-batch", type=_count, metavar="N", help="sequences per forward on one rank")
    parser.add_argument("--steps", type=_count, metavar="N", help="optimizer steps")
    parser.add_argument("--lr", type=_rate, metavar="X", help="peak learning rate")
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="KEY",
        help="write the plan though it trains without KEY, a key or a table of CONFIG; can be repeated",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a key has no counterpart")
    add_output_format_argument(parser)


def _count(text: str) -> int:
    if not text.isascii() or not text.replace("_", "").isdecimal() or not 1 <= int(text) < 10**9:
        raise ArgumentTypeError(f"`{text}` is not a positive number")
    return int(text)


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable() or '"' in text:
        raise ArgumentTypeError("the name is empty, or has characters that a plan's text can't have")
    return text


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e3:
        raise ArgumentTypeError(f"`{text}` is not a learning rate")
    return rate


def run(arguments: Namespace) -> int:
    """0 with a plan; 1 if the files lack what a plan needs or can't be right, or by --strict."""
    folder = arguments.output.parent if arguments.output is not None else Path()
    name = str(arguments.files[0])
    try:
        result = import_config(
            {str(file): _content(str(file)) for file in arguments.files},
            from_kind=arguments.kind,
            options=_options(arguments, folder),
            target=_target(arguments, folder),
            accepted=arguments.accept,
        )
    except SourceError as error:
        place = f"{error.file or name}:{error.line}" if error.line is not None else error.file or name
        raise UsageError(f"{place}: {error.message}") from None
    except UnusedAcceptance as error:
        raise UsageError(str(error)) from None
    if isinstance(result, Undetected):
        looked = "".join(f"\n  {line}" for line in result.looked_for)
        raise UsageError(f"{result.file}: {result.what}: pass --from KIND. Keys looked for:{looked}")
    _write(result, arguments, name=name)
    if result.text is None:
        return FINDINGS
    is_wrong = any(note.kind is NoteKind.WRONG for note in result.notes)
    is_short = arguments.strict and any(note.line is not None for note in result.notes)
    return FINDINGS if is_wrong or is_short else CLEAN


def _write(result: Result, arguments: Namespace, *, name: str) -> None:
    if result.text is not None and arguments.output is not None:
        for file in map(Path, arguments.files):
            if arguments.output.exists() and file.exists() and arguments.output.samefile(file):
                raise UsageError(f"{file} would be overwritten: give the plan another name")
        try:
            arguments.output.write_text(result.text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise UsageError(f"{arguments.output}: {error.strerror}") from None
    if arguments.output_format == "json":
        sys.stdout.write(json.dumps(result_data(result, name=name), indent=2) + "\n")
        return
    if result.text is None:
        sys.stderr.write(errors_text(result, name=name))
        return
    notes = notes_text(result)
    if arguments.output is not None:
        write_view(notes, stream=sys.stdout)
    else:
        sys.stdout.write(result.text)
        write_view(notes, stream=sys.stderr)


def _content(name: str) -> bytes:
    """The file's bytes, and one more than allowed of a file that is too long."""
    try:
        if name == STDIN:
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with open(name, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}") from None


_MOST_BYTES_OF_A_ROW = 1 << 20


def _first_columns(folder: Path, pattern: str) -> frozenset[str]:
    """The keys of the first row of JSON lines that a glob matches; none of other files."""
    try:
        path = next(iter(sorted(folder.glob(pattern))), None)
        if path is None or path.suffix not in (".json", ".jsonl"):
            return frozenset()
        with path.open("rb") as file:
            row = strict_json.loads(file.readline(_MOST_BYTES_OF_A_ROW).decode("utf-8-sig"))
    except (OSError, ValueError, NotImplementedError):
        return frozenset()
    return frozenset(row) if isinstance(row, dict) else frozenset()


def _options(arguments: Namespace, folder: Path) -> dict[Fact, Any]:
    given = {
        facts.MODEL: _model(arguments, folder),
        facts.WORLD_SIZE: arguments.gpus,
        facts.DATA: arguments.data,
        facts.SEQUENCE_LENGTH: arguments.sequence_length,
        facts.MICRO_BATCH: arguments.micro_batch,
        facts.STEPS: arguments.steps,
        facts.LR: arguments.lr,
        facts.CHAT: arguments.data_as and arguments.data_as == "chat",
        facts.PRETRAINED: arguments.weights and arguments.weights == "pretrained",
    }
    return {fact: value for fact, value in given.items() if value is not None}


def _model(arguments: Namespace, folder: Path) -> str | None:
    """The model's directory from that of the plan, or its name on the Hub."""
    name: str | None = arguments.model
    if name is None or is_hub(name) or Path(name).is_absolute():
        return name
    return Path(os.path.relpath(name, folder)).as_posix()


def _target(arguments: Namespace, folder: Path) -> Target:
    """Read what can be known of the model that --model names."""
    name = _model(arguments, folder)
    columns = partial(_first_columns, folder)
    if name is None:
        return Target(lambda path: (folder / path).is_dir(), columns=columns)
    try:
        inventory = KnownModels(folder, cache_dir(), on_probe=plans.announce_probe).get(name)
    except InventoryError as error:
        raise UsageError(f"--model {name}: {error.message}") from None
    has_tokenizer = not is_hub(name) and (folder / name / "tokenizer.json").exists()
    return Target(
        lambda path: (folder / path).is_dir(),
        columns=columns,
        has_tokenizer=has_tokenizer,
        inventory=inventory,
    )
