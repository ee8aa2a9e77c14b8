"""What a check did not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from planc.checks.data.files_absent import absent_files
from planc.graph.graph import Graph
from planc.graph.ops import LoadWeights
from planc.hub.names import model_folder
from planc.plan.data import FileTokenizer
from planc.plan.spec import Plan, Weights
from planc.tables import Row


def unread(plan: Plan, graph: Graph, *, base: Path, is_deep: bool, has_data: bool) -> Row | None:
    """A row with the inputs that only a run opens: `not read  weights, data; --deep also rehearses the run`.

    None without any. It notes inputs with files missing on this machine, which may not be the run's. A
    tokenizer's file is read if it exists, to count its ids.
    """
    rest = "" if is_deep else "; --deep also rehearses the run"
    names = ", ".join(_unread(plan, graph, base, has_data=has_data))
    return ("not read", f"{names}{rest}") if names else None


def _unread(plan: Plan, graph: Graph, base: Path, *, has_data: bool) -> Iterator[str]:
    if plan.model.weights is Weights.PRETRAINED:
        folders = [model_folder(op.path, base=base) for op in graph.setup if isinstance(op, LoadWeights)]
        is_whole = all(any(folder.glob("*.safetensors")) for folder in folders)
        yield "weights" if is_whole else "weights (files not found)"
    if has_data:
        return
    missing = [one.pattern for _, source in plan.data.sources() for one in absent_files(source, base=base)]
    yield f"data (no file matches {_some(missing)})" if missing else "data"
    tokenizer = plan.data.tokenizer
    if isinstance(tokenizer, FileTokenizer) and not (base / tokenizer.path).exists():
        yield f"tokenizer (no file {tokenizer.path})"


def _some(names: Sequence[str]) -> str:
    """`data/*.txt and 2 more`."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
