"""`planc new`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from planc.api import Checked
from planc.cli.support import shipped
from planc.cli.support.data_files import DataFiles, counted, data_files, default_data
from planc.cli.support.deep import read_data
from planc.cli.support.exits import CLEAN, FINDINGS, UsageError, needs
from planc.cli.support.first_notes import (
    ask,
    can_ask,
    findings_by_flag,
    ignored_texts,
    missing_files,
    scarce_data,
)
from planc.cli.support.next_commands import next_commands
from planc.cli.support.options import positive_number, unknown_device
from planc.cli.support.purposes import LISTED, purpose_of, require_task
from planc.cli.support.spinner import spinner
from planc.cli.support.terminal import write_view
from planc.data_view.codes import QUESTIONABLE
from planc.devices.hardware import DEVICES, Device, in_lower_case
from planc.first_plan.blocks import sequence_length_of
from planc.first_plan.brief import Brief
from planc.first_plan.purpose import Purpose
from planc.first_plan.write import Written, first_plan
from planc.hub.user_dirs import cache_dir
from planc.inventory.files import write_atomically
from planc.inventory.known import KnownModels, key_of
from planc.inventory.schema import Inventory
from planc.tables import render_table
from planc.vocab import CLASSIFIERS, NO_HEAD, Classes

DESCRIPTION = """\
Write a plan for a model: settings from published practice, and the mesh, micro batch, recomputation, chunks
of the loss and compiled layers that planc tune expects to be fastest. Every choice has a comment. The plan
passes planc check.

At a terminal, planc asks for what is missing. Elsewhere --gpus, --gpu, --for and --data are required, unless
--yes takes the defaults.

MODEL is a directory with a config.json, a Hub model as hf://org/name@commit, or a model that ships with
planc, such as llama-3.1-8b. --example lists the plans that ship; --example NAME writes one with its model."""

EPILOG = """\
examples:
  planc new models/llama-3.1-8b      (asks at a terminal)
  planc new models/llama-3.1-8b --gpus 64 --gpu h100 --for pretrain --data 'corpus/*.jsonl'
  planc new qwen3-0.6b --gpus 8 --gpu a100 --for chats --data chats.jsonl -o chat.plan
  planc new tiny-bert --gpus 1 --gpu a100 --for sequence_classification --data reviews.jsonl
  planc new --example llama-3.2-1b

