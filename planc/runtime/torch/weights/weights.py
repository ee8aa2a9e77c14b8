"""Memory for the weights, and their values: drawn, or read by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from planc.figures.plan import parameters_per_rank
from planc.graph.ops import BuildModel, InitWeights, LoadWeights, MaterialiseWeights
from planc.hub.names import model_folder
from planc.modeling.initialization import draw, fresh_copy
from planc.modeling.placed_draws import Values
from planc.modeling.tensor_dtypes import default_dtype, kept_in_float32
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.parallel.blocks import Slices, blocks
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.packing import Packing, packed_parameters
from planc.runtime.torch.parallel.pipeline import hold_copies
from planc.runtime.torch.parallel.ties import tie, tied_parameters
from planc.runtime.torch.session import Session
from planc.runtime.torch.weights.build import STALE
from planc.runtime.torch.weights.conversion import Conversion, to_checkpoint, to_model
from planc.runtime.torch.weights.dtypes import TORCH_DTYPES
from planc.runtime.torch.weights.files import stored_views
from planc.runtime.torch.weights.views import View, leaf
from planc.vocab import DType

_MAX_LISTED = 10
_COMPARED_ROWS = 1024


def materialize_weights(session: Session, op: MaterialiseWeights, position: Position) -> None:
    """Allocate every parameter's local shard, and every buffer, on the device."""
    ties = tied_parameters(session.model)
    session.model.to_empty(device=session.weights_device)
    if session.weights_device != session.device:
        move_buffers(session.model, device=session.device)
    # to_empty allocates for each module separately, so tied parameters would get several copies.
    tie(session.model, ties)
    if session.pipeline is not None:
        hold_copies(session.model, session.pipeline)
    held = parameters_per_rank(sum(local_of(parameter).numel() for parameter in session.model.parameters()))
    session.observer.noted(f"rank 0 holds {held.text}")


def move_buffers(model: nn.Module, *, device: torch.device) -> None:
    """Move buffers to the device that computes: FSDP units bring only parameters there."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=device))


def init_weights(session: Session, op: InitWeights, position: Position) -> None:
    """Draw the elements of the weights that this rank holds, each from the plan's seed and its own place.

    Values depend on neither mesh nor device. A note names tensors that only the model's own code can draw,
    whole, at least one module at a time.
    """
    session.seed = op.seed
    drawn_whole = initialize(session.model, seed=op.seed)
    if drawn_whole:
        names = listed(drawn_whole, most=3)
        session.observer.noted(f"every rank draws {names} whole: the model computes with the values it draws")


def initialize(model: nn.Module, *, seed: int) -> tuple[str, ...]:
    """Fill the parameters and buffers of a materialized model, whether they are plain or distributed.

    Returns the large tensors that had to be drawn whole. RunError if the model's own initialization leaves
    one unset.
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    packings = packed_parameters(model)

    def keep(name: str, values: Values) -> None:
        require_set(name, values)
        if name in parameters:
            parameter = parameters[name]
            copy_block(parameter, values.fill, packing=packings.get(parameter))
        elif name in buffers:
            copy_block(buffers[name], values.fill, packing=None)

    pristine = fresh_copy(model)
    # `from_config` initializes a model while it builds it, so also under its dtype.
    with default_dtype(pristine.config.dtype):
        return draw(pristine, seed=seed, keep=keep)


def require_set(name: str, values: Values) -> None:
    """RunError if an initialization left a tensor, or part of it, unset."""
    if values.is_unset():
        raise unset_error(name)


def unset_error(name: str) -> RunError:
    """The error for a parameter or buffer that no initialization sets."""
    return RunError(
        f"the model's own initialization does not set {name}",
        help="train from weights (model.weights = pretrained), or use a model that initializes all of them",
    )


def copy_block(
    parameter: Tensor, fill: Callable[[Tensor, Slices], object], *, packing: Packing | None
) -> None:
    """Fill this rank's blocks of a parameter by `fill(block of its memory, slices of the whole tensor)`."""
    with torch.no_grad():
        for out, block in _local_blocks(parameter, packing):
            fill(out, block)


def _local_blocks(parameter: Tensor, packing: Packing | None) -> Iterator[tuple[Tensor, Slices]]:
    if not isinstance(parameter, DTensor):
        yield parameter.detach(), tuple(slice(0, size) for size in parameter.shape)
        return
    local: Tensor = parameter.to_local().detach()
    if local.numel():
        for block, held in blocks(parameter, packing):
            yield local[held], block


