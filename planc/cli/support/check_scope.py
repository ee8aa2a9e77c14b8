"""The plans that a command line names, and facts of their files in a check."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from planc.api import Checked
from planc.checks.data.files_absent import absent_files
from planc.checks.data.tokenizer_file import begin_of_documents, end_of_documents
from planc.cli.support.exits import UsageError
from planc.cli.support.options import STDIN
from planc.diagnostics import Severity
from planc.graph.graph import Graph
from planc.graph.ops import LoadBase, LoadWeights
from planc.hub.headers import tensor_shapes
from planc.hub.names import model_folder
from planc.plan.codes import MISSING, NOT_BELOW_ROOT, PRESET
from planc.plan.conversations import Chat, Pairs
from planc.plan.data import FileTokenizer
from planc.plan.spec import Plan, Weights
from planc.record import record
from planc.syntax import ast
from planc.syntax.parse import parse
from planc.tables import Row

_SUFFIX = ".plan"

_ERRORS_OF_BASES = {MISSING, NOT_BELOW_ROOT, PRESET}
"""Codes that a check of a base alone reports: it lacks blocks, or includes files above its own directory."""
_BLOCKS = {"model", "mesh", "data", "optimizer", "train"}
"""A base that lacks one of these can break any rule by itself."""


@record
class PlanFile:
    """A file to read. `is_listed` if a directory was named, not the file."""

    path: str
    is_listed: bool = False


def plan_files(names: Sequence[str]) -> tuple[PlanFile, ...]:
    """Expand directories to every .plan file in them, sorted; hidden directories are skipped.

    UsageError for a directory without plans, and for stdin among other names.
    """
    if STDIN in names and len(names) > 1:
        raise UsageError("`-` (stdin) can't be combined with other files")
    files: list[PlanFile] = []
    for name in names:
        if name == STDIN or not name or not os.path.isdir(name):
            # As a finding names the file: `./x.plan` is `x.plan`.
            files.append(PlanFile(str(Path(name))))
            continue
        listed = [PlanFile(path, is_listed=True) for path in _plans_in(name)]
        if not listed:
            raise UsageError(f"no {_SUFFIX} file in `{name}`")
        files.extend(listed)
    return tuple(files)


def _plans_in(directory: str) -> Iterator[str]:
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield from (str(Path(folder, name)) for name in sorted(names) if name.endswith(_SUFFIX))


def included_by(checked: Iterable[Checked]) -> frozenset[str]:
    """Return the real paths of all files that the checked plans extend or import."""
    return frozenset(os.path.realpath(name) for one in checked for name in one.included)


def is_part(checked: Checked, path: str, *, included: frozenset[str]) -> bool:
    """Whether a file is a preset, or a base that some plan includes: it is checked as a part of that plan."""
    errors = {diagnostic.code for diagnostic in checked.diagnostics if diagnostic.severity is Severity.ERROR}
    if not errors:
        return False
    if errors == {PRESET}:
        return True
    return os.path.realpath(path) in included and (errors <= _ERRORS_OF_BASES or _lacks_blocks(checked, path))


def _lacks_blocks(checked: Checked, path: str) -> bool:
    source = checked.sources.get(path)
    file = parse(source)[0] if source else None
    if file is None or any(isinstance(statement, ast.Extends) for statement in file.statements):
        return False
    blocks = (statement for statement in file.statements if isinstance(statement, ast.Block))
    return not {block.kind.text for block in blocks if block.label is None} >= _BLOCKS


def unread(plan: Plan, graph: Graph, *, base: Path, is_deep: bool, has_data: bool) -> Row | None:
    """A row with the inputs that only a run opens: `not read  weights, data; --deep also rehearses the run`.

    None without any. It notes inputs with files missing on this machine, which may not be the run's. A
    tokenizer's file is read if it exists, to count its ids.
    """
    rest = "" if is_deep else "; --deep also rehearses the run"
    names = ", ".join(_unread(plan, graph, base, has_data=has_data))
    return ("not read", f"{names}{rest}") if names else None


def documents(plan: Plan, *, base: Path) -> Iterator[Row]:
    """A row with what documents begin and end with, if a tokenizer in files that are here decides it."""
    tokenizer = plan.data.tokenizer
    if not isinstance(tokenizer, FileTokenizer) or isinstance(plan.data.source, Chat | Pairs):
        return
    path, own = base / tokenizer.path, "what the tokenizer puts there"
    if not path.exists():
        return
    end = tokenizer.end_of_document or end_of_documents(path) or "the tokenizer's own end"
    begin: str | None = tokenizer.begin_of_document
    if begin == "auto":
        tokens = begin_of_documents(path)
        begin = own if tokens is None else " ".join(tokens)
    yield "documents", f"begin with {begin}, end with {end}" if begin else f"end with {end}"


def new_head(graph: Graph, *, base: Path) -> Iterator[Row]:
    """A row with the parameters of a new head that a run draws, in the plan's order.

    Files that are not on this machine may have those that are not of the head itself, such as a pooler.
    """
    for op in graph.setup:
        if isinstance(op, LoadBase):
            held = {f".{key}" for key in _held(model_folder(op.path, base=base))}
            # A file of a model without a head has its names without the model's own prefix.
            drawn = [name for name in op.new if not any(f".{name}".endswith(key) for key in held)]
            rest = "" if held else "; of these, a run reads what the files have"
            yield "new head", f"{', '.join(drawn)} drawn from seed {op.seed}{rest}"


def _held(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.safetensors")):
        # A run reports a damaged file.
        with suppress(ValueError):
            yield from (name for name, _ in tensor_shapes(path))


def _unread(plan: Plan, graph: Graph, base: Path, *, has_data: bool) -> Iterator[str]:
    if plan.model.weights is Weights.PRETRAINED:
        folders = [model_folder(op.path, base=base) for op in graph.setup if isinstance(op, LoadWeights)]
        is_whole = all(any(folder.glob("*.safetensors")) for folder in folders)
        yield "weights" if is_whole else "weights (files not found)"
    if has_data:
        return
    missing = [
        absent.pattern for _, source in plan.data.sources() for absent in absent_files(source, base=base)
    ]
    yield f"data (no file matches {_some(missing)})" if missing else "data"
    tokenizer = plan.data.tokenizer
    if isinstance(tokenizer, FileTokenizer) and not (base / tokenizer.path).exists():
        yield f"tokenizer (no file {tokenizer.path})"


def _some(names: Sequence[str]) -> str:
    """`data/*.txt and 2 more`."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