A model or number of devices for which no plan passes the check exits with 1, and nothing is written."""

_CPU = "cpu"
_DEFAULTS = {"gpus": "8", "gpu": "h100", "purpose": Purpose.PRETRAIN.value}
_MOST_NOTES = 4


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a model directory, hf://org/name@commit, or a shipped model",
    )
    parser.add_argument("--gpus", type=positive_number, metavar="N", help="number of devices")
    parser.add_argument("--gpu", metavar="NAME", help=f"their kind: {', '.join((*DEVICES, _CPU))}")
    parser.add_argument("--nodes", type=positive_number, metavar="N", help="nodes that the devices are in")
    parser.add_argument(
        "--for",
        dest="purpose",
        type=_purpose,
        choices=[one.value for one in Purpose],
        metavar="PURPOSE",
        help=f"{LISTED}; planc explain PURPOSE says more",
    )
    parser.add_argument(
        "--data", metavar="FILES", help="text, JSON-lines or parquet files, as a glob in quotes"
    )
    parser.add_argument("--sequence-length", type=positive_number, metavar="N", help="tokens of a sequence")
    parser.add_argument("--tokens-per-step", type=positive_number, metavar="N", help="tokens of a step")
    parser.add_argument("--steps", type=positive_number, metavar="N", help="optimizer steps")
    parser.add_argument(
        "-y", "--yes", action="store_true", help="take the defaults of all options that are not given"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the plan (default: MODEL.plan)")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.add_argument(
        "--example",
        nargs="?",
        const="",
        metavar="NAME",
        help="list the plans that ship with planc, or write the one of this name",
    )


def _purpose(text: str) -> str:
    try:
        return purpose_of(text).value
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def run(arguments: Namespace) -> int:
    """0 once written or listed, 1 without a sound plan; UsageError for what can't be one."""
    if arguments.example is not None:
        return _example(arguments)
    if arguments.model is None:
        raise UsageError("name a MODEL: a directory with a config.json; planc new --example lists plans")
    output: Path = arguments.output or Path(f"{_file_name(arguments.model)}.plan")
    _require_flags(arguments, output.parent)
    _require_free(output, force=arguments.force)
    model = shipped.named_model(arguments.model, folder=output.parent)
    _complete(arguments, output.parent)
    purpose = Purpose(arguments.purpose)
    data = counted(data_files(arguments.data, folder=output.parent, purpose=purpose))
    classes = _classes(purpose, data)
    inventory = model.inventory(classes)
    require_task(inventory, purpose)
    brief, tokenizer = _brief(arguments, model, inventory, data, output)
    _require_sequences(brief, inventory)
    models = KnownModels(output.parent, cache_dir(), found={key_of(model.key, classes=classes): inventory})
    with spinner(f"searching plans of {model.name} for {_devices(brief)}", stream=sys.stderr):
        written = first_plan(brief, inventory, models)
    if not written.ok:
        return _refuse(written, brief, inventory)
    checked = _read(str(output), written.checked, tokenizer, data)
    if not checked.ok:
        sys.stderr.write(findings_by_flag(checked, flags=_FLAGS))
        print(f"planc: {data.call} can't be trained on; nothing was written", file=sys.stderr)
        return FINDINGS
    write_atomically(output, text=written.text)
    for path in model.write(output.parent):
        print(f"planc: wrote {path}", file=sys.stderr)
    print(f"planc: wrote {output}, which passed `check`", file=sys.stderr)
    notes = (
        *missing_files(model, brief, tokenizer, data),
        *ignored_texts(data),
        *scarce_data(written.checked, brief, data),
    )
    for note in (
        *notes,
        *(diagnostic.primary.text for diagnostic in checked.diagnostics if diagnostic.code is QUESTIONABLE),
    ):
        print(f"planc: note: {note}", file=sys.stderr)
    lines = next_commands(output, devices=brief.devices, node=brief.node)
    sys.stdout.write("".join(f"  {line}\n" for line in lines))
    return CLEAN


def _read(path: str, checked: Checked, tokenizer: Path | None, data: DataFiles) -> Checked:
    """The plan with what a sample of its data shows, if the data and its tokenizer are there."""
    if not data.num_files:
        return checked
    missing = [name for name in ("numpy",) if find_spec(name) is None]
    if missing or (tokenizer is not None and not tokenizer.exists()):
        why = needs("it", missing) if missing else f"it needs {tokenizer}"
        print(f"planc: note: {data.call} has not been read: {why}", file=sys.stderr)
        return checked
    with spinner(f"reading a sample of {data.call}", stream=sys.stderr):
        return read_data(path, checked, is_asked=True)[0]


def _file_name(model: str) -> str:
    """The last part of a model's name: `llama` for `models/llama/` and for `hf://org/Llama@0123`."""
    named = Path(model).resolve().name if Path(model).is_dir() else model.partition("@")[0].rpartition("/")[2]
    return named.lower() or "model"


