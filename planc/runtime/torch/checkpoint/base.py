"""The base of a run's checkpoints: frozen parameters, which are in the model's files."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from planc.graph.ops import LoadWeights, NameBase
from planc.hub.names import model_folder
from planc.runtime.checkpoint_format.base import hash_files, refuse_other_base
from planc.runtime.checkpoint_format.manifest import Base, Manifest, WholeTensor
from planc.runtime.checkpoint_format.records import ElementType, FileEntry
from planc.runtime.errors import RunError
from planc.runtime.model_files import weight_names
from planc.runtime.torch.agreement.agree import rank, world_size
from planc.runtime.torch.checkpoint.agreement import through_coordinator
from planc.runtime.torch.checkpoint.background_saving import Checkpoints
from planc.runtime.torch.checkpoint.errors import run_errors
from planc.runtime.torch.checkpoint.tensors import outline_of_all_stages, tensor_names
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Weights
from planc.tables import format_bytes


def name_base(
    run: Run, op: NameBase, weights: Weights, checkpoints: Checkpoints, pipeline: Pipeline | None
) -> None:
    """Leave the op's parameters out of this run's checkpoints, which name the files that have them."""
    own = {f"model.{name}" for name in op.parameters}
    tensors = {f"model.{fqn}": tensor for tensor, fqn in tensor_names(weights.model).items()}
    outline = outline_of_all_stages(
        {name: tensor for name, tensor in tensors.items() if name in own},
        stages=pipeline.activations if pipeline is not None else None,
    )
    checkpoints.base = Base(
        path=op.path,
        files=hashed_weights(run, op.path),
        tensors={
            name: WholeTensor(dtype=cast(ElementType, dtype), shape=shape)
            for name, (dtype, shape) in sorted(outline.items())
        },
    )
    size = format_bytes(checkpoints.base.size_bytes)
    run.observer.noted(f"checkpoints leave {size} of frozen parameters to the files in {op.path}")


def base_of_resumed(run: Run, manifest: Manifest, own: Base | None) -> Base | None:
    """The base of the checkpoints to come: what a resumed checkpoint stores may differ from the files.

    `own` is that of the plan. RunError unless the files of this run are the base that the checkpoint names.
    """
    saved = manifest.base
    if saved is None:
        if own is not None:
            run.observer.noted("the checkpoint stores frozen parameters, so those of this run store them too")
        return None
    loads = next((op for op in run.graph.setup if isinstance(op, LoadWeights)), None)
    if loads is None:
        raise RunError(
            f"the checkpoint lacks its frozen parameters: they are in {saved.path}, and the plan starts from "
            "random weights",
            help="write `weights = pretrained` in `model`",
        )
    files = own.files if own is not None else hashed_weights(run, loads.path)
    with run_errors():
        refuse_other_base(saved, files, folder=_folder(run, loads.path))
    if own is None:
        return None
    both = {name: tensor for name, tensor in own.tensors.items() if name in saved.tensors}
    return own.model_copy(update={"tensors": both})


def hashed_weights(run: Run, path: str) -> dict[str, FileEntry]:
    """The hashes of a model's weight files, each computed by one rank, once in a run."""
    if path in run.weight_hashes:
        return run.weight_hashes[path]
    folder = _folder(run, path)
    names = weight_names(folder)

    def hashed(files: dict[str, FileEntry]) -> str:
        return Base(path=path, files=files, tensors={}).model_dump_json()

    def part() -> str:
        return hashed(hash_files(folder, names[rank() :: world_size()]))

    def whole(parts: list[str]) -> str:
        files = (Base.model_validate_json(text).files for text in parts)
        return hashed(dict(sorted(entry for entries in files for entry in entries.items())))

    with run_errors():
        run.weight_hashes[path] = Base.model_validate_json(through_coordinator(part, whole)).files
    return run.weight_hashes[path]


def _folder(run: Run, path: str) -> Path:
    return model_folder(path, base=run.paths.base)
