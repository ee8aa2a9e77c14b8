"""One architecture through planc: `check`'s result for each column's plan, and how accepted plans train."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from sysconfig import get_path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from planc.api import Checked, check_source
from planc.diagnostics import Severity
from planc.graph.graph import Graph
from planc.graph.ops import BuildModel, InitWeights
from planc.inventory.load import InventoryError, load_inventory, save_inventory
from planc.inventory.schema import Inventory
from planc.runtime.torch.parallel.ties import tie, tied_parameters
from planc.runtime.torch.weights.build import meta_model
from planc.runtime.torch.weights.weights import initialize
from planc.source import SourceFile
from planc.verify.pool import RankError, run_ranks
from planc.verify.ranks import Record, Task, train_rank
from planc.verify.verify import cause
from tests.models.agreement import agreement, initial_faults
from tests.models.independent import (
    Drawn,
    Measured,
    compiled_alone,
    digest,
    drawn,
    initial,
    measured,
    tensors_of,
    write_corpus,
    write_weights,
)
from tests.models.plans import (
    COLUMNS,
    CORPUS,
    NUM_STEPS,
    dtype_of,
    is_filled,
    plan_text,
    size_of,
    variants,
)
from tests.models.tiny import SEQUENCE_LENGTH, SMALLEST, Size, tiny_config

Result = TypeVar("Result")

_TIMEOUT_SECONDS = 300.0
"""Of the slowest, which compile loops over tokens."""
_UNCONVERTED = "RunError: planc cannot convert "
_COLLECTIVE_TIMEOUT_SECONDS = 30


class Status(StrEnum):
    EQUAL = "equal"
    REFUSED = "refused"
    """By `planc check`."""
    NOT_LOADED = "not loaded"
    """By a run, before its first step: it names weights that planc cannot bring into the model's form."""
    DIFFERENT = "DIFFERENT"
    FAILED = "FAILED"
    UNKNOWN = "unknown"
    """transformers and torch alone cannot train or compile the model: there is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What became of one column. `error` is the worst gradient's, relative; `codes` a refusal's."""

    status: Status
    detail: str = ""
    error: float | None = None
    codes: tuple[str, ...] = ()
    variant: str = ""
    """The attention settings with which `check` accepts the plan."""


@dataclass(frozen=True, slots=True)
class Row:
    """One architecture."""

    model_type: str
    architecture: str
    cells: dict[str, Cell]

    def data(self) -> dict[str, Any]:
        return asdict(self)


def judged(
    model_type: str,
    architecture: str,
    *,
    columns: Iterable[str] = COLUMNS,
    changes: Mapping[str, object] | None = None,
) -> Row:
    """The row of an architecture, with changes of its config; nothing raises but for bugs of this table."""
    filled = [one for one in columns if is_filled(one, model_type)]
    cells: dict[str, Cell] = {}
    for size, group in groupby(filled, key=size_of):
        cells |= _judged(model_type, architecture, columns=tuple(group), changes=changes or {}, size=size)
    return Row(model_type, architecture, cells)


def _judged(
    model_type: str, architecture: str, *, columns: tuple[str, ...], changes: Mapping[str, object], size: Size
) -> dict[str, Cell]:
    """The cells of columns whose tiny model has this size."""
    with TemporaryDirectory(prefix="planc-models-") as name:
        folder = Path(name)
        write_corpus(folder / CORPUS, sequence_length=SEQUENCE_LENGTH)
        try:
            inventory = prepare(model_type, architecture, changes=changes, folder=folder, size=size)
        except InventoryError as error:
            refused = Cell(Status.REFUSED, error.message.replace(f"{folder}/", ""), codes=("P216",))
            return dict.fromkeys(columns, refused)
        except (RankError, TimeoutError) as error:
            return dict.fromkeys(columns, Cell(Status.UNKNOWN, cause(error)))
        return dict(_cells(inventory, model_type, columns=columns, folder=folder))


def prepare(
    model_type: str, architecture: str, *, changes: Mapping[str, object], folder: Path, size: Size = SMALLEST
) -> Inventory:
    """The inventory of the tiny model, whose config.json and weights this writes below `folder`."""
    (folder / model_type).mkdir()
    config = json.dumps({**tiny_config(model_type, architecture, size=size), **changes}, indent=1)
    (folder / model_type / "config.json").write_text(config, encoding="utf-8")
    # Of what is refused there is nothing to train: the weights of some such models are large.
    save_inventory(folder / model_type)
    (folder / model_type / "inventory.json").unlink()
    _alone(written, folder / model_type)
    _change(folder / model_type / "config.json", changes)
    # Saved, it is what every check reads; a cache may hold one from before a change of the probe.
    save_inventory(folder / model_type)
    return load_inventory(folder / model_type, cache_dir=folder).inventory


def _change(path: Path, changes: Mapping[str, object]) -> None:
    """Again after transformers has written the config next to its weights."""
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, **changes}, indent=1), encoding="utf-8")


def written(rank: int, world_size: int, folder: Path) -> None:
    write_weights(folder)