def load_weights(session: Session, op: LoadWeights, position: Position) -> None:
    """Read this rank's blocks from safetensors; buffers in no file are computed as in initialization.

    Values are cast to the plan's dtype. RunError lists missing, unexpected and misshapen tensors.
    """
    session.seed = op.seed
    folder = model_folder(op.path, base=session.paths.base)
    pristine = fresh_copy(session.model)
    _require_kept(session, pristine)
    stored = stored_views(folder, reads=session.reads)
    conversion = to_model(pristine, stored)
    aliases = {alias: owner for owner, *rest in tied_parameters(pristine) for alias in rest}
    _refuse_misfit(folder, pristine, aliases=aliases, conversion=conversion, stored=stored)
    parameters, buffers = dict(session.model.named_parameters()), dict(session.model.named_buffers())

    def keep(name: str, values: Values) -> None:
        if name in buffers and name not in conversion.views:
            require_set(name, values)
            copy_block(buffers[name], values.fill, packing=None)

    draw(pristine, seed=op.seed, keep=keep, of=lambda module: bool(module._buffers))
    filled: dict[str, str] = {}
    packings = packed_parameters(session.model)
    for name, view in conversion.views.items():
        owner = aliases.get(name, name)
        session.loaded_views.setdefault(owner, view)
        if not session.held((owner,)):
            continue
        if owner in filled:
            _refuse_untied(parameters[owner], view, names=(filled[owner], name), packings=packings)
            continue
        tensor = parameters[owner] if owner in parameters else buffers[owner]
        copy_block(tensor, view.fill, packing=packings.get(tensor))
        filled[owner] = name
    if conversion.ignored:
        names = listed(conversion.ignored, most=3)
        session.observer.noted(f"transformers does not use {names} in {folder}: skipped")


def _require_kept(session: Session, model: PreTrainedModel) -> None:
    """RunError if `from_pretrained` would load other tensors as float32 than the graph has."""
    build = next(one for one in session.graph.setup if isinstance(one, BuildModel))
    wanted = set(kept_in_float32(model, TORCH_DTYPES[build.dtype]))
    float32 = {name for name, dtype in build.other_dtypes.items() if dtype is DType.FLOAT32}
    differing = sorted((wanted - float32) | (set(build.kept_in_float32) - wanted))
    if differing:
        loaded_as = "as float32" if differing[0] in wanted else f"as {build.dtype}"
        raise RunError(
            f"transformers loads {differing[0]} {loaded_as}, but the plan was compiled for another dtype",
            help=STALE,
        )


def _refuse_untied(
    parameter: nn.Parameter, view: View, *, names: tuple[str, str], packings: Mapping[Tensor, Packing]
) -> None:
    """RunError if the files have different values for tied parameters. Compares only this rank's part."""
    with torch.no_grad():
        for held, block in _local_blocks(parameter, packings.get(parameter)):
            if not _is_equal(held, view, block):
                raise RunError(
                    f"the files have different values for {names[0]} and {names[1]}, which the model ties",
                    help="set tie_word_embeddings to false in config.json, or remove one of the two",
                    is_shared=False,
                )


def _is_equal(held: Tensor, view: View, block: Slices) -> bool:
    """Whether a block of a view has the values of `held`; a few rows at a time, to save memory."""
    first, *rest = block
    for start in range(first.start, first.stop, _COMPARED_ROWS):
        rows = held[start - first.start : start - first.start + _COMPARED_ROWS]
        other = torch.empty_like(rows)
        view.fill(other, (slice(start, start + len(rows)), *rest))
        if not torch.equal(rows, other):
            return False
    return True


def _refuse_misfit(
    folder: Path,
    model: PreTrainedModel,
    *,
    aliases: Mapping[str, str],
    conversion: Conversion,
    stored: Mapping[str, View],
) -> None:
    """RunError that lists the tensors that the files lack, have in another shape, or have in excess."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    present = {aliases.get(name, name) for name in conversion.views}
    optional = {*aliases, *present, *(getattr(model, "_keys_to_ignore_on_save", None) or ())}
    missing = [name for name in wanted if name not in conversion.views and name not in optional]
    misshapen = [name for name, view in conversion.views.items() if view.shape != wanted[name]]
    if not (missing or misshapen or conversion.problems or conversion.unexpected):
        return
    parts = _absent_parts(model, {name: wanted[name] for name in (*missing, *misshapen)}, stored=stored)
    problems = list(conversion.problems)
    for name in missing:
        problems += parts[name] or [f"missing {name}"]
    for name in misshapen:
        found = conversion.views[name].shape
        problems += parts[name] or [f"{name} has shape {list(found)}, the model {list(wanted[name])}"]
    problems += [f"unexpected {key}" for key in conversion.unexpected]
    raise RunError(
        f"the weights in {folder} do not fit the model: {listed(problems, most=_MAX_LISTED, by='; ')}",
        help="check that config.json and the safetensors files belong to the same model",
    )


def _absent_parts(
    model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]], *, stored: Mapping[str, View]
) -> dict[str, list[str]]:
    """By tensor of the model: the missing parts, if a checkpoint has only some of them."""
    held = {
        name: leaf(name, shape=shape, read=lambda block: torch.empty(0)) for name, shape in shapes.items()
    }
    parts: dict[str, list[str]] = {name: [] for name in shapes}
    for key, view in to_checkpoint(model, held).items():
        for name in view.sources:
            parts[name].append(key)
    absent = {name: [key for key in keys if key not in stored] for name, keys in parts.items()}
    return {
        name: [f"missing {key}" for key in keys] if len(keys) < len(parts[name]) else []
        for name, keys in absent.items()
    }


def listed(items: Sequence[str], *, most: int, by: str = ", ") -> str:
    """The first `most` items, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{by.join(items[:most])}{more}"
