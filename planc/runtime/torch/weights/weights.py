"""Memory for the weights, and their values: drawn, or read by slice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor, nn

from planc.figures.plan import of_pp_rank, parameters_per_rank
from planc.graph.ops import InitWeights, LoadBase, LoadImageEncoder, LoadWeights, MaterialiseWeights
from planc.hub.names import model_folder
from planc.hub.weights import SINGLE
from planc.modeling.initialization import draw, fresh_copy
from planc.modeling.placed_draws import Values
from planc.modeling.tensor_dtypes import default_dtype
from planc.runtime.errors import RunError
from planc.runtime.model_files import unread_index
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.parallel.blocks import Slices, local_blocks
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.packing import Packing, packed_parameters
from planc.runtime.torch.parallel.pipeline import Pipeline, held, hold_copies
from planc.runtime.torch.parallel.ties import tie, tied_parameters
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Weights
from planc.runtime.torch.weights.agreement import compare_copies
from planc.runtime.torch.weights.files import stored_views
from planc.runtime.torch.weights.fit import converted, listed, refuse_misfit
from planc.runtime.torch.weights.nf4 import Nf4, nf4_formats
from planc.runtime.torch.weights.views import View
from planc.vocab import parent_of

_COMPARED_ROWS = 1024


def materialize_weights(
    run: Run, op: MaterialiseWeights, model: nn.Module, pipeline: Pipeline | None
) -> None:
    """Allocate every parameter's local shard, and every buffer, on the device."""
    formats = nf4_formats(run.graph)
    ties = tied_parameters(model)
    model.to_empty(device=run.weights_device)
    if run.weights_device != run.device:
        move_buffers(model, device=run.device)
    # to_empty allocates for each module separately, so tied parameters would get several copies.
    tie(model, ties)
    if pipeline is not None:
        hold_copies(model, pipeline)
    sizes = ((local_of(parameter).shape, formats.get(name)) for name, parameter in model.named_parameters())
    own = parameters_per_rank(sum(prod(nf4.shape(shape) if nf4 else shape) for shape, nf4 in sizes))
    if pipeline is None:
        run.observer.noted(f"rank 0 holds {own.text}")
    else:
        run.observer.noted(f"rank 0, of pp rank 0, holds {of_pp_rank(0, own).text}")


def move_buffers(model: nn.Module, *, device: torch.device) -> None:
    """Move buffers to the device that computes: FSDP units bring only parameters there."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=device))


def init_weights(run: Run, op: InitWeights, model: nn.Module) -> Weights:
    """Draw the elements of the weights that this rank holds, each from the plan's seed and its own place.

    Values depend on neither mesh nor device. A note names tensors that only the model's own code can draw,
    whole, at least one module at a time.
    """
    drawn_whole = initialize(model, seed=op.seed, formats=nf4_formats(run.graph))
    if drawn_whole:
        names = listed(drawn_whole, most=3)
        run.observer.noted(f"every rank draws {names} whole: the model computes with the values it draws")
    return Weights.of(model)


def initialize(
    model: nn.Module, *, seed: int, formats: Mapping[str, Nf4] = MappingProxyType({})
) -> tuple[str, ...]:
    """Fill the parameters and buffers of a materialized model, whether they are plain or distributed.

    `formats` are those of quantized weights, by name. Returns the large tensors that had to be drawn whole.
    RunError if the model's own initialization leaves one unset.
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    packings = packed_parameters(model)

    def keep(name: str, values: Values) -> None:
        require_set(name, values)
        if name in parameters:
            parameter, nf4 = parameters[name], formats.get(name)
            fill = nf4.filling(values.fill) if nf4 is not None else values.fill
            copy_block(parameter, fill, packing=packings.get(parameter))
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
        for out, block in local_blocks(parameter, packing):
            fill(out, block)


def load_weights(run: Run, op: LoadWeights, model: nn.Module, pipeline: Pipeline | None) -> Weights:
    """Fill the weights from files, of which all ranks have equal copies."""
    compare_copies(run, op, model, _read_weights(run, op, model, pipeline))
    return Weights.of(model)


@agreed
def _read_weights(
    run: Run, op: LoadWeights, model: nn.Module, pipeline: Pipeline | None
) -> Mapping[str, View]:
    """Read this rank's blocks from safetensors. What is in no file is computed as in initialization: buffers,
    the op's new parameters, and those that the class leaves out of its files.

    Values are cast to the plan's dtype. Returns the source of each tensor. RunError lists missing,
    unexpected and misshapen tensors.
    """
    folder = model_folder(op.path, base=run.paths.base)
    pristine = fresh_copy(model)
    stored = stored_views(folder, reads=run.reads)
    conversion = converted(pristine, stored, strip=op.strip)
    aliases = {alias: owner for owner, *rest in tied_parameters(pristine) for alias in rest}
    head = op.new if isinstance(op, LoadBase) else ()
    new = [name for name in head if name not in conversion.views]
    # Such as sinusoids of positions, which `save_pretrained` leaves out of its files.
    unsaved = [name for name in pristine._keys_to_ignore_on_save or () if name not in conversion.views]
    known = {**aliases, **dict.fromkeys(new, "")}
    refuse_misfit(folder, pristine, aliases=known, conversion=conversion, stored=stored, strip=op.strip)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    drawn = {**buffers, **{name: parameters[name] for name in (*new, *unsaved) if name in parameters}}
    packings, formats = packed_parameters(model), nf4_formats(run.graph)

    def keep(name: str, values: Values) -> None:
        if name in drawn and name not in conversion.views:
            require_set(name, values)
            copy_block(drawn[name], values.fill, packing=packings.get(drawn[name]))

    owners = {id(pristine.get_submodule(parent_of(name))) for name in (*new, *unsaved)}
    draw(pristine, seed=op.seed, keep=keep, of=lambda part: bool(part._buffers) or id(part) in owners)
    filled: dict[str, str] = {}
    views: dict[str, View] = {}
    for name, view in conversion.views.items():
        owner = aliases.get(name, name)
        if (nf4 := formats.get(owner)) is not None:
            view = nf4.view(view)
        views.setdefault(owner, view)
        if not held(pipeline, (owner,)):
            continue
        if owner in filled:
            _refuse_untied(parameters[owner], view, names=(filled[owner], name), packings=packings)
            continue
        tensor = parameters[owner] if owner in parameters else buffers[owner]
        copy_block(tensor, view.fill, packing=packings.get(tensor))
        filled[owner] = name
    if new:
        run.observer.noted(f"{listed(new, most=4)} drawn: {folder} has no such head")
    if conversion.ignored:
        names = listed(conversion.ignored, most=3)
        run.observer.noted(f"the model does not use {names} in {folder}: skipped")
    if conversion.encoder and not any(isinstance(op, LoadImageEncoder) for op in run.graph.setup):
        run.observer.noted(f"text alone does not use the image encoder in {folder}: exports have it as it is")
    if (index := unread_index(folder)) is not None:
        run.observer.noted(f"{folder} has {SINGLE}, which is read, as transformers does, and not {index}")
    return views


def _refuse_untied(
    parameter: nn.Parameter, view: View, *, names: tuple[str, str], packings: Mapping[Tensor, Packing]
) -> None:
    """RunError if the files have different values for tied parameters. Compares only this rank's part."""
    with torch.no_grad():
        for held, block in local_blocks(parameter, packings.get(parameter)):
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
