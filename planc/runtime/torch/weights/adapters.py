"""Adapters: two small linear layers inside of a linear layer, whose output is added to its own.

With DoRA, the length of each row of the weight is trained as well: the layer computes with
`m / |W + s B A| * (W + s B A)`, where the lengths `|...|` of rows are constants to autograd, as in peft.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from planc.graph.ops import AttachAdapters, InitAdapters, LoadAdapters
from planc.hub import peft_adapter
from planc.modeling.draws import Uniform, fill
from planc.modeling.initialization import derived_seed
from planc.runtime.errors import RunError
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.dtypes import TORCH_DTYPES
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.packing import packed_parameters
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.parallel.sharded_modules import local_parameter
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Weights
from planc.runtime.torch.weights.expert_adapters import attach_to_experts
from planc.runtime.torch.weights.files import file_views
from planc.runtime.torch.weights.nf4 import computed_weight
from planc.runtime.torch.weights.peft_format import of_experts
from planc.runtime.torch.weights.weights import copy_block
from planc.vocab import DOWN, DROP, MAGNITUDE, UP, parent_of

_PIECE = 2**22
"""Elements whose squares exist at a time."""


def attach_adapters(run: Run, op: AttachAdapters, model: nn.Module) -> None:
    """Give layers their adapters."""
    attach(model, op)


def attach(model: nn.Module, op: AttachAdapters) -> None:
    """Give layers the op's adapters, in the op's dtype or the layer's. No other weight is renamed."""
    for fqn in op.experts:
        stacks = (name.rpartition(".")[2] for name in op.stacked if parent_of(name) == fqn)
        attach_to_experts(model.get_submodule(fqn), stacks, op=op)
    for fqn in op.layers:
        layer: Any = model.get_submodule(fqn)
        num_outputs, num_inputs = layer.weight.shape
        # On meta: a pipeline or a shard decides later what of it this rank holds.
        dtype = TORCH_DTYPES[op.dtype] if op.dtype is not None else layer.weight.dtype
        like: Any = {"bias": False, "device": "meta", "dtype": dtype}
        if op.dropout:
            layer.add_module(DROP, nn.Dropout(op.dropout))
        layer.add_module(DOWN, nn.Linear(num_inputs, op.rank, **like))
        layer.add_module(UP, nn.Linear(op.rank, num_outputs, **like))
        if op.dora:
            layer.add_module(MAGNITUDE, Magnitude(num_outputs, device="meta", dtype=dtype))
        layer.register_forward_hook(partial(_add, scale=op.scale))


class Magnitude(nn.Module):
    """The trained lengths of the rows of an adapted layer's weight."""

    def __init__(self, num_rows: int, *, device: str | None = None, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, device=device, dtype=dtype))

    def forward(self, squares: Tensor) -> Tensor:
        """The factor of each row whose squared length is given; the length is in the weight's dtype."""
        share: Tensor = self.weight / squares.sqrt().to(self.weight.dtype)
        return share


def _add(layer: Any, inputs: tuple[Tensor, ...], output: Tensor, *, scale: float) -> Tensor:
    """The layer's output with that of its adapter, which is scaled where it is small.

    Over tp it sees what the layer's own code sees and gives, before anything is reduced: its hook precedes
    those of the layer's edges.
    """
    drop, down, up, magnitude = (layer._modules.get(name) for name in (DROP, DOWN, UP, MAGNITUDE))
    value = inputs[0] if drop is None else drop(inputs[0])
    change = up(down(value) * scale)
    if magnitude is None:
        added: Tensor = output + change
        return added
    share: Tensor = magnitude(_squares(layer, scale=scale))
    if drop is None or not layer.training:
        return _scaled(layer, output + change, share)
    # What a change of lengths adds is dropped too, as in peft.
    dropped: Tensor = layer.forward(value)
    return output - dropped + _scaled(layer, dropped + change, share)


def _scaled(layer: nn.Module, output: Tensor, share: Tensor) -> Tensor:
    """The output of a layer whose weight's rows are multiplied by `share`, and whose bias is as it is."""
    bias = local_parameter(layer, "bias")
    scaled: Tensor = share * output
    return scaled if bias is None else scaled + (1 - share) * bias


