"""Tensors of a step as code that reads a run gets them: whole copies, which it must not write to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from planc.runtime.torch.checkpoint.tensors import outline_of_all_stages
from planc.runtime.torch.parallel.packing import gathered, packed_parameters
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Weights
from planc.runtime.torch.weights.export import without_gather_warnings

Outline = Mapping[str, tuple[str, tuple[int, ...]]]
"""The dtype and the whole shape of each parameter, in the model's order."""
_BLOCK = 2**16
"""The values that are drawn for a tensor of a trial; a larger one repeats them."""


class GivenTensors(ABC):
    """The parameters and gradients of a step, one at a time."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.refusal: str | None = None
        """The reason that nothing may be gathered now."""
        self.has_gradients = False
        self._given: list[tuple[str, bool, Tensor, int]] = []

    def names(self) -> Sequence[str]:
        return tuple(self.outline)

    def parameter(self, name: str) -> Tensor:
        whole = self._given_whole(name, is_gradient=False)
        assert whole is not None, "every parameter has values"
        return whole

    def gradient(self, name: str) -> Tensor | None:
        if not self.has_gradients:
            raise RuntimeError("only on_gradients and metrics have gradients: the optimizer uses them up")
        return self._given_whole(name, is_gradient=True)

    def take_written(self) -> str | None:
        """The name of a tensor that was written to since it was given; forget all that were."""
        given, self._given = self._given, []
        for name, is_gradient, tensor, version in given:
            if self._is_written(name, tensor, version, is_gradient=is_gradient):
                return f"the gradient of {name}" if is_gradient else name
        return None

    @abstractmethod
    def whole(self, name: str, *, is_gradient: bool) -> Tensor | None:
        """A copy of a known parameter or of its gradient; None for a parameter that has none."""

    def _is_written(self, name: str, tensor: Tensor, version: int, *, is_gradient: bool) -> bool:
        return tensor._version != version

    @torch.no_grad()
    def _given_whole(self, name: str, *, is_gradient: bool) -> Tensor | None:
        if self.refusal is not None:
            raise RuntimeError(self.refusal)
        if name not in self.outline:
            raise KeyError(f"the model has no parameter {name}")
        whole = self.whole(name, is_gradient=is_gradient)
        if whole is not None:
            self._given.append((name, is_gradient, whole, whole._version))
        return whole


class WholeTensors(GivenTensors):
    """The tensors of a run, gathered one at a time. All ranks ask for the same."""

    def __init__(self, run: Run, weights: Weights, pipeline: Pipeline | None) -> None:
        stages = pipeline.activations if pipeline is not None else None
        super().__init__(outline_of_all_stages(weights.parameters, stages=stages))
        self._run, self._weights, self._pipeline = run, weights, pipeline
        self._packings = packed_parameters(weights.model)

    def whole(self, name: str, *, is_gradient: bool) -> Tensor | None:
        own = self._own(name, is_gradient=is_gradient)
        if self._pipeline is not None:
            return self._from_stage(name, own)
        return None if own is None else self._gathered(name, own)

    def _own(self, name: str, *, is_gradient: bool) -> Tensor | None:
        parameter = self._weights.parameters.get(name)
        return None if parameter is None else parameter.grad if is_gradient else parameter

    def _gathered(self, name: str, own: Tensor) -> Tensor:
        packing = self._packings.get(self._weights.parameters[name])
        with without_gather_warnings():
            # A copy, also of what one rank holds whole.
            return gathered(own.detach(), packing).clone()

    def _from_stage(self, name: str, own: Tensor | None) -> Tensor | None:
        """A tensor of the stage that has it, sent to the others."""
        pipeline, (dtype, shape) = self._pipeline, self.outline[name]
        assert pipeline is not None, "only a pipeline has stages"
        source = pipeline.rank_of(name)
        device = self._run.weights_device
        has_it = torch.tensor(own is not None, device=device)
        whole = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        if own is not None:
            whole = self._gathered(name, own)
        if source is None:
            return whole if own is not None else None
        dist.broadcast(has_it, group=pipeline.activations, group_src=source)
        if not has_it.item():
            return None
        dist.broadcast(whole, group=pipeline.activations, group_src=source)
        return whole


class MadeUpTensors(GivenTensors):
    """Tensors of a trial: of the model's shapes, with values that follow from their name and the step."""

    def __init__(self, outline: Outline, *, frozen: frozenset[str], device: torch.device) -> None:
        super().__init__(outline)
        self.step = 0
        self._frozen, self._device = frozen, device

    def whole(self, name: str, *, is_gradient: bool) -> Tensor | None:
        if is_gradient and name in self._frozen:
            return None
        dtype, shape = self.outline[name]
        number = prod(shape)
        generator = torch.Generator().manual_seed(2 * crc32(name.encode()) + is_gradient)
        block = torch.randn(max(1, min(number, _BLOCK)), generator=generator)
        # Another direction and another size at each step.
        block = block.roll(self.step) * (1 + self.step / 8)
        values = block.repeat(-(-number // len(block)))[:number]
        return values.reshape(shape).to(self._device, getattr(torch, dtype))

    def _is_written(self, name: str, tensor: Tensor, version: int, *, is_gradient: bool) -> bool:
        # Some writes, such as those by `.data` and by numpy, leave the version.
        now = self.whole(name, is_gradient=is_gradient)
        return tensor._version != version or now is None or not torch.equal(tensor, now)
