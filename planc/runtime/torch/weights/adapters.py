"""Adapters: two small linear layers inside of a linear layer, whose output is added to its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from planc.graph.ops import AttachAdapters, InitAdapters, LoadAdapters
from planc.hub.peft_adapter import PREFIX, WEIGHTS, UnreadableAdapterError, differences, read_adapter
from planc.modeling.draws import Uniform, fill
from planc.modeling.initialization import derived_seed
from planc.runtime.errors import RunError
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.parallel.packing import packed_parameters
from planc.runtime.torch.parallel.pipeline import Pipeline, held
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Weights
from planc.runtime.torch.weights.files import file_views
from planc.runtime.torch.weights.weights import copy_block
from planc.vocab import DOWN, DROP, UP


def attach_adapters(run: Run, op: AttachAdapters, model: nn.Module) -> None:
    """Give layers their adapters."""
    attach(model, op)


def attach(model: nn.Module, op: AttachAdapters) -> None:
    """Give layers the op's adapters, in the layer's dtype and on its device. No other weight is renamed."""
    for fqn in op.modules:
        layer: Any = model.get_submodule(fqn)
        num_outputs, num_inputs = layer.weight.shape
        # On meta: a pipeline or a shard decides later what of it this rank holds.
        like: Any = {"bias": False, "device": "meta", "dtype": layer.weight.dtype}
        if op.dropout:
            layer.add_module(DROP, nn.Dropout(op.dropout))
        layer.add_module(DOWN, nn.Linear(num_inputs, op.rank, **like))
        layer.add_module(UP, nn.Linear(op.rank, num_outputs, **like))
        layer.register_forward_hook(partial(_add, scale=op.scale))


def _add(layer: Any, inputs: tuple[Tensor, ...], output: Tensor, *, scale: float) -> Tensor:
    """The layer's output with that of its adapter, which is scaled where it is small.

    Over tp it sees what the layer's own code sees and gives, before anything is reduced: its hook precedes
    those of the layer's edges.
    """
    drop, down, up = (layer._modules.get(name) for name in (DROP, DOWN, UP))
    value = inputs[0] if drop is None else drop(inputs[0])
    change: Tensor = up(down(value) * scale)
    return output + change


def merged(weight: Tensor, *, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """A layer's weight, or rows of it, with what its adapter adds: in float32 at least."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    return weight.to(wide) + scale * up.to(wide) @ down.to(wide)


def init_adapters(run: Run, op: InitAdapters, weights: Weights, pipeline: Pipeline | None) -> Weights:
    """Fill the adapters' weights, so no output changes."""
    fill_adapters(weights.model, held(pipeline, op.modules), seed=op.seed)
    return weights


@agreed
def load_adapters(run: Run, op: LoadAdapters, weights: Weights, pipeline: Pipeline | None) -> Weights:
    """Fill the adapters' weights with those of a directory, cast to the layers' dtype.

    RunError that lists how the directory's adapters differ from the graph's.
    """
    folder = run.paths.base / op.path
    _refuse_others(run, folder, weights.model, held(pipeline, op.modules))
    path = folder / WEIGHTS
    run.reads.add_content("file", WEIGHTS, path.read_bytes())
    views = file_views(path)
    packings = packed_parameters(weights.model)
    for fqn in held(pipeline, op.modules):
        layer: Any = weights.model.get_submodule(fqn)
        for part in (DOWN, UP):
            weight = getattr(layer, part).weight
            copy_block(weight, views[f"{PREFIX}{fqn}.{part}.weight"].fill, packing=packings.get(weight))
    run.observer.noted(f"adapters begin with those in {folder}")
    return weights


def _refuse_others(run: Run, folder: Path, model: nn.Module, held: Collection[str]) -> None:
    op = run.graph.adapters
    assert op is not None, "the graph attaches adapters before it fills them"
    sizes: dict[str, tuple[int, int] | None] = dict.fromkeys(op.modules)
    for fqn in held:
        layer: Any = model.get_submodule(fqn)
        sizes[fqn] = (getattr(layer, DOWN).weight.shape[1], getattr(layer, UP).weight.shape[0])
    try:
        adapter = read_adapter(folder)
    except UnreadableAdapterError as error:
        raise RunError(
            f"{folder}: {error}", help="name a directory of LoRA adapters, as peft saves them"
        ) from error
    problems = differences(adapter, rank=op.rank, alpha=op.alpha, rslora=op.rslora, layers=sizes)
    if texts := [text for _, text in problems]:
        raise RunError(
            f"the adapters in {folder} are not those of the plan: {'; '.join(texts)}",
            help="correct `start` in `adapter`, or what differs",
        )


def fill_adapters(model: nn.Module, modules: Iterable[str], *, seed: int) -> None:
    """Draw the first weights as `nn.Linear` does, each element by its place, and zero the second."""
    packings = packed_parameters(model)
    for fqn in modules:
        layer: Any = model.get_submodule(fqn)
        down, up = getattr(layer, DOWN).weight, getattr(layer, UP).weight
        bound = 1 / math.sqrt(down.shape[1])
        key = derived_seed(seed, "init", f"{fqn}.{DOWN}.weight", 0)
        draw = partial(fill, shape=tuple(down.shape), key=key, of=Uniform(-bound, bound))
        copy_block(down, draw, packing=packings.get(down))
        with torch.no_grad():
            up.zero_()