@torch.no_grad()
def _squares(layer: Any, *, scale: float) -> Tensor:
    """The squared lengths of the rows of `W + scale * B A`, of the columns that this rank has of them.

    In float32 at least, and without a second matrix as large as W: from W Aᵀ and A Aᵀ.
    """
    down, up = (local_parameter(layer._modules[part], "weight") for part in (DOWN, UP))
    stored = local_parameter(layer, "weight")
    assert stored is not None and down is not None and up is not None, "linear layers have weights"
    weight = computed_weight(layer, stored, dtype=down.dtype)
    wide = torch.promote_types(weight.dtype, torch.float32)
    crossed = _product(weight, down.T).to(wide)
    down, up = down.to(wide), up.to(wide)
    of_change = ((2 * scale * crossed + scale**2 * _product(up, _product(down, down.T))) * up).sum(1)
    squares: Tensor = torch.linalg.vector_norm(weight, dim=1, dtype=wide).square() + of_change
    return squares


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply, and not as linear layers do, of whose products selective recomputation keeps every second."""
    return torch.bmm(left.unsqueeze(0), right.unsqueeze(0)).squeeze(0)


def merged(
    weight: Tensor,
    *,
    down: Tensor,
    up: Tensor,
    magnitude: Tensor | None = None,
    scale: float,
    is_transposed: bool = False,
) -> Tensor:
    """A layer's weight, or whole rows of it, as it is with its adapter: in float32 at least.

    Of stacked experts, all of theirs.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    change = scale * up.to(wide) @ down.to(wide)
    changed = weight.to(wide) + (change.mT if is_transposed else change)
    if magnitude is not None:
        changed *= (magnitude.to(wide) / torch.linalg.vector_norm(changed, dim=1)).unsqueeze(1)
    return changed


@agreed
def init_adapters(run: Run, op: InitAdapters, weights: Weights, pipeline: Pipeline | None) -> Weights:
    """Fill the adapters' weights, so no output changes."""
    fill_adapters(weights.model, held(pipeline, op.modules), seed=op.seed)
    return weights


@agreed
def load_adapters(run: Run, op: LoadAdapters, weights: Weights, pipeline: Pipeline | None) -> Weights:
    """Fill the adapters' weights, and what is trained next to them, with what a directory has, cast to the
    layers' dtype.

    RunError that lists how the directory's adapters differ from the graph's.
    """
    folder = run.paths.base / op.path
    own = [*_matrices(weights.model, held(pipeline, op.modules))]
    adapter, names = _read(run, folder, weights.model, own)
    path = folder / peft_adapter.WEIGHTS
    run.reads.add_content("file", peft_adapter.WEIGHTS, path.read_bytes())
    views = file_views(path)
    packings = packed_parameters(weights.model)
    for matrices in own:
        for part, weight in matrices.weights():
            view = views[peft_adapter.key_of(f"{names[matrices.name]}.{part}.weight")]
            if matrices.is_stacked:
                view = of_experts(view, part, num_experts=len(weight))
            copy_block(weight, view.fill, packing=packings.get(weight))
    for name, parameter in weights.model.named_parameters():
        if name in adapter.apart:
            copy_block(parameter, views[peft_adapter.key_of(name)].fill, packing=packings.get(parameter))
    saved = f", and {len(adapter.apart)} parameters that are trained next to them" if adapter.apart else ""
    run.observer.noted(f"adapters begin with those in {folder}{saved}")
    return weights


