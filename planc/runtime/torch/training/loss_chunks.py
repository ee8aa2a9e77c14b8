"""The loss of a part of the tokens at a time, whose logits alone exist.

The head's forward computes each part's logits, loss and gradients, and keeps the gradients: backward only
scales them, and computes no logits again. The model calls its head once, as without chunks: hooks of the head
and of the model, such as FSDP's, run for the loss where they would run for logits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from planc.graph.ops import ComputeLoss
from planc.runtime.torch.parallel.local_parts import layout_of, local_of
from planc.vocab import LogitsFunction, LogitsStep

Context = Callable[[], contextlib.AbstractContextManager[object]]
PartLoss = Callable[[Tensor, Tensor], Tensor]
"""The loss of hidden states or logits [T, features] and labels [T], or [T, n] with more of a token."""
SumOfParts = Callable[[PartLoss], Tensor]
"""The sum over all parts of what a function makes of a part's logits and labels."""


@contextlib.contextmanager
def losses_in_chunks(
    model: nn.Module,
    op: ComputeLoss,
    *,
    labels: Tensor,
    loss_of: Callable[[SumOfParts], Tensor],
    context: Context,
) -> Iterator[None]:
    """Inside, the model returns a loss in the place of its logits: what `loss_of` makes of sums over parts.

    Parts are computed inside `context`, forward and backward.
    """
    assert op.head is not None
    head: Any = model.get_submodule(op.head)
    of_head, of_model = head.forward, model.forward
    losses: list[Tensor] = []

    def forward_head(hidden: Tensor) -> Tensor:
        parameters = [one for one in head._parameters.values() if one is not None]

        def sum_of_parts(part_loss: PartLoss) -> Tensor:
            def one_part(hidden: Tensor, labels: Tensor) -> Tensor:
                return part_loss(_logits(of_head(hidden), op.logits), labels)

            tokens, own_labels = hidden.flatten(0, -2), labels.flatten(0, 1)
            if not torch.is_grad_enabled():
                parts = zip(tokens.tensor_split(op.chunks), own_labels.tensor_split(op.chunks), strict=True)
                return torch.stack([one_part(*part) for part in parts]).sum()
            given = (tokens, own_labels, one_part, op.chunks, *parameters)
            total: Tensor = _Loss.apply(*given)  # type: ignore[no-untyped-call]
            return total

        with context():
            loss = loss_of(sum_of_parts)
        losses.append(loss)
        return loss

    def forward_model(*arguments: Any, **keywords: Any) -> Any:
        output = of_model(*arguments, **keywords)
        # The model's code may have scaled the loss, which it takes for logits.
        (output.logits,) = losses
        return output

    head.forward, model.forward = forward_head, forward_model
    try:
        yield
    finally:
        del head.forward, model.forward


def _logits(output: Tensor, steps: tuple[LogitsStep, ...]) -> Tensor:
    """Compute the logits that the model makes of its head's output."""
    for step in steps:
        match step.function:
            case LogitsFunction.MULTIPLY:
                output = output * step.by
            case LogitsFunction.DIVIDE:
                output = output / step.by
            case LogitsFunction.TANH:
                output = output.tanh()
            case LogitsFunction.FLOAT32:
                output = output.float()
    return output


class _Loss(torch.autograd.Function):
    """The sum of the parts' losses, with the gradients of hidden states [T, H] and of the head's parameters.

    Gradients of parameters are summed over the parts in float32 at least.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, labels: Tensor, part_loss: PartLoss, chunks: int, *parameters: Tensor
    ) -> Tensor:
        is_wanted, _, _, _, *are_wanted = ctx.needs_input_grad
        wanted = [one for one, is_one in zip(parameters, are_wanted, strict=True) if is_one]
        sums = [_Sum(one.dtype) for one in wanted]

        def loss_of(part: Tensor, part_labels: Tensor, gradient: Tensor) -> Tensor:
            """One part's loss. Its logits and gradients are gone before the next part's are made."""
            with torch.set_grad_enabled(is_wanted or bool(wanted)):
                part = part.detach().requires_grad_(is_wanted)
                loss = part_loss(part, part_labels)
            inputs = [*([part] if is_wanted else []), *wanted]
            found = list(torch.autograd.grad(loss, inputs)) if inputs else []
            if is_wanted:
                gradient.copy_(found.pop(0))
            for total in sums:
                total.add(found.pop(0))
            return loss.detach()

        of_hidden = torch.empty_like(hidden) if is_wanted else hidden
        parts = (one.tensor_split(chunks) for one in (hidden, labels, of_hidden))
        losses = [loss_of(*part) for part in zip(*parts, strict=True)]
        ctx.of_hidden, ctx.sums, ctx.are_wanted = of_hidden if is_wanted else None, sums, are_wanted
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        of_hidden = None if ctx.of_hidden is None else ctx.of_hidden.mul_(above)
        sums = iter(ctx.sums)
        of_parameters = [next(sums).times(above) if is_wanted else None for is_wanted in ctx.are_wanted]
        ctx.of_hidden, ctx.sums = None, ()
        return of_hidden, None, None, None, *of_parameters


class _Sum:
    """A gradient, summed in float32 at least, in the layout of its summands."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._local: Tensor | None = None
        self._lay_out: Callable[[Tensor], Tensor] | None = None

    def add(self, part: Tensor) -> None:
        local = local_of(part)
        if self._local is None:
            self._lay_out = layout_of(part)
            self._local = local.to(torch.promote_types(local.dtype, torch.float32))
        else:
            self._local.add_(local)

    def times(self, factor: Tensor) -> Tensor:
        assert self._local is not None and self._lay_out is not None, "every loss has a part"
        return self._lay_out(self._local.mul_(factor).to(self.dtype))