def _require_free(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a directory: name a file with -o")
    if path.exists() and not force:
        raise UsageError(f"{path} exists: pass --force to replace it, or another name with -o")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a directory")


_REQUIRED = {"gpus": "--gpus", "gpu": "--gpu", "purpose": "--for", "data": "--data"}


def _require_flags(arguments: Namespace, folder: Path) -> None:
    """UsageError for a flag that is wrong or missing, before anything slow."""
    if arguments.gpu is not None:
        arguments.gpu = in_lower_case(arguments.gpu)
        _device(arguments.gpu)
    if arguments.gpus is not None and (arguments.gpu is not None or arguments.nodes is not None):
        _node(arguments, _device(arguments.gpu or _CPU))
    if arguments.data is not None and arguments.purpose is not None:
        data_files(arguments.data, folder=folder, purpose=Purpose(arguments.purpose))
    missing = _not_given(arguments)
    if missing and not arguments.yes and not can_ask():
        options = ", ".join(_REQUIRED[name] for name in missing)
        raise UsageError(f"pass {options}, or --yes for the defaults: planc asks only at a terminal")


def _not_given(arguments: Namespace) -> list[str]:
    return [name for name in _REQUIRED if getattr(arguments, name) is None]


def _complete(arguments: Namespace, folder: Path) -> None:
    """Fill in what was not given: by --yes, or by questions."""
    missing = _not_given(arguments)
    if not missing:
        return
    if arguments.yes:
        for name in missing:
            _take(arguments, name, _default(arguments, name, folder))
        return
    sys.stderr.write("Enter takes the answer in brackets.\n")
    for name in missing:
        read = partial(_take, arguments, name)
        ask(_QUESTIONS[name], read, default=_default(arguments, name, folder))


_QUESTIONS = {
    "gpus": "How many devices?",
    "gpu": f"Which kind ({', '.join((*DEVICES, _CPU))})?",
    "purpose": f"What for: {LISTED}?",
    "data": "Which data files?",
}


def _default(arguments: Namespace, name: str, folder: Path) -> str:
    if name == "data":
        return default_data(folder, purpose=Purpose(arguments.purpose))
    return _DEFAULTS[name]


def _take(arguments: Namespace, name: str, answer: str) -> None:
    """Set an argument from an answer. ValueError for one that makes no sense."""
    value: object = answer
    if name == "gpus":
        try:
            value = positive_number(answer)
        except ArgumentTypeError as error:
            raise ValueError(str(error)) from None
    elif name == "gpu":
        value = in_lower_case(answer)
        _device(in_lower_case(answer))
    elif name == "purpose":
        value = purpose_of(answer).value
    elif name == "data":
        data_files(answer, folder=Path(), purpose=Purpose(arguments.purpose))
    setattr(arguments, name, value)


def _device(name: str) -> Device | None:
    """The device of a name; None for CPUs. UsageError for another name."""
    if name == _CPU:
        return None
    if name not in DEVICES:
        raise UsageError(unknown_device(name, (*DEVICES, _CPU)))
    return DEVICES[name]


def _classes(purpose: Purpose, data: DataFiles) -> Classes | None:
    """The classes that decide the head of the model: those of the rows, or none for an embedding."""
    if purpose is Purpose.EMBEDDING:
        return NO_HEAD
    return Classes(purpose.task, data.num_classes) if purpose.task in CLASSIFIERS else None


def _brief(
    arguments: Namespace, model: shipped.NamedModel, inventory: Inventory, data: DataFiles, output: Path
) -> tuple[Brief, Path | None]:
    """Return the plan to write, and the tokenizer's file. UsageError unless devices fill nodes."""
    purpose, folder = Purpose(arguments.purpose), output.parent
    device = _device(arguments.gpu)
    tokenizer, file = model.tokenizer(folder, vocab_size=inventory.vocab_size, is_chat=data.is_rendered)
    brief = Brief(
        str(output),
        model.written,
        folder,
        purpose,
        arguments.gpus,
        _node(arguments, device),
        device,
        data.call,
        tokenizer,
        data.size,
        sequence_length=arguments.sequence_length,
        tokens_per_step=arguments.tokens_per_step,
        steps=arguments.steps,
        num_classes=data.num_classes,
        class_names=data.class_names,
    )
    return brief, file


def _node(arguments: Namespace, device: Device | None) -> int:
    """Devices of a node. UsageError for devices that do not fill whole nodes."""
    devices: int = arguments.gpus
    usual = device.devices_per_node if device is not None and device.devices_per_node else devices
    node, rest = divmod(devices, arguments.nodes or -(-devices // usual))
    if rest or not node or (arguments.nodes is None and devices > usual and devices % usual):
        whole = (
            f"{arguments.nodes} whole nodes" if arguments.nodes else f"whole nodes of {usual}: pass --nodes"
        )
        raise UsageError(f"{devices} devices are not {whole}")
    return node


def _require_sequences(brief: Brief, inventory: Inventory) -> None:
    """UsageError for tokens of a step that are not whole sequences."""
    tokens, length = brief.tokens_per_step, sequence_length_of(brief, inventory)
    if tokens is None or tokens % length == 0:
        return
    fault = "is not a multiple of" if tokens > length else "is less than"
    raise UsageError(
        f"--tokens-per-step {tokens} {fault} one sequence of {length} tokens: "
        f"{_more_tokens(brief, length)}, or a shorter --sequence-length"
    )


def _more_tokens(brief: Brief, length: int) -> str:
    """Return the option to pass for sequences on all devices."""
    return f"pass --tokens-per-step {brief.devices * length} for {_sequences(brief)}"


def _sequences(brief: Brief) -> str:
    return "one sequence" if brief.devices == 1 else f"one sequence on each of {brief.devices} devices"


_FLAGS = {
    "sequence_length": "--sequence-length",
    "tokens_per_step": "--tokens-per-step",
    "steps": "--steps",
    "gpu": "--gpu",
    "source": "--data",
}
"""The flag that sets each key of a plan."""


def _refuse(written: Written, brief: Brief, inventory: Inventory) -> int:
    """Print why no plan was found. No plan was written, and findings have no place in one."""
    sys.stderr.write(findings_by_flag(written.checked, flags=_FLAGS))
    print(f"planc: no plan for {_devices(brief)} fits and passes the check", file=sys.stderr)
    for name, note in written.notes[:_MOST_NOTES]:
        print(f"  {name}: {note}", file=sys.stderr)
    if any(note.startswith(("needs ", "parameters and")) for _, note in written.notes):
        print("  try more --gpus, a --gpu with more memory, or a shorter --sequence-length", file=sys.stderr)
    tokens, length = brief.tokens_per_step, sequence_length_of(brief, inventory)
    if tokens is not None and tokens < brief.devices * length:
        few = f"--tokens-per-step {tokens} has fewer sequences of {length} tokens than devices"
        print(f"  {few}: {_more_tokens(brief, length)}", file=sys.stderr)
    return FINDINGS


def _devices(brief: Brief) -> str:
    return f"{brief.devices} x {brief.device.name if brief.device is not None else _CPU}"


def _example(arguments: Namespace) -> int:
    if arguments.model is not None:
        raise UsageError("--example takes no MODEL: its plans have their own")
    if not arguments.example:
        write_view("\n".join(_listed()), stream=sys.stdout)
        return CLEAN
    found = shipped.example(arguments.example)
    output: Path = arguments.output or Path(f"{found.name}.plan")
    _require_free(output, force=arguments.force)
    written = shipped.copy_shipped(shipped.needed_files(found.path), to=output.parent)
    write_atomically(output, text=found.path.read_text(encoding="utf-8"))
    for path in (*written, output):
        print(f"planc: wrote {path}", file=sys.stderr)
    sys.stdout.write(f"  planc check {output}\n")
    return CLEAN


def _listed() -> Iterator[str]:
    """The plans that ship, by task."""
    every = shipped.examples()
    for task, what in shipped.TASKS.items():
        yield f"{task.upper()}: {what}"
        yield render_table([(one.name, one.summary) for one in every if one.task == task], indent="  ")
    yield "planc new --example NAME writes one, with its model."
