"""The tensors of a training state, by the names they have in every checkpoint on every mesh."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from planc.optimizers import OPTIMIZERS
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.checkpoint_format.manifest import Base, Manifest
from planc.runtime.torch.agreement.agree import gather
from planc.runtime.torch.parallel.local_parts import kept_like, local_of
from planc.runtime.torch.parallel.packing import Packing, packed_parameters
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.state import Averages, Weights

_MAX_LISTED = 20
_OPTIMIZER = "optimizer."
AVERAGE = "ema."
"""The prefix of averages' names in checkpoints."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """State that a checkpoint saves and fills: parameters are DTensors, or plain and equal on all ranks."""

    model: nn.Module
    optimizer: Optimizer | None
    """None to fill the weights alone."""
    stages: ProcessGroup | None = None
    """The group of this rank and those in its place in a pipeline's other stages, which hold other
    tensors."""
    left_out: Collection[str] = ()
    """The names of tensors that other files hold, of every stage."""
    averages: Averages | None = None


def training_state(
    weights: Weights,
    optimizer: Optimizer | None,
    averages: Averages | None,
    pipeline: Pipeline | None,
    *,
    base: Base | None = None,
) -> TrainingState:
    """The state of a run on this rank, without what is in the base."""
    stages = pipeline.activations if pipeline is not None else None
    left_out = base.tensors if base is not None else ()
    return TrainingState(weights.model, optimizer, stages, left_out, averages)


def named_tensors(state: TrainingState) -> dict[str, torch.Tensor]:
    """Every tensor of `state` but those left out, detached, sharing its storage.

    `model.<fqn>` for parameters and persistent buffers, tied ones once, under the first name. For each
    parameter that the optimizer trains, its state: `optimizer.<fqn>.exp_avg`, `.exp_avg_sq` and `.step` of
    AdamW, created here if no step has created them yet; and `ema.<fqn>`, its moving average.
    """
    fqns = tensor_names(state.model)
    tensors = {f"model.{fqn}": tensor.detach() for tensor, fqn in fqns.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in state.left_out}
    averages = state.averages.by_parameter if state.averages is not None else {}
    tensors |= {f"{AVERAGE}{fqns[parameter]}": average for parameter, average in averages.items()}
    optimizer = state.optimizer
    if optimizer is None:
        return tensors
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            moments = optimizer.state[parameter]
            if not moments:
                moments.update(_initial_moments(optimizer, parameter, group=group))
            for name, tensor in moments.items():
                tensors[f"optimizer.{fqns[parameter]}.{name}"] = tensor.detach()
    return tensors


def named_packings(state: TrainingState) -> dict[str, Packing]:
    """The packings of the tensors that pack several, by the names of `named_tensors`."""
    fqns = tensor_names(state.model)
    packings: dict[str, Packing] = {}
    for parameter, packing in packed_parameters(state.model).items():
        fqn, moments = fqns[parameter], state.optimizer.state.get(parameter, {}) if state.optimizer else {}
        packings |= {f"model.{fqn}": packing, f"{AVERAGE}{fqn}": packing}
        # The count of steps is a number.
        shaped = (name for name, tensor in moments.items() if tensor.ndim == parameter.ndim)
        packings.update({f"optimizer.{fqn}.{name}": packing for name in shaped})
    return packings


