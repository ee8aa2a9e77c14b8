"""Probe a plan's own model class in another process."""

from __future__ import annotations

from pathlib import Path

from planc.extend.reference import Extension
from planc.inventory.files import InventoryError

_SECONDS = 1_800


def probe_own(model_dir: Path, own: Extension, *, base: Path) -> str:
    """The inventory of the class with the config.json in `model_dir`, as text. InventoryError."""
    # The runtime, which a check does without.
    from planc.runtime.own_process import NoAnswerError, ask, extension_as_json

    request = {
        "own": extension_as_json(own),
        "base": str(base.absolute()),
        "model_dir": str(model_dir.absolute()),
    }
    try:
        answer = ask(
            "planc.own_model.worker", request, seconds=_SECONDS, environment={"CUDA_VISIBLE_DEVICES": ""}
        )
    except NoAnswerError as error:
        raise InventoryError(
            f"the process that probes `{own.entry}` of {own.file} {error}",
            help=f"run {own.file} by itself, with a config.json of few layers",
        ) from error
    if "message" in answer:
        raise InventoryError(answer["message"], help=answer["help"])
    inventory: str = answer["inventory"]
    return inventory
