"""Memory for the weights, and the values in it: drawn, or read by slice."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planc.graph.ops import InitWeights, LoadWeights, MaterialiseWeights
from planc.initialisation import draw, fresh_copy, is_unset
from planc.runtime.backends.torch.blocks import blocks
from planc.runtime.backends.torch.gradients import local_of
from planc.runtime.backends.torch.session import Session
from planc.runtime.backends.torch.ties import tie, tied_parameters
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.model_files import weight_files

_MAX_LISTED = 10


def materialise_weights(session: Session, op: MaterialiseWeights, position: Position) -> None:
    """Allocates every parameter's local shard, and every buffer, on the device."""
    ties = tied_parameters(session.model)
    session.model.to_empty(device=session.device)
    # to_empty allocates for each module on its own.
    tie(session.model, ties)
    held = sum(local_of(parameter).numel() for parameter in session.model.parameters())
    session.observer.noted(f"rank 0 holds {held:,} parameters")


def init_weights(session: Session, op: InitWeights, position: Position) -> None:
    """Draws each module's weights from a seed of its own name, whole, and keeps this rank's block.

    The model's own initialisation runs on one whole module at a time on the CPU, so that values depend on
    neither mesh nor device; at most one module is held whole.
    """
    session.seed = op.seed
    initialise(session.model, seed=op.seed)


def initialise(model: nn.Module, *, seed: int) -> None:
    """Fills parameters and buffers of a materialised model; plain and distributed parameters alike.

    RunError if the model's own initialisation leaves one as it is.
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())

    def keep(name: str, whole: Tensor) -> None:
        require_set(name, whole)
        if name in parameters:
            copy_block(parameters[name], lambda block: whole[block])
        elif name in buffers:
            buffers[name].copy_(whole)

    draw(fresh_copy(model), seed=seed, keep=keep)


def require_set(name: str, tensor: Tensor) -> None:
    """RunError if an initialisation that should have drawn a tensor left it, or part of it, as it was."""
    if is_unset(tensor):
        raise unset_error(name)


def unset_error(name: str) -> RunError:
    """What a run says of a parameter or buffer that nothing sets."""
    return RunError(
        f"the model's own initialisation does not set {name}",
        help="train from weights (model.weights = pretrained), or use a model that can start without",
    )


def copy_block(parameter: Tensor, read: Callable[[tuple[slice, ...]], Tensor]) -> None:
    """Fills this rank's blocks of a parameter from `read(slices of the whole tensor)`."""
    with torch.no_grad():
        if not isinstance(parameter, DTensor):
            parameter.copy_(read(tuple(slice(0, size) for size in parameter.shape)))
            return
        local = parameter.to_local()
        if local.numel():
            for block, held in blocks(parameter):
                local[held].copy_(read(block))


def load_weights(session: Session, op: LoadWeights, position: Position) -> None:
    """Reads this rank's blocks from safetensors; buffers that no file holds are computed as by init.

    Values are cast to the plan's dtype. RunError names what is missing, unexpected or misshapen.
    """
    session.seed = op.seed
    folder = session.paths.base / op.path
    parameters, buffers = dict(session.model.named_parameters()), dict(session.model.named_buffers())

    def keep(name: str, whole: Tensor) -> None:
        if name in buffers:
            require_set(name, whole)
            buffers[name].copy_(whole)

    draw(fresh_copy(session.model), seed=op.seed, keep=keep)
    aliases = {alias: owner for owner, *rest in tied_parameters(session.model) for alias in rest}
    files = _open(weight_files(folder))
    _refuse_misfit(folder, parameters, aliases, files)
    for name, parameter in parameters.items():
        key = name if name in files else next(alias for alias, owner in aliases.items() if owner == name)
        copy_block(parameter, functools.partial(_read, files[key].get_slice(key)))


def _read(entry: Any, block: tuple[slice, ...]) -> Tensor:
    """One block of a tensor in a file; a scalar has no dimension to slice."""
    values: Tensor = entry[block] if block else entry[...]
    return values


def _open(files: dict[str, Path] | Path) -> dict[str, Any]:
    """Open safetensors handles by tensor name. Headers are read here, tensors only where sliced."""
    paths = {files} if isinstance(files, Path) else set(files.values())
    handles = [_open_file(path) for path in sorted(paths)]
    return {key: handle for handle in handles for key in handle.keys()}  # noqa: SIM118


def _open_file(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is no safetensors file: {error}", help="restore the file") from error


def _refuse_misfit(
    folder: Path, parameters: dict[str, nn.Parameter], aliases: dict[str, str], files: dict[str, Any]
) -> None:
    known = {*parameters, *aliases}
    stored = {aliases.get(key, key) for key in files}
    problems = [f"missing {name}" for name in parameters if name not in stored]
    problems += [f"unexpected {key}" for key in files if key not in known]
    for key in files:
        name = aliases.get(key, key)
        if name in parameters:
            found, wanted = tuple(files[key].get_slice(key).get_shape()), tuple(parameters[name].shape)
            if found != wanted:
                problems.append(f"{key} has shape {list(found)}, the model {list(wanted)}")
    if problems:
        more = f" and {len(problems) - _MAX_LISTED} more" if len(problems) > _MAX_LISTED else ""
        raise RunError(
            f"the weights in {folder} do not fit the model: {'; '.join(problems[:_MAX_LISTED])}{more}",
            help="check that config.json and the safetensors files are of one model",
        )
