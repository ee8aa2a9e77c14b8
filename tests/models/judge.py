"""One architecture through planc: what `check` says of each column's plan, and how those it accepts train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planc.api import Checked, check_source
from planc.diagnostics import Severity
from planc.graph.graph import Graph
from planc.inventory.load import InventoryError, load_inventory, save_inventory
from planc.inventory.schema import Inventory
from planc.source import SourceFile
from planc.verify.pool import RankError, run_ranks
from planc.verify.ranks import Record, Task, train_rank
from planc.verify.reference import Training, train
from planc.verify.verify import cause, compared
from tests.models.plain import plain_loss
from tests.models.plans import COLUMNS, CORPUS, NUM_STEPS, NoPlan, plan_text, recipe, variants
from tests.models.tiny import tiny_config

_TIMEOUT_SECONDS = 100.0
_COLLECTIVE_TIMEOUT_SECONDS = 30
LOSS_LIMIT = 1e-5
"""Relative, of the loss to the one that transformers computes by itself."""


class Status(StrEnum):
    EQUAL = "equal"
    REFUSED = "refused"
    """By `planc check`."""
    SKIPPED = "skipped"
    """There is no plan to try."""
    DIFFERENT = "DIFFERENT"
    FAILED = "FAILED"
    UNKNOWN = "unknown"
    """transformers itself cannot train the tiny model, so there is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What became of one column. `error` is the worst gradient's, relative; `codes` a refusal's."""

    status: Status
    detail: str = ""
    error: float | None = None
    codes: tuple[str, ...] = ()
    variant: str = ""
    """What the plan had to say of attention for `check` to take it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One architecture."""

    model_type: str
    architecture: str
    cells: dict[str, Cell]

    def data(self) -> dict[str, Any]:
        return asdict(self)


def judged(model_type: str, architecture: str) -> Row:
    """The row of an architecture; nothing raises but for bugs of this table."""
    with TemporaryDirectory(prefix="planc-models-") as name:
        folder = Path(name)
        write_corpus(folder / CORPUS)
        try:
            inventory = prepare(model_type, architecture, folder=folder)
        except InventoryError as error:
            refused = Cell(Status.REFUSED, error.message.replace(f"{folder}/", ""), codes=("P216",))
            return Row(model_type, architecture, dict.fromkeys(COLUMNS, refused))
        return Row(model_type, architecture, dict(_cells(inventory, model_type, folder=folder)))


def prepare(model_type: str, architecture: str, *, folder: Path) -> Inventory:
    """The inventory of the tiny model, whose config.json this writes below `folder`."""
    (folder / model_type).mkdir()
    config = json.dumps(tiny_config(model_type, architecture), indent=1)
    (folder / model_type / "config.json").write_text(config, encoding="utf-8")
    # Saved, it is what every check reads; a cache may hold one from before a change of the probe.
    save_inventory(folder / model_type)
    return load_inventory(folder / model_type, cache_dir=folder).inventory


def write_corpus(path: Path) -> None:
    """Text enough for the steps that are run, without end of repetition."""
    words = ("the", "mesh", "of", "ranks", "holds", "every", "weight", "once", "and", "sums", "gradients")
    text = " ".join(words[(i * i + 3 * i) % len(words)] + str(i) for i in range(400))
    path.write_text(text, encoding="utf-8")


def _cells(inventory: Inventory, model_type: str, *, folder: Path) -> Iterator[tuple[str, Cell]]:
    reference: Training | Cell | None = None
    for column in COLUMNS:
        graph, cell = accepted(column, inventory, model=model_type, base=folder)
        if graph is not None:
            reference = reference or _reference(model_type, folder=folder)
            if isinstance(reference, Cell):
                yield column, reference
                continue
            cell = replace(_run(graph, reference, folder=folder), variant=cell.variant)
            if column == "one" and cell.status is Status.EQUAL:
                cell = _against_plain(cell, reference, model_type, folder=folder)
        yield column, cell


def accepted(column: str, inventory: Inventory, *, model: str, base: Path) -> tuple[Graph | None, Cell]:
    """The graph of a column's plan, or why there is none. Where a variant is refused, the next is tried."""
    refusals: list[Cell] = []
    for variant in variants(column):
        try:
            text = plan_text(column, inventory, model=model, variant=variant)
        except NoPlan as error:
            return None, Cell(Status.SKIPPED, str(error))
        checked = check_source(SourceFile(f"{model}.plan", text), base=base)
        if checked.graph is not None:
            chosen = "" if variant == variants(column)[0] else variant.rotate or variant.attention
            return checked.graph, Cell(Status.EQUAL, variant=chosen)
        refusals.append(_refusal(checked))
    # Attention of the model's own is tried because planc's does not do: then its refusal is what counts.
    is_unsupported = column != "cp" and "P708" in refusals[0].codes
    return None, refusals[-1] if is_unsupported else refusals[0]


def _refusal(checked: Checked) -> Cell:
    errors = [one for one in checked.diagnostics if one.severity is Severity.ERROR]
    codes = tuple(dict.fromkeys(one.code.code for one in errors))
    return Cell(Status.REFUSED, f"{errors[0].code.summary}: {errors[0].primary.text}", codes=codes)


def _reference(model_type: str, *, folder: Path) -> Training | Cell:
    """The training of one process, in a process of its own: a class may end it."""
    try:
        (training,) = run_ranks(
            train_alone, 1, model_type, folder, timeout_seconds=_TIMEOUT_SECONDS, init=False, quiet=True
        )
    except (RankError, TimeoutError) as error:
        return Cell(Status.UNKNOWN, cause(error))
    return training


def train_alone(rank: int, world_size: int, model_type: str, folder: Path) -> Training:
    return train(recipe(model_type, base=folder))


def _against_plain(cell: Cell, reference: Training, model_type: str, *, folder: Path) -> Cell:
    """The cell, DIFFERENT where transformers' own forward has another loss."""
    try:
        (loss,) = run_ranks(
            plain_loss, 1, model_type, folder, timeout_seconds=_TIMEOUT_SECONDS, init=False, quiet=True
        )
    except (RankError, TimeoutError) as error:
        return Cell(Status.FAILED, f"transformers' own loss: {cause(error)}")
    error = abs(reference.losses[0] - loss) / loss
    if error <= LOSS_LIMIT:
        return cell
    detail = f"loss {reference.losses[0]:.6g}, transformers' own {loss:.6g}"
    return replace(cell, status=Status.DIFFERENT, detail=detail, error=error)


def _run(graph: Graph, reference: Training, *, folder: Path) -> Cell:
    try:
        records = run_graph(graph, folder=folder)
    except (RankError, TimeoutError) as error:
        return Cell(Status.FAILED, cause(error))
    found = tuple(compared(records, reference))
    gradients = next(one.error for one in found if one.item == "gradients")
    wrong = [f"{one.item.value}: {one.detail}" for one in found if not one.ok]
    return Cell(Status.DIFFERENT if wrong else Status.EQUAL, "; ".join(wrong), gradients)


def run_graph(graph: Graph, *, folder: Path) -> list[Record]:
    """What every rank saw of the first steps."""
    with TemporaryDirectory(prefix="planc-models-run-") as run_folder:
        task = Task(
            graph,
            folder,
            Path(run_folder),
            stop_after=NUM_STEPS,
            collective_timeout_seconds=_COLLECTIVE_TIMEOUT_SECONDS,
        )
        return run_ranks(
            train_rank, graph.world_size, task, timeout_seconds=_TIMEOUT_SECONDS, init=False, quiet=True
        )
