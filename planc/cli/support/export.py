"""`planc checkpoint export`: a checkpoint as a directory that transformers loads."""

from __future__ import annotations

from pathlib import Path

from planc.cli.support.exits import UsageError, require_libraries
from planc.cli.versions.saved_plans import NoSavedPlanError, SavedPlan, saved_plan
from planc.graph.artifact import graph_of
from planc.graph.ops import BuildModel, OpenData
from planc.hub.names import model_folder
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.data.errors import DataError
from planc.runtime.data.tokenizer_folder import Files
from planc.runtime.errors import RunError
from planc.vocab import DType


def export(checkpoint: Path, *, folder: str, model: str | None, dtype: str | None) -> str:
    """Write `folder` and return a note of it; UsageError for files that can't be read or written.

    The default model is that of the plan that saved the checkpoint; the default dtype is the saved one.
    """
    require_libraries("planc checkpoint export", "torch", "transformers", "safetensors")
    # It imports torch, which takes seconds; errors that need no torch have been raised.
    from planc.runtime.torch.weights.export_checkpoint import export_checkpoint

    built = _built(checkpoint)
    try:
        source = _named(model) if model else _model(checkpoint)
        said = export_checkpoint(
            checkpoint,
            model=source,
            tokenizer=_tokenizer(checkpoint, source),
            folder=Path(folder),
            dtype=DType(dtype) if dtype else None,
            rope=built.rope if built is not None else (),
        )
    except (RunError, DataError) as error:
        raise UsageError(f"{error.message}\n{error.help}" if error.help else error.message) from error
    unknown = "; its plan is missing, so config.json has the model's own `rope`" if built is None else ""
    return f"wrote {folder} from {checkpoint}{said}{unknown}"


def _named(model: str) -> Path:
    try:
        return model_folder(model, base=Path())
    except ValueError as error:
        raise UsageError(str(error)) from error


def _model(checkpoint: Path) -> Path:
    """The model's directory, as named by the plan that saved a checkpoint."""
    remedy = "pass the model's directory: --model DIR"
    try:
        saved = _saved(checkpoint)
    except NoSavedPlanError as error:
        raise UsageError(f"{checkpoint}: the plan that saved it {error}\n{remedy}") from error
    built = next(op for op in graph_of(saved.artifact).setup if isinstance(op, BuildModel))
    found = model_folder(built.path, base=saved.folder / saved.artifact.base)
    if not found.is_dir():
        # Relative paths of the plan start elsewhere if the checkpoint was copied.
        raise UsageError(f"{checkpoint}: the model directory of its plan is missing: {found}\n{remedy}")
    return found


def _built(checkpoint: Path) -> BuildModel | None:
    """How the plan that saved a checkpoint builds its model, where the plan is known."""
    try:
        saved = _saved(checkpoint)
    except NoSavedPlanError:
        return None
    return next(op for op in graph_of(saved.artifact).setup if isinstance(op, BuildModel))


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
    try:
        return saved_plan(checkpoint, read_manifest(checkpoint))
    except CheckpointError as error:
        raise UsageError(error.message) from error
