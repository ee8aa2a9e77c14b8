"""The process that probes a plan's own model class: answers with its inventory, or why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planc.inventory.codec import dumps
from planc.inventory.files import InventoryError
from planc.inventory.probe.probe import DoesNotRunError, probe
from planc.runtime.errors import RunError
from planc.runtime.extensions import fault_of
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
    except DoesNotRunError as error:
        assert error.__cause__ is not None, "it is raised from what the code raised"
        message = f"`{own.entry}` does not run: {fault_of(error.__cause__, file=own.file)}"
        help = f"correct {own.file}; it is tried on tensors without values, on which code can't branch"
        return {"message": message, "help": help}
    except (RunError, InventoryError) as error:
        return {"message": error.message, "help": error.help or f"correct {own.file}"}
