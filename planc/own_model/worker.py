"""The process that probes a plan's own model class: answers with its inventory, or why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planc.inventory.codec import dumps
from planc.inventory.files import InventoryError
from planc.inventory.probe.probe import probe
from planc.runtime.errors import RunError
from planc.runtime.own_process import extension_of, serve
from planc.runtime.torch.weights.factory import own_class


def main() -> None:
    """Answer `probing.probe_own`."""
    serve(_answer)


def _answer(request: dict[str, Any]) -> dict[str, str]:
    own = extension_of(request["own"])
    try:
        model_class = own_class(own, base=Path(request["base"]), is_allowed=True)
        return {"inventory": dumps(probe(Path(request["model_dir"]), own=model_class))}
    except (RunError, InventoryError) as error:
        return {"message": error.message, "help": error.help or f"correct {own.file}"}
