"""`planc checkpoint export`: a checkpoint as a directory that transformers or peft loads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planc.cli.support.exits import UsageError, require_libraries
from planc.cli.versions.saved_plans import NoSavedPlanError, SavedPlan, saved_plan
from planc.graph.artifact import graph_of
from planc.graph.graph import Graph
from planc.graph.ops import BuildModel, BuildOptimizer, BuildOwnModel, LoadBase, LoadWeights, OpenData
from planc.graph.sources import class_names
from planc.hub.names import model_folder
from planc.inventory.adapters import adapted_layer
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.data.errors import DataError
from planc.runtime.data.tokenizer_folder import Files
from planc.runtime.errors import RunError
from planc.vocab import DType


def export(
    checkpoint: Path,
    *,
    folder: str,
    model: str | None,
    dtype: str | None,
    runs_extensions: bool = False,
    averaged: bool = False,
) -> str:
    """Write `folder` and return a note of it; UsageError for files that can't be read or written.

    The default model is that of the plan that saved the checkpoint; the default dtype is the saved one.
    Weights of layers with adapters are merged with them. A model class of the plan's own code is built, which
    names its tensors, with leave alone.
    """
    require_libraries("planc checkpoint export", "torch", "transformers", "safetensors")
    # It imports torch, which takes seconds; errors that need no torch have been raised.
    from planc.runtime.torch.weights.export_checkpoint import OwnCode, export_checkpoint
    from planc.runtime.torch.weights.nf4 import nf4_formats

    graph = _graph(checkpoint)
    if graph is None and (layer := _adapted_layer(checkpoint)):
        raise UsageError(
            f"{checkpoint}: {layer} has an adapter, and the plan that states its scale is missing\n"
            f"{_PUT_BACK}"
        )
    built = _built(graph) if graph is not None else None
    own = None
    if isinstance(built, BuildOwnModel):
        saved = plan_of(checkpoint)
        own = OwnCode(built.own, saved.folder / saved.artifact.base, runs_extensions)
    source = named_model(model) if model else model_of(checkpoint)
    with _usage_errors():
        said = export_checkpoint(
            checkpoint,
            model=source,
            tokenizer=_tokenizer(checkpoint, source),
            folder=Path(folder),
            dtype=DType(dtype) if dtype else None,
            rope=built.rope if built is not None else (),
            strip=_strip(graph) if graph is not None else None,
            adapters=graph.adapters if graph is not None else None,
            formats=nf4_formats(graph) if graph is not None else {},
            own=own,
            build=built,
            names=class_names(graph) if graph is not None else (),
            averaged=averaged,
        )
    unknown = "; its plan is missing, so config.json has the model's own `rope`" if graph is None else ""
    return f"wrote {folder} from {checkpoint}{said}{unknown}"


def export_adapter(
    checkpoint: Path, *, folder: str, model: str | None, dtype: str | None, averaged: bool = False
) -> str:
    """Write `folder` with the adapters and what was trained next to them, and return a note of it.

    UsageError if there are none, if peft has no place for a parameter, or for files that can't be used.
    """
    require_libraries("planc checkpoint export", "torch", "transformers", "safetensors")
    from planc.runtime.torch.weights.export_checkpoint import export_adapters

    graph = _graph(checkpoint)
    if graph is None:
        raise UsageError(f"{checkpoint}: the plan that saved it is missing\n{_PUT_BACK}")
    if graph.adapters is None:
        raise UsageError(f"{checkpoint} has no adapters\nwrite `--hf DIR`")
    optimizer = next(op for op in graph.setup if isinstance(op, BuildOptimizer))
    drawn = (name for op in graph.setup if isinstance(op, LoadBase) for name in op.new)
    written = frozenset((*graph.adapters.parameters, *graph.adapters.apart))
    others = [name for name in (*optimizer.settings_by_parameter(), *drawn) if name not in written]
    if others:
        raise UsageError(
            f"{checkpoint}: peft's format has no place for {others[0]}, which the run trained or drew\n"
            "write `--hf DIR`, which merges the adapters"
        )
    with _usage_errors():
        said = export_adapters(
            checkpoint,
            adapters=graph.adapters,
            base=model or _built(graph).path,
            architecture=_built(graph).architecture,
            folder=Path(folder),
            dtype=DType(dtype) if dtype else None,
            averaged=averaged,
        )
    return f"wrote {folder} from {checkpoint}{said}"


_PUT_BACK = "export the checkpoint in the directory of its run, which has the plan"


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except (RunError, DataError) as error:
        raise UsageError(f"{error.message}\n{error.help}" if error.help else error.message) from error


def _adapted_layer(checkpoint: Path) -> str | None:
    """A layer that has an adapter, by the names of the checkpoint's tensors."""
    layers = (adapted_layer(name.removeprefix("model.")) for name in _manifest(checkpoint).tensors)
    return next((layer for layer in layers if layer is not None), None)


