"""`planc inventory`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from planc.api import cache_dir
from planc.cli.running.fetching import say
from planc.cli.support.exits import CLEAN, UsageError
from planc.cli.support.plans import announce_probe
from planc.hub.names import is_hub, parse_hub
from planc.inventory.codec import dumps
from planc.inventory.load import (
    InventoryError,
    LibraryMissing,
    load_inventory,
    save_cached_inventory,
    save_inventory,
)
from planc.runtime.errors import RunError
from planc.runtime.fetch import require_model
from planc.show.inventory import inventory_text

DESCRIPTION = """\
Show what planc knows of a model: modules, parameters, attention, the model's own tensor-parallel plan.
A folder's inventory.json is read if it is there; else one is made from config.json, which needs torch
and transformers, and is kept in the cache. No weights are read. Of a model of the Hugging Face hub the
config.json and the tokenizer are fetched, at one commit, unless they are here; with HF_HUB_OFFLINE=1
nothing is."""

EPILOG = """\
examples:
  planc inventory models/llama-3.1-8b
  planc inventory models/llama-3.1-8b --save      (so that checks elsewhere need no torch)
  planc inventory hf://org/name@0123456789abcdef0123456789abcdef01234567"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL_DIR", help="a folder with a config.json, or hf://org/name@commit"
    )
    parser.add_argument("--save", action="store_true", help="write a fresh inventory.json into the folder")
    parser.add_argument("--output-format", choices=("text", "json"), default="text")


def run(arguments: Namespace) -> int:
    """0 once shown or saved; UsageError for a folder that no inventory can be had of."""
    folder = _fetched(arguments.model) if is_hub(arguments.model) else Path(arguments.model)
    if arguments.save and is_hub(arguments.model):
        raise UsageError(
            "--save is for folders of your own; of the hub's models planc keeps inventories itself"
        )
    try:
        if arguments.save:
            print(f"wrote {_save(folder)}", file=sys.stderr)
        loaded = load_inventory(folder, cache_dir=cache_dir(), on_probe=announce_probe)
    except InventoryError as error:
        raise UsageError(f"{error.message}\n{error.help}") from error
    if arguments.output_format == "json":
        sys.stdout.write(dumps(loaded.inventory))
    else:
        sys.stdout.write(inventory_text(loaded.inventory))
        print(f"{loaded.origin}: {loaded.path}", file=sys.stderr)
    return CLEAN


def _save(folder: Path) -> str:
    """The file that is written, and where it is from if no probe could be made."""
    try:
        return str(save_inventory(folder))
    except LibraryMissing:
        path = save_cached_inventory(folder, cache_dir=cache_dir())
        if path is None:
            raise
        return f"{path} from the cache, without a fresh probe: torch or transformers is not installed"


def _fetched(name: str) -> Path:
    """The folder with the config.json of a model of the hub; UsageError where it cannot be had."""
    try:
        return require_model(parse_hub(name), with_weights=False, say=say)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except RunError as error:
        raise UsageError(f"{error.message}\n{error.help}") from error