def _cells(
    inventory: Inventory, model_type: str, *, columns: Iterable[str], folder: Path
) -> Iterator[tuple[str, Cell]]:
    references: dict[str, Measured | Cell] = {}

    def trained(column: str) -> Cell:
        graph, cell = accepted(column, inventory, model=model_type, base=folder)
        if graph is None:
            return cell
        dtype = dtype_of(column)
        if dtype not in references:
            references[dtype] = reference_of(model_type, dtype, folder=folder)
        reference = references[dtype]
        if isinstance(reference, Cell):
            return reference
        return replace(outcome_of(graph, reference, dtype=dtype, folder=folder), variant=cell.variant)

    for column in columns:
        if column == "random":
            yield column, _random_cell(inventory, model_type, folder=folder)
            continue
        cell = trained(column)
        if cell.status is Status.DIFFERENT and dtype_of(column) == "float32":
            # Rounding that a model amplifies is gone in float64, and a fault is not.
            again = trained(f"{column} float64")
            is_rounding = again.status is Status.EQUAL
            cell = replace(again, variant=f"{again.variant} float64".lstrip()) if is_rounding else cell
        if cell.status is Status.FAILED and column in ("compile", "compile-full"):
            cell = _compiled_alone(model_type, folder=folder, recomputed=column == "compile-full") or cell
        yield column, cell


def _random_cell(inventory: Inventory, model_type: str, *, folder: Path) -> Cell:
    """Whether random weights, in every dtype, are of the values and dtypes that transformers' own are of."""
    for column in ("random", "random bfloat16", "random float16"):
        graph, cell = accepted(column, inventory, model=model_type, base=folder)
        if graph is None:
            return cell
        arguments = (folder / model_type, dtype_of(column))
        try:
            (expected,) = _alone(initial, *arguments)
        except (RankError, TimeoutError) as error:
            return Cell(Status.UNKNOWN, cause(error))
        try:
            (found,) = _alone(initial_of, graph, folder)
        except (RankError, TimeoutError) as error:
            return Cell(Status.FAILED, cause(error))
        wrong = list(initial_faults(found, expected))
        if wrong:
            return Cell(Status.DIFFERENT, f"{dtype_of(column)}: {'; '.join(wrong[:3])}")
    return Cell(Status.EQUAL)


def initial_of(rank: int, world_size: int, graph: Graph, folder: Path) -> dict[str, tuple[str, Drawn]]:
    """The parameters and buffers with which a plan of random weights begins, in one process."""
    build = next(op for op in graph.setup if isinstance(op, BuildModel))
    init = next(op for op in graph.setup if isinstance(op, InitWeights))
    model = meta_model(build, base=folder)
    ties = tied_parameters(model)
    model.to_empty(device="cpu")
    tie(model, ties)
    initialize(model, seed=init.seed)
    return {name: (digest(tensor), drawn(tensor)) for name, tensor in tensors_of(model)}


def accepted(column: str, inventory: Inventory, *, model: str, base: Path) -> tuple[Graph | None, Cell]:
    """The graph of a column's plan, or why there is none. Where a variant is refused, the next is tried."""
    refusals: list[Cell] = []
    for variant in variants(column):
        text = plan_text(column, inventory, model=model, variant=variant)
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


def reference_of(model_type: str, dtype: str, *, folder: Path) -> Measured | Cell:
    """The training of one process, in a process of its own: a class may end it."""
    arguments = (folder / model_type, folder / CORPUS, SEQUENCE_LENGTH, dtype, NUM_STEPS)
    try:
        (training,) = _alone(measured, *arguments)
    except (RankError, TimeoutError) as error:
        return Cell(Status.UNKNOWN, cause(error))
    return training


def _compiled_alone(model_type: str, *, folder: Path, recomputed: bool) -> Cell | None:
    """Why torch alone, in one process, does not compile the model; None if it does."""
    arguments = (folder / model_type, folder / CORPUS, SEQUENCE_LENGTH, recomputed)
    try:
        _alone(compiled_alone, *arguments)
    except (RankError, TimeoutError) as error:
        # Messages of the compiler name files of this installation.
        reason = cause(error).replace(f"{get_path('purelib')}/", "")
        return Cell(Status.UNKNOWN, f"torch.compile alone: {reason}")
    return None


def _alone(function: Callable[..., Result], *arguments: object) -> list[Result]:
    return run_ranks(function, 1, *arguments, timeout_seconds=_TIMEOUT_SECONDS, init=False, quiet=True)


def outcome_of(graph: Graph, reference: Measured, *, dtype: str, folder: Path) -> Cell:
    """What came of training a graph on ranks of their own."""
    try:
        records = run_graph(graph, folder=folder)
    except (RankError, TimeoutError) as error:
        text = cause(error)
        return Cell(Status.NOT_LOADED if _UNCONVERTED in text else Status.FAILED, text)
    found = agreement(records, reference, dtype=dtype)
    return Cell(Status.DIFFERENT if found.wrong else Status.EQUAL, "; ".join(found.wrong), found.error)


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
