"""Linear layers whose backward defers the gradient of the weight, which no other stage waits for.

A forward makes two graphs of autograd. One is the model's, in which the layer's weight is a constant: its
backward keeps, of each layer, the input and the gradient of the output. The other goes from each weight to
the product of these two, which is computed when asked for. So hooks, collectives and recomputation run once,
in the backward, and a weight's gradient arrives where it would: at the parameter.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:
    from planc.runtime.torch.parallel.pipeline import Pipeline

_PIPELINE = "_planc_pipeline"


def defer_weight(layer: nn.Module, pipeline: Pipeline) -> None:
    """Let a linear layer defer the gradient of its weight, for the micro-batch that the pipeline is in."""
    of_layer: Any = type(layer)
    vars(layer)[_PIPELINE] = pipeline
    layer.__class__ = _deferring(of_layer)


def compute_gradients(weights: list[Tensor]) -> None:
    """Compute the gradients that a micro-batch's backward has deferred, the last layer's first."""
    if weights:
        torch.autograd.backward(weights, [weight.detach() for weight in weights])


@functools.cache
def _deferring(of_layer: Any) -> type[nn.Module]:
    is_transposed = issubclass(of_layer, Conv1D)

    def forward(self: Any, *arguments: Tensor, **keywords: Tensor) -> Tensor:
        (value,), weight = (*arguments, *keywords.values()), self.weight
        if not (torch.is_grad_enabled() and value.requires_grad and weight.requires_grad):
            found: Tensor = of_layer.forward(self, value)
            return found
        weight = weight.t() if is_transposed else weight
        product = _Product()
        pipeline: Pipeline = vars(self)[_PIPELINE]
        pipeline.now.weights.append(_OfWeight.apply(weight, product))  # type: ignore[no-untyped-call]
        output: Tensor = _OfInput.apply(value, self.bias, weight.detach(), product)  # type: ignore[no-untyped-call]
        return output

    names = {"__module__": of_layer.__module__, "__qualname__": of_layer.__qualname__, "forward": forward}
    made: type[nn.Module] = type(of_layer.__name__, (of_layer,), names)
    return made


@dataclass(slots=True)
class _Product:
    """The factors of a weight's gradient, once backward has them: [T, in] and [T, out]."""

    factors: tuple[Tensor, Tensor] | None = None


class _OfInput(torch.autograd.Function):
    """A linear layer whose weight [out, in] is a constant."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, bias: Tensor | None, weight: Tensor, product: _Product) -> Tensor:
        ctx.save_for_backward(value, weight)
        ctx.product = product
        return F.linear(value, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        value, weight = ctx.saved_tensors
        gradient = gradients[0].flatten(0, -2)
        # A view of the input itself would keep its graph, and so what the stage has received, until then.
        ctx.product.factors = value.detach().flatten(0, -2), gradient
        of_value = gradient.mm(weight).view_as(value)
        of_bias = gradient.sum(0) if ctx.needs_input_grad[1] else None
        return of_value, of_bias, None, None


class _OfWeight(torch.autograd.Function):
    """Nothing, whose gradient is that of a weight [out, in]; none if no loss depends on the layer."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, product: _Product) -> Tensor:
        ctx.product = product
        return weight.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        factors, ctx.product.factors = ctx.product.factors, None
        if factors is None:
            return None, None
        value, gradient = factors
        return gradient.t().mm(value), None
