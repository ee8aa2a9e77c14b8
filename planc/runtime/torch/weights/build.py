"""The model on the meta device, and its attention."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from planc.figures.plan import parameters
from planc.graph.ops import AttachAttention, BuildModel, BuildOwnModel, FullyShard
from planc.hub.names import model_folder
from planc.modeling.decoder_inputs import return_logits_alone
from planc.modeling.language_part import language_config
from planc.modeling.rope import grow_rope, scale_rope, steady_rope
from planc.modeling.tensor_dtypes import floating_tensors, kept_in_float32, set_dtypes
from planc.modeling.unasked_tokens import leave_tokens_unasked
from planc.runtime.errors import RunError
from planc.runtime.model_files import STALE, config_digest
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.attention.asking import missing_kernels
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.attention.register import register_attention
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.run import Run
from planc.runtime.torch.weights.factory import config_in, on_meta, own_class
from planc.vocab import DType


@agreed
def build_model(run: Run, op: BuildModel) -> nn.Module:
    """Build the architecture of the directory's config.json, without memory for its parameters."""
    model = meta_model(op, base=run.paths.base, runs_extensions=run.runs_extensions)
    computed = {op.dtype, *(unit.param_dtype for unit in run.graph.setup if isinstance(unit, FullyShard))}
    if DType.FLOAT64 in computed and not run.is_rehearsal:
        # PyTorch's grouped products, which transformers takes by default, have no float64.
        model.set_experts_implementation("eager")
    found = parameters(sum(parameter.numel() for parameter in model.parameters()))
    for name, path in _code_of(model):
        run.reads.add_content("code", name, path.read_bytes())
    run.observer.noted(f"model: {op.architecture}, {found.text}, {op.dtype}")
    built: nn.Module = model
    return built


def _code_of(model: Any) -> Iterator[tuple[str, Path]]:
    """The modules that define a model's classes, with their sources: transformers' code may be edited too."""
    for name in sorted({type(module).__module__ for module in model.modules()}):
        source = getattr(sys.modules[name], "__file__", None)
        if source is not None:
            yield name, Path(source)


def meta_model(op: BuildModel, *, base: Path, runs_extensions: bool = False) -> Any:
    """The op's model on meta, ready to train; RunError if its config.json has changed since the plan was
    compiled, or if transformers builds it with other dtypes."""
    model = bare_model(op, base=base, runs_extensions=runs_extensions)
    _require_dtypes(model, dict(op.own_dtypes), dtype=op.dtype)
    _require_kept(model, op)
    set_dtypes(model, dict.fromkeys(op.kept_in_float32, torch.float32))
    return model


def bare_model(op: BuildModel, *, base: Path, runs_extensions: bool = False) -> Any:
    """The op's model on meta as its code builds it, without the check of its dtypes."""
    folder = model_folder(op.path, base=base)
    found = config_digest(folder)
    if found != op.config_digest:
        raise RunError(
            f"{folder / 'config.json'} changed after the plan was compiled",
            help="compile the plan again, or restore the file",
        )
    own = None
    if isinstance(op, BuildOwnModel):
        own = own_class(op.own, base=base, is_allowed=runs_extensions)
    config = config_in(folder, own, op)
    own_config = language_config(config)
    for name in op.zeroed:
        setattr(own_config, name, 0.0)
    _scale(own_config, op)
    model: Any = on_meta(config, own, dtype=TORCH_DTYPES[op.dtype])
    steady_rope(model)
    leave_tokens_unasked(model)
    return_logits_alone(model)
    model.config.use_cache = False
    model.train()
    return model


def _scale(config: Any, op: BuildModel) -> None:
    """Rotary embeddings as the plan has them; RunError if this release of transformers has none to scale."""
    if op.rope:
        try:
            scale_rope(config, op.rope)
        except ValueError as error:
            raise RunError(f"{error}, so `rope` can't scale them", help=STALE, span=op.span) from error
    if op.rope_positions is not None:
        grow_rope(config, length=op.rope_positions)


def own_dtypes(model: PreTrainedModel, *, dtype: DType) -> tuple[tuple[str, DType], ...]:
    """The parameters and buffers with other dtypes than the model's, in its order."""
    return tuple(
        (name, DType(str(tensor.dtype).removeprefix("torch.")))
        for name, tensor in floating_tensors(model).items()
        if tensor.dtype != TORCH_DTYPES[dtype]
    )


def _require_dtypes(model: PreTrainedModel, own: Mapping[str, DType], *, dtype: DType) -> None:
    """RunError if transformers builds a tensor in another dtype than the graph has."""
    found = dict(own_dtypes(model, dtype=dtype))
    for name in (*found, *own):
        actual, expected = (dtypes.get(name, dtype) for dtypes in (found, own))
        if actual is not expected:
            raise RunError(f"{name} is {actual}, but the plan was compiled for {expected}", help=STALE)


def _require_kept(model: PreTrainedModel, op: BuildModel) -> None:
    """RunError if `from_pretrained` would keep other tensors in float32 than the graph does."""
    wanted = set(kept_in_float32(model, TORCH_DTYPES[op.dtype]))
    float32 = {name for name, dtype in op.other_dtypes.items() if dtype is DType.FLOAT32}
    differing = sorted((wanted - float32) | (set(op.kept_in_float32) - wanted))
    if differing:
        kept_in = DType.FLOAT32 if differing[0] in wanted else op.dtype
        raise RunError(
            f"transformers keeps {differing[0]} in {kept_in}, but the plan was compiled for another dtype",
            help=STALE,
        )


def attach_attention(run: Run, op: AttachAttention, mesh: Mesh, model: nn.Module) -> Documents | None:
    """Register attention for this run's cp group and make the model use it instead of eager."""
    if op.kind == "eager":
        return None
    _require_kernels(op, device=run.device)
    group = mesh.group(op.over[0]) if op.over else None
    documents = Documents() if op.isolates else None
    kind: Any = op.kind
    balance: Any = op.balance
    name = register_attention(kind, group=group, balance=balance, name="planc", documents=documents)
    # Every attention module looks up the name in the config that it shares with the model, or its stack.
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation = name
    return documents


def _require_kernels(op: AttachAttention, *, device: torch.device) -> None:
    """RunError if PyTorch would compute attention by another kernel than the plan counts on."""
    for text, reasons in missing_kernels(op.calls, device=device):
        raise RunError(
            f"PyTorch {text}, on this device{f': {reasons}' if reasons else ''}",
            help="write `attention = eager` in `model` for the model's own code, which stores every score",
        )
