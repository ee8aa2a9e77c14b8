"""What a check did not read."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path

from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import LoadWeights, OpenData, OpenEvaluation
from planc.graph.sources import reads_local_files
from planc.hub.names import model_folder
from planc.plan.data import FileTokenizer
from planc.plan.spec import Plan, Weights
from planc.tables import Row


def unread(plan: Plan, graph: Graph, *, base: Path, is_deep: bool) -> Row:
    """A row with the inputs that only a run opens: `not read  weights, data; --deep also rehearses the run`.

    It notes inputs with files missing on this machine, which may not be the run's. A tokenizer's file is read
    if it exists, to count its ids.
    """
    rest = "" if is_deep else "; --deep also rehearses the run"
    return "not read", f"{', '.join(_unread(plan, graph, base))}{rest}"


def _unread(plan: Plan, graph: Graph, base: Path) -> Iterator[str]:
    absent = {kind for op in graph.setup if (kind := _absent(op, base)) is not None}
    if plan.model.weights is Weights.PRETRAINED:
        yield "weights (files not found)" if "weights" in absent else "weights"
    yield "data (some files not found)" if "data" in absent else "data"
    tokenizer = plan.data.tokenizer
    if isinstance(tokenizer, FileTokenizer) and not (base / tokenizer.path).exists():
        yield "tokenizer (file not found)"


def _absent(op: Op, base: Path) -> str | None:
    """The kind of an op's input if its files are missing; `planc doctor` reports which files."""
    match op:
        case LoadWeights():
            folder = model_folder(op.path, base=base)
            return None if any(folder.glob("*.safetensors")) else "weights"
        case OpenData() | OpenEvaluation() if reads_local_files(op):
            is_whole = all(any(glob.iglob(one, root_dir=base, recursive=True)) for one in op.patterns)
            return None if is_whole else "data"
        case _:
            return None