@dataclass(frozen=True, slots=True)
class _Matrices:
    """One adapter: of a linear layer, or of a stack of experts, which has one for each."""

    name: str
    """The name of the layer, or of the stack."""
    down: nn.Parameter
    up: nn.Parameter
    magnitude: nn.Parameter | None = None

    @property
    def is_stacked(self) -> bool:
        return self.down.ndim == 3

    @property
    def down_name(self) -> str:
        return f"{self.name}_{DOWN}" if self.is_stacked else f"{self.name}.{DOWN}.weight"

    def weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(part, its weights)."""
        yield from ((DOWN, self.down), (UP, self.up))
        if self.magnitude is not None:
            yield MAGNITUDE, self.magnitude

    @property
    def sizes(self) -> peft_adapter.Sizes:
        """The inputs and outputs, and the experts."""
        return self.down.shape[-1], self.up.shape[-2], len(self.down) if self.is_stacked else 1


def _matrices(model: nn.Module, modules: Iterable[str]) -> Iterator[_Matrices]:
    """The adapters of linear layers and of modules of experts."""
    for fqn in modules:
        layer: Any = model.get_submodule(fqn)
        if DOWN in layer._modules:
            magnitude = layer._modules.get(MAGNITUDE)
            parts = layer.lora_A.weight, layer.lora_B.weight, magnitude and magnitude.weight
            yield _Matrices(fqn, *parts)
        for name, down in layer.named_parameters(recurse=False):
            stack, is_down, _ = name.partition(f"_{DOWN}")
            if is_down:
                yield _Matrices(f"{fqn}.{stack}", down, getattr(layer, f"{stack}_{UP}"))


def _read(
    run: Run, folder: Path, model: nn.Module, own: Iterable[_Matrices]
) -> tuple[peft_adapter.PeftAdapter, Mapping[str, str]]:
    """The adapters of the directory, and peft's names of layers and stacks.

    RunError if they are not the graph's.
    """
    op = run.graph.adapters
    assert op is not None, "the graph attaches adapters before it fills them"
    names = {**{fqn: fqn for fqn in op.layers}, **peft_adapter.names_of_stacks(op.stacked)}
    sizes: dict[str, peft_adapter.Sizes | None] = dict.fromkeys(names.values())
    sizes |= {names[matrices.name]: matrices.sizes for matrices in own}
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    try:
        adapter = peft_adapter.read_adapter(folder)
    except peft_adapter.UnreadableAdapterError as error:
        raise RunError(
            f"{folder}: {error}", help="name a directory of LoRA adapters, as peft saves them"
        ) from error
    problems = peft_adapter.differences(
        adapter,
        rank=op.rank,
        alpha=op.alpha,
        rslora=op.rslora,
        dora=op.dora,
        layers=sizes,
        apart={name: shapes.get(name) for name in op.apart},
    )
    if texts := [text for _, text in problems]:
        raise RunError(
            f"the adapters in {folder} are not those of the plan: {'; '.join(texts)}",
            help="correct `start` in `adapter`, or what differs",
        )
    return adapter, names


def fill_adapters(model: nn.Module, modules: Iterable[str], *, seed: int) -> None:
    """Draw the first weights as `nn.Linear` does, each element by its place, and zero the second.

    The lengths of a weight's rows are trained from what they are. RunError if one is zero.
    """
    packings = packed_parameters(model)
    for matrices in _matrices(model, modules):
        bound = 1 / math.sqrt(matrices.down.shape[-1])
        key = derived_seed(seed, "init", matrices.down_name, 0)
        draw = partial(fill, shape=tuple(matrices.down.shape), key=key, of=Uniform(-bound, bound))
        copy_block(matrices.down, draw, packing=packings.get(matrices.down))
        with torch.no_grad():
            matrices.up.zero_()
            if matrices.magnitude is not None:
                _fill_lengths(matrices.name, model.get_submodule(matrices.name))


def _fill_lengths(fqn: str, layer: Any) -> None:
    """Measure this rank's rows. RunError if one is zero."""
    lengths = local_of(getattr(layer, MAGNITUDE).weight)
    squares = _squared_lengths(layer, dtype=lengths.dtype)
    lengths.copy_(squares.sqrt())
    if not squares.all():
        raise RunError(
            f"{fqn} has a row of zeros, whose length `dora` can't train",
            help="leave the layer without an adapter, or remove `dora`",
            is_shared=False,
        )


def _squared_lengths(layer: Any, *, dtype: torch.dtype) -> Tensor:
    """Sum squares as integers, so the order of sums, which a mesh decides, changes no bit."""
    stored = layer.weight
    weight = computed_weight(layer, local_of(stored), dtype=dtype)
    pieces = torch.split(weight, max(1, _PIECE // weight.shape[1]))
    largest = _over_columns(stored, torch.cat([one.abs().amax(1) for one in pieces]).double(), "max")
    bounds = largest.square() * getattr(layer, DOWN).weight.shape[1]
    # A power of two: a number divided by its mantissa, without rounding.
    units = torch.where(bounds > 0, bounds / torch.frexp(bounds).mantissa, 1.0).unsqueeze(1) / 2.0**62
    sums = [
        (piece.double().square() / unit).round().long().sum(1)
        for piece, unit in zip(pieces, torch.split(units, len(pieces[0]) or 1), strict=True)
    ]
    return _over_columns(stored, torch.cat(sums), "sum").double() * units.squeeze(1)


def _over_columns(weight: Tensor, values: Tensor, op: str) -> Tensor:
    """Reduce a value of each row over the ranks that have other columns of a weight."""
    if not isinstance(weight, DTensor):
        return values
    mesh, device = weight.device_mesh, values.device
    for mesh_dim, placement in enumerate(weight.placements):
        if placement == Shard(1):
            values = values.to(mesh.device_type)
            dist.all_reduce(values, op=getattr(dist.ReduceOp, op.upper()), group=mesh.get_group(mesh_dim))
    return values.to(device)
