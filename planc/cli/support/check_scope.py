"""What a check did not look at."""

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
    """`not read  weights, data; --deep also rehearses the run`: what only a run opens, and what can be done.

    Where its files are not on this machine, which need not be the run's, that is said. A tokenizer's file
    that lies where the plan says was read, to count its ids.
    """
    rest = "" if is_deep else "; --deep also rehearses the run"
    return "not read", f"{', '.join(_unread(plan, graph, base))}{rest}"


def _unread(plan: Plan, graph: Graph, base: Path) -> Iterator[str]:
    absent = {kind for op in graph.setup if (kind := _absent(op, base)) is not None}
    if plan.model.weights is Weights.PRETRAINED:
        yield "weights (its files are not here)" if "weights" in absent else "weights"
    yield "data (not all of its files are here)" if "data" in absent else "data"
    tokenizer = plan.data.tokenizer
    if isinstance(tokenizer, FileTokenizer) and not (base / tokenizer.path).exists():
        yield "tokenizer (its file is not here)"


def _absent(op: Op, base: Path) -> str | None:
    """What of an op's lies in files of which there are none; `planc doctor` says which, and more."""
    match op:
        case LoadWeights():
            folder = model_folder(op.path, base=base)
            return None if any(folder.glob("*.safetensors")) else "weights"
        case OpenData() | OpenEvaluation() if reads_local_files(op):
            is_whole = all(any(glob.iglob(one, root_dir=base, recursive=True)) for one in op.patterns)
            return None if is_whole else "data"
        case _:
            return None