def named_model(model: str) -> Path:
    try:
        return model_folder(model, base=Path())
    except ValueError as error:
        raise UsageError(str(error)) from error


def model_of(checkpoint: Path) -> Path:
    """The model's directory, as named by the plan that saved a checkpoint."""
    remedy = "pass the model's directory: --model DIR"
    saved = plan_of(checkpoint, remedy=remedy)
    built = _built(graph_of(saved.artifact))
    found = model_folder(built.path, base=saved.folder / saved.artifact.base)
    if not found.is_dir():
        # Relative paths of the plan start elsewhere if the checkpoint was copied.
        raise UsageError(f"{checkpoint}: the model directory of its plan is missing: {found}\n{remedy}")
    return found


def plan_of(checkpoint: Path, *, remedy: str = _PUT_BACK) -> SavedPlan:
    """The plan that saved a checkpoint; UsageError if it is lost."""
    try:
        return _saved(checkpoint)
    except NoSavedPlanError as error:
        raise UsageError(f"{checkpoint}: the plan that saved it {error}\n{remedy}") from error


def _graph(checkpoint: Path) -> Graph | None:
    """The graph of the plan that saved a checkpoint, where the plan is known."""
    try:
        return graph_of(_saved(checkpoint).artifact)
    except NoSavedPlanError:
        return None


def _strip(graph: Graph) -> str | None:
    return next((op.strip for op in graph.setup if isinstance(op, LoadWeights)), None)


def _built(graph: Graph) -> BuildModel:
    return next(op for op in graph.setup if isinstance(op, BuildModel))


def _tokenizer(checkpoint: Path, model: Path) -> Files | None:
    """The tokenizer of the plan that saved a checkpoint, as an export of `model` has it.

    None if it is unknown, or reads bytes. DataError if transformers would load another one there.
    """
    try:
        saved = _saved(checkpoint)
    except NoSavedPlanError:
        return None
    opened = next(op for op in graph_of(saved.artifact).setup if isinstance(op, OpenData))
    if opened.tokenizer == "bytes":
        return None
    # They import numpy, which other commands can do without.
    from planc.runtime.data.exported_tokenizer import exported_tokenizer
    from planc.runtime.data.tokenizers import read_tokenizer

    try:
        tokenizer = read_tokenizer(
            opened.tokenizer,
            base=saved.folder / saved.artifact.base,
            end_of_document=opened.end_of_document,
            begin_of_document=opened.begin_of_document,
        )
    except DataError:
        # What is missing is named in the note on the export.
        return {}
    return exported_tokenizer(tokenizer, config=(model / "config.json").read_bytes())


def _saved(checkpoint: Path) -> SavedPlan:
    manifest = _manifest(checkpoint)
    try:
        return saved_plan(checkpoint, manifest)
    except CheckpointError as error:
        raise UsageError(error.message) from error


def _manifest(checkpoint: Path) -> Manifest:
    try:
        return read_manifest(checkpoint)
    except CheckpointError as error:
        raise UsageError(error.message) from error