def element_type(dtype: torch.dtype) -> str:
    """The manifest's name of a dtype, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def outline_of_all_stages(
    tensors: Mapping[str, torch.Tensor], *, stages: ProcessGroup | None
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and the whole shape of each tensor, of every stage. All ranks of the group must call it."""
    own = {name: (element_type(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
    if stages is None:
        return own
    found = (json.loads(text) for text in gather(json.dumps(own), group=stages))
    return {name: (dtype, tuple(shape)) for part in found for name, (dtype, shape) in part.items()}


def moments_on_one_side(manifest: Manifest, *, wanted: Collection[str]) -> frozenset[str]:
    """The optimizer state of parameters that the run or the run that saved has frozen, of one of them alone.

    A run that freezes others than its checkpoint's plan starts only by leave. What it trains in addition
    begins as in a first step, and what it freezes needs no state.
    """
    sides = [
        {name: _parameter_and_state(name) for name in names if name.startswith(_OPTIMIZER)}
        for names in (wanted, manifest.tensors)
    ]
    kinds = [{kind for _, kind in side.values()} for side in sides]
    if kinds[0] != kinds[1]:
        # It is another optimizer.
        return frozenset()
    here, saved = ({parameter for parameter, _ in side.values()} for side in sides)
    differing = here ^ saved
    return frozenset(name for side in sides for name, (of, _) in side.items() if of in differing)


def averages_on_one_side(manifest: Manifest, *, wanted: Collection[str]) -> frozenset[str]:
    """The averages that the checkpoint or the run lacks: a run without them leaves them, and what a
    checkpoint lacks begins at its weight. What a plan averages changes only by leave."""
    differing = manifest.tensors.keys() ^ {*wanted}
    return frozenset(name for name in differing if name.startswith(AVERAGE))


@torch.no_grad()
def begin_averages(state: TrainingState, manifest: Manifest) -> None:
    """Begin the averages that the checkpoint lacks at the weights that it has filled."""
    fqns = tensor_names(state.model)
    for parameter, average in (state.averages.by_parameter if state.averages else {}).items():
        if f"{AVERAGE}{fqns[parameter]}" not in manifest.tensors:
            local_of(average).copy_(local_of(parameter))


def moments_saved(manifest: Manifest) -> frozenset[str]:
    """The optimizer state in a checkpoint, which weights alone do not need."""
    return frozenset(name for name in manifest.tensors if name.startswith(_OPTIMIZER))


def _parameter_and_state(name: str) -> tuple[str, str]:
    """The parameter of a tensor of the optimizer, and what it is of it."""
    parameter, _, kind = name.removeprefix(_OPTIMIZER).rpartition(".")
    return parameter, kind


def refuse_misfit(
    manifest: Manifest, *, wanted: Mapping[str, tuple[str, tuple[int, ...]]], apart: Collection[str]
) -> None:
    """Raises CheckpointError that lists every name, shape and dtype that differs from the run's, of those
    that are not `apart`."""
    wanted = {name: entry for name, entry in wanted.items() if name not in apart}
    entries = {**manifest.tensors, **(manifest.base.tensors if manifest.base else {})}
    saved = {name: (entry.dtype, entry.shape) for name, entry in entries.items() if name not in apart}
    problems = [
        *(f"{name} is not in the checkpoint" for name in sorted(wanted.keys() - saved.keys())),
        *(f"{name} is not in this run" for name in sorted(saved.keys() - wanted.keys())),
        *(
            f"{name} was saved as {_describe(*saved[name])}, but is {_describe(*wanted[name])} here"
            for name in sorted(saved.keys() & wanted.keys())
            if saved[name] != wanted[name]
        ),
    ]
    if problems:
        more = [f"and {len(problems) - _MAX_LISTED} more"] if len(problems) > _MAX_LISTED else []
        raise CheckpointError(
            "the checkpoint does not fit this run\n" + "\n".join(problems[:_MAX_LISTED] + more),
            help="resume with the model, dtypes and optimizer that saved it",
        )


def tensor_names(model: nn.Module) -> dict[torch.Tensor, str]:
    """The first fqn of each parameter and persistent buffer, in the model's order; tied ones once."""
    # state_dict, because its hooks undo the renaming of activation checkpoint wrappers and bring FSDP
    # parameters back to their shards. Tensors hash by identity.
    fqns: dict[torch.Tensor, str] = {}
    for fqn, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(
                f"{fqn} is a {type(tensor).__name__}", help="a model's state_dict may only contain tensors"
            )
        fqns.setdefault(tensor, fqn)
    return fqns


def _initial_moments(
    optimizer: Optimizer, parameter: torch.Tensor, *, group: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The state with which the next step is like a parameter's first one, as torch makes it there.

    It is zeros: SGD's buffer becomes the gradient itself.
    """
    kind = next(one for one in OPTIMIZERS if one.torch_class == _class_of(optimizer, group))
    settings = kind(**{name: group[name] for name in kind.argument_names()})
    moments = {kept.name: kept_like(parameter, kept) for kept in settings.kept(parameter.ndim)}
    if not kind.has_step_counter:
        return moments
    is_on_device = bool(group.get("fused") or group.get("capturable"))
    is_double = torch.get_default_dtype() == torch.float64 and not group.get("fused")
    dtype = torch.float64 if is_double else torch.float32
    step = torch.zeros((), dtype=dtype, device=parameter.device if is_on_device else "cpu")
    return {"step": step, **moments}


def _class_of(optimizer: Optimizer, group: Mapping[str, Any]) -> str:
    """The name in torch.optim of the optimizer that updates a group."""
    return str(group.get("torch_class", type(optimizer).__name__))


def _describe(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} {list(shape)}"
