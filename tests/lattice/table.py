"""The lattice against one process, as Markdown: what is run, and the worst errors of every mesh."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers

from tests.dist.pool import start_server
from tests.lattice.cells import (
    WAYS,
    WORLD_SIZES,
    Cell,
    Mesh,
    cells,
    expert_cells,
    full_product,
    is_supported,
    loss_cells,
    make_workspace,
    narrow_cells,
    pipeline_cells,
    pipelines,
    sharding_cells,
    trained_cells,
    unit_cells,
)
from tests.lattice.measure import LIMITS, Row, measure_all

_ABOUT = """\
# The lattice

Every mesh of 1, 2, 4 and 8 ranks against one process: the worst relative errors of each step's loss and
gradient norm, of every parameter's first gradient, and of what two steps changed of every parameter. Initial
weights, sample ids and replicas are compared bit for bit. Ranks are processes over gloo, and the plan's own
graph runs on the torch backend.

The other axes: FSDP everywhere, and whole replicas where nothing else divides the data; sequence parallelism
and loss parallelism on and off (over tp), ring and all-gather attention with headtail and without, Ulysses
(over cp), 1 and 4 micro steps, recomputation none, selective and full. On 4 ranks their full product is run;
on 1 and 2 ranks as many cells of each mesh as it takes for every two values of two axes to meet, and on 8
ranks as many as that takes with the mesh as one more axis. cells.py has the models.

Pipelines have 8 layers, and stages next to each of FSDP, whole replicas, tensor, sequence and context
parallelism. The axes are the schedule, recomputation, the number of micro-batches (half the ranks of pp, as
many, and half more), and whether the embedding is the head's weight too. One part has units of FSDP of other
shapes than whole layers: none, the ends alone, attention, MLPs, norms, all layers but one.

One part has a mixture of experts, of which 2 or 4 ranks of dp_shard, cp and tp hold different ones: next to
every other mesh dim, in pipelines of up to 8 ranks, and also with experts that drop tokens beyond their
capacity.

Another part has four axes more, enough cells that every two of their values meet: what is trained (all, all
but the embedding, a layer and the norms, or adapters of a frozen base in the model's dtype (LoRA, DoRA) or in
NF4 (QLoRA)), also next to experts on different ranks, the optimizer (AdamW, Muon, AdamW with moments of 8
bits), whether moving averages are kept, and whether the loss is of pairs of answers (DPO). What is
frozen is compared bit for bit.

One part has the losses: cross entropy in 4 chunks, and DPO and distillation from stored probabilities of a
teacher whole and in 4 chunks, of all weights and of adapters.
"""
_COLUMNS = ("mesh", "cells", "of", "loss", "grad norm", "gradient", "update", "")


Part = Callable[[], tuple[Cell, ...]]
"""Chooses the cells of a part, which takes a second."""


def parts() -> Mapping[str, Part]:
    """Every cell that is run, by the part of the lattice that it belongs to."""
    narrow: dict[str, Part] = {
        f"{dtype}, a sample": partial(narrow_cells, dtype) for dtype in ("float32", "bfloat16")
    }
    pipelined: dict[str, Part] = {
        f"float64, pipelines of {pp} ranks": partial(pipeline_cells, pp) for pp in (2, 4)
    }
    others: dict[str, Part] = {
        "float64, pipelines with other units": unit_cells,
        "float64, ZeRO-1, ZeRO-2, and gradients reduced each micro-batch": sharding_cells,
        "float64, experts on different ranks": expert_cells,
        "float64, parts frozen, adapters, averages, pairs of answers, and optimizers": trained_cells,
        "float64, pairs of answers, a teacher, and losses in chunks": loss_cells,
    }
    every: dict[str, Part] = {_title(world_size): partial(cells, world_size) for world_size in WORLD_SIZES}
    return every | pipelined | others | narrow


def _title(world_size: int) -> str:
    return f"float64, {world_size} rank{'s' if world_size > 1 else ''}"


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0 if every cell passes. Arguments keep the parts whose name contains one of them."""
    every = parts()
    for wanted in arguments:
        if not any(wanted in name for name in every):
            print(f"no part is called {wanted!r}; there are {'; '.join(every)}", file=sys.stderr)
            return 2
    chosen = {name: every[name]() for name in chosen_names(tuple(every), arguments)}
    began = time.monotonic()
    start_server()
    for line in _title_lines(arguments):
        print(line)
    failed: list[Row] = []
    with TemporaryDirectory(prefix="planc-lattice-") as folder:
        workspace = make_workspace(Path(folder) / "workspace")
        for name, found in chosen.items():
            for line in _heading(name, found):
                print(line)
            measured = measure_all(found, workspace=workspace)
            for mesh, group in groupby(measured, key=lambda row: row.cell.mesh):
                rows = list(group)
                failed.extend(row for row in rows if row.problems)
                print(_line(mesh, rows, found), flush=True)
    for row in failed:
        print(f"\n{row.cell.name}: {'; '.join(row.problems)}")
    num_cells = sum(map(len, chosen.values()))
    verdict = f"{len(failed)} of {num_cells} cells failed" if failed else f"All {num_cells} cells pass"
    print(f"\n{verdict}, in {time.monotonic() - began:.0f} s on {os.cpu_count()} cores.")
    return 1 if failed else 0


def chosen_names(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The names that contain one of the arguments; without arguments, all of them."""
    return [name for name in names if not arguments or any(wanted in name for wanted in arguments)]


def _title_lines(arguments: Sequence[str]) -> Iterator[str]:
    command = " ".join(("python tests/lattice/run.py", *(f'"{argument}"' for argument in arguments)))
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    yield _ABOUT
    yield f"`{command}`, {date.today()}, Python {platform.python_version()}, {versions}."


def _heading(name: str, found: Sequence[Cell]) -> Iterator[str]:
    limits = LIMITS[found[0].dtype]
    every = sum(_num_cells(mesh, found) for mesh in dict.fromkeys(cell.mesh for cell in found))
    yield ""
    yield f"## {name}"
    yield ""
    yield f"{len(found)} of {every} cells; {every - len(found)} are not run. Limits: loss {limits.loss:.0e},"
    yield f"gradient norm {limits.grad_norm:.0e}, gradient {limits.gradient:.0e}, update {limits.update:.0e}."
    yield ""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"|{'---|' * len(_COLUMNS)}"


def _num_cells(mesh: Mesh, found: Sequence[Cell]) -> int:
    """The cells of a mesh, with each way to train and to shard that a part has."""
    staged = (cell for is_tied in (False, True) for cell in pipelines(mesh, is_tied=is_tied))
    every = full_product(mesh) if mesh.pp == 1 else staged
    ways = {tuple((name, getattr(cell, name)) for name in (*WAYS, "sharding")) for cell in found}
    return sum(is_supported(replace(cell, **dict(way))) for cell in every for way in ways)


def _line(mesh: Mesh, rows: Sequence[Row], found: Sequence[Cell]) -> str:
    num_failed = sum(bool(row.problems) for row in rows)
    worst = (max(getattr(row, what) for row in rows) for what in ("loss", "grad_norm", "gradient", "update"))
    cells_of = (
        mesh.name,
        str(len(rows)),
        str(_num_cells(mesh, found)),
        *(f"{error:.1e}" for error in worst),
        f"{num_failed} failed" if num_failed else "ok",
    )
    return f"| {' | '.join(cells_of)} |"
