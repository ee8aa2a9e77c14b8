"""`planc inventory`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planc.cli.running.compiled import print_progress
from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.support.options import add_output_format_argument
from planc.cli.support.plans import announce_probe
from planc.cli.support.spinner import spinner
from planc.cli.support.terminal import write_view
from planc.figures.plan import parameters
from planc.graph.text import fold, summarise
from planc.hub.names import is_hub, parse_hub
from planc.hub.user_dirs import cache_dir
from planc.inventory import load
from planc.inventory.codec import dumps
from planc.inventory.schema import Inventory, Module
from planc.runtime.errors import RunError
from planc.runtime.fetch import require_model
from planc.tables import format_number, format_shape, render_table

DESCRIPTION = """\
Show a model's structure: modules, parameters, attention, the model's own tensor-parallel plan.

planc reads inventory.json if the directory has one. Otherwise it builds the inventory from config.json, which
needs torch and transformers, and caches it. It reads no weights. For a Hugging Face Hub model it downloads
config.json and the tokenizer at the given commit unless they are cached; HF_HUB_OFFLINE=1 prevents that."""

EPILOG = """\
examples:
  planc inventory models/llama-3.1-8b
  planc inventory models/llama-3.1-8b --save      (checks then need no torch)
  planc inventory hf://org/name@0123456789abcdef0123456789abcdef01234567"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a directory with a config.json, or hf://org/name@commit"
    )
    parser.add_argument("--save", action="store_true", help="write a new inventory.json into the directory")
    add_output_format_argument(parser)


def run(arguments: Namespace) -> int:
    """0 once shown or saved; UsageError for a model without an inventory."""
    folder = _fetched(arguments.model) if is_hub(arguments.model) else Path(arguments.model)
    if arguments.save and is_hub(arguments.model):
        raise UsageError("--save needs a local directory; inventories of Hub models are cached anyway")
    try:
        if arguments.save:
            with spinner(f"reading the structure of {folder}", stream=sys.stderr):
                path = _save(folder)
            print(f"wrote {path}", file=sys.stderr)
        loaded = load.load_inventory(folder, cache_dir=cache_dir(), on_probe=announce_probe)
    except load.InventoryError as error:
        raise UsageError(f"{error.message}\n{error.help}") from error
    if arguments.output_format == "json":
        sys.stdout.write(dumps(loaded.inventory))
    else:
        write_view(_inventory_text(loaded.inventory), stream=sys.stdout)
        if not arguments.save:
            print(f"{loaded.origin}: {loaded.path}", file=sys.stderr)
    return CLEAN


def _save(folder: Path) -> str:
    """Write the inventory; return the file's path, with a note if it comes from the cache."""
    try:
        return str(load.save_inventory(folder))
    except load.LibraryMissing:
        path = load.save_cached_inventory(folder, cache_dir=cache_dir())
        if path is None:
            raise
        return f"{path} from the cache (torch or transformers is not installed)"


def _fetched(name: str) -> Path:
    """The directory with a Hub model's config.json; UsageError if it can't be downloaded."""
    try:
        return require_model(parse_hub(name), with_weights=False, say=print_progress)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except RunError as error:
        raise UsageError(f"{error.message}\n{error.help}") from error


def _inventory_text(inventory: Inventory) -> str:
    """Architecture and sizes, then modules with parameters, attention, ties and the model's own plan."""
    parts = [_head(inventory), _modules(inventory), _attention(inventory)]
    if (images := inventory.images) is not None:
        side = images.patch * images.merge
        parts.append(
            f"image encoder, not trained: {parameters(images.num_parameters).text}, a token for each "
            f"{side} x {side} pixels, in the place of token {images.token}\n"
        )
    if inventory.ties:
        parts.append("tied\n" + "".join(f"  {' = '.join(tie)}\n" for tie in inventory.ties))
    if inventory.tp_plan:
        parts.append("the model's own tensor-parallel plan\n" + render_table(inventory.tp_plan, indent="  "))
    return "\n".join(part for part in parts if part)


def _head(inventory: Inventory) -> str:
    positions = f", {format_number(inventory.max_positions)} positions" if inventory.max_positions else ""
    return (
        f"{inventory.architecture} ({inventory.model_type}), "
        f"{parameters(inventory.num_parameters).text}, vocabulary {format_number(inventory.vocab_size)}, "
        f"hidden size {format_number(inventory.hidden_size)}{positions}\n"
    )


def _modules(inventory: Inventory) -> str:
    owners = [module for module in inventory.modules if module.parameters]
    alike: dict[tuple[object, ...], list[Module]] = {}
    for module in owners:
        alike.setdefault((module.class_name, module.kind, module.parameters), []).append(module)
    rows: dict[str, tuple[str, str, str, str]] = {}
    for members in alike.values():
        shapes = ", ".join(f"{p.name} {format_shape(p.shape)}" for p in members[0].parameters)
        for folded, names in fold([member.fqn for member in members]).items():
            rows[names[0]] = (folded, members[0].class_name, str(members[0].kind), shapes)
    ordered = [rows[module.fqn] for module in owners if module.fqn in rows]
    return render_table(ordered, header=("module", "class", "kind", "parameters"))


def _attention(inventory: Inventory) -> str:
    alike: dict[tuple[int, int, int, int | None], list[str]] = {}
    for attention in inventory.attentions:
        key = (attention.num_heads, attention.num_kv_heads, attention.head_dim, attention.window)
        alike.setdefault(key, []).append(attention.fqn)
    rows = [
        (folded, str(heads), str(kv_heads), str(head_dim), str(window) if window else "none")
        for (heads, kv_heads, head_dim, window), fqns in alike.items()
        for folded in summarise(fqns)
    ]
    header = ("attention", "heads", "kv heads", "head dim", "window")
    return render_table(rows, header=header, right=(1, 2, 3, 4)) if rows else ""
