"""A loss of the plan's own: tried for what lets it be computed in parts, then called in each part.

A step's loss is a sum over tokens. Chunks, micro-batches, ranks of dp, parts of a sequence over cp and the
last stage of a pipeline each compute the terms of some tokens, in some order. That is exact if, and only if,
the value for a token depends on this token alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from planc.extend.decorators import LOSS
from planc.graph.ops import LoadLoss
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.extensions import arguments_of, load_extension
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.extensions.trials import RefusedError, tried, with_place
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import LocalBatch

_TOKENS = 13
"""More than one vector of any kernel, and no multiple of one: its tail is computed otherwise."""
_TOLERANCE = 1e-4
"""Between values of equal tokens, whose sums over the vocabulary may be in another order. What depends on
other tokens differs by far more, as these are changed altogether."""


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """A loss with the plan's arguments. `offers` are what it reads of a token after logits and label."""

    function: Callable[..., Any]
    offers: tuple[str, ...]

    def values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[T]: the value of each token, 0 without a label, of logits [T, vocabulary].

        `labels` are as `labels_of` has them, flat. A token without a label gets label 0, and the
        function needs to know nothing of such tokens.
        """
        labels, *others = labels.unbind(-1) if self.offers else (labels,)
        is_label = labels != IGNORED_LABEL
        offered = dict(zip(self.offers, others, strict=True))
        values: Tensor = self.function(logits, labels.where(is_label, 0), **offered).where(is_label, 0)
        return values

    def of_batch(self, batch: LocalBatch) -> OwnLoss:
        """The loss of one micro-batch, with what it reads of it other than offers."""
        return self


def labels_of(batch: LocalBatch, own: OwnLoss | None) -> Tensor:
    """[micro_batch, local sequence]: the labels; if a loss reads more of each token, [..., 1 + offers]."""
    if own is None or not own.offers:
        return batch.labels
    return torch.stack((batch.labels, *(getattr(batch, name) for name in own.offers)), dim=-1)


@agreed
def load_loss(run: Run, op: LoadLoss) -> OwnLoss:
    """Every rank tries the loss by itself: what it shows could depend on the machine."""
    device = torch.device("cpu") if run.is_rehearsal else run.device
    dtype = torch.float64 if run.model_op.dtype == "float64" else torch.float32
    trial = partial(
        try_loss,
        load_extension(op.extension, base=run.paths.base, is_allowed=run.runs_extensions),
        arguments_of(op.extension),
        vocab_size=run.num_logits,
        dtype=dtype,
        device=device,
    )
    own = tried(run, op.extension, trial)
    return replace(own, function=with_place(own.function, op.extension, span=op.span))


def try_loss(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    vocab_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[OwnLoss, tuple[str, ...]]:
    """The loss, and what was shown of it. RefusedError with what it does otherwise."""
    known = inspect.signature(function).parameters
    offers = tuple(name for name in LOSS.offers if name in known)
    trial = _Trial(partial(function, **arguments), offers, vocab_size, dtype, device)
    with torch.random.fork_rng():
        trial.gives_values()
        # Before any call that could change what later ones compare with.
        trial.leaves_inputs()
        trial.repeats()
        trial.is_of_one_token()
    shown = (
        "each token's value depends on its own logits and label only",
        "the same each time",
        "differentiable",
    )
    return OwnLoss(trial.function, offers), shown


def _leaves(values: Tensor) -> Iterator[Tensor]:
    """The tensors that a backward of the values would give gradients to."""
    waiting, seen = [values.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [before for before, _ in node.next_functions]


class _Trial:
    """Made-up tokens: logits drawn at random, every label another."""

    def __init__(
        self,
        function: Callable[..., Any],
        offers: tuple[str, ...],
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.function = function
        generator = torch.Generator().manual_seed(0)
        logits = 3 * torch.randn((_TOKENS, vocab_size), generator=generator)
        self.logits = logits.to(device, dtype)
        self.others = {
            name: torch.randint(vocab_size, (_TOKENS,), generator=generator).to(device)
            if name == "input_ids"
            else torch.arange(_TOKENS, device=device)
            for name in offers
        }
        labels = torch.randint(vocab_size, (_TOKENS,), generator=generator)
        # What is looked up by a label must have an entry for the last.
        labels[0], labels[1] = vocab_size - 1, 0
        self.labels = labels.to(device)
        self.expected = torch.empty(0)

    def of(
        self, rows: Tensor | slice, *, logits: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        """The values of some of the tokens, which the function sees alone."""
        others = {name: values[rows] for name, values in self.others.items()}
        own = (
            (self.logits if logits is None else logits)[rows],
            (self.labels if labels is None else labels)[rows],
        )
        values: Tensor = self.function(*own, **others)
        return values

    def gives_values(self) -> None:
        torch.manual_seed(0)
        logits = self.logits.clone().requires_grad_()
        values = self.of(slice(None), logits=logits)
        if not isinstance(values, Tensor):
            raise RefusedError(
                f"returns {type(values).__name__}", "return a tensor of one value for each token"
            )
        if values.shape != (_TOKENS,):
            shape = "one value for all tokens" if not values.shape else f"values of shape {[*values.shape]}"
            raise RefusedError(
                f"returns {shape}, for {_TOKENS} tokens",
                'return one value for each token: `reduction = "none"` in PyTorch\'s losses, no `.mean()`',
            )
        if values.dtype != logits.dtype:
            raise RefusedError(
                f"returns {values.dtype}, for logits in {logits.dtype}", "compute in the logits' dtype"
            )
        if not values.requires_grad:
            raise RefusedError(
                "returns values that have no gradient",
                "compute the values from the logits, without `.detach()`",
            )
        if any(leaf is not logits for leaf in _leaves(values)):
            raise RefusedError(
                "has a parameter of its own, which no optimizer would train",
                "give the value as an argument in the plan, or make the parameter a part of a model class",
            )
        (gradient,) = torch.autograd.grad(values.sum(), logits)
        for tensor, name in ((values, "value"), (gradient, "gradient")):
            if not tensor.isfinite().all():
                raise RefusedError(
                    f"has a NaN or inf {name}, for ordinary logits",
                    "use `log_softmax` rather than `log` of `softmax`",
                )
        self.expected = values.detach()

    def repeats(self) -> None:
        torch.manual_seed(1)
        if not torch.equal(self.of(slice(None)), self.expected):
            raise RefusedError(
                "gives other values for the same tokens",
                "compute the values from the arguments alone: no random numbers, no count of calls",
            )

    def leaves_inputs(self) -> None:
        logits, labels = self.logits.clone(), self.labels.clone()
        self.of(slice(None), logits=logits, labels=labels)
        if not torch.equal(logits, self.logits) or not torch.equal(labels, self.labels):
            raise RefusedError("changes the tensors that it is given", "write into copies")

    def is_of_one_token(self) -> None:
        """Alone, in other company, in another order, in parts: a token's value is the same."""
        order = torch.randperm(_TOKENS, generator=torch.Generator().manual_seed(2)).to(self.labels.device)
        self._require(self.of(order), self.expected[order], "the order of tokens", "another order")
        parts = [self.of(slice(start, end)) for start, end in ((0, 1), (1, 5), (5, _TOKENS))]
        self._require(torch.cat(parts), self.expected, "which tokens it sees together", "chunks")
        logits, labels = 10 * self.logits.flip(0), self.labels.flip(0)
        own = torch.arange(0, _TOKENS, 3, device=labels.device)
        logits[own], labels[own] = self.logits[own], self.labels[own]
        changed = self.of(slice(None), logits=logits, labels=labels)
        self._require(changed[own], self.expected[own], "the other tokens", "other micro-batches")
        if not torch.equal(self.of(slice(None)), self.expected):
            raise RefusedError("remembers earlier calls", "compute the values from the arguments alone")

    def _require(self, values: Tensor, expected: Tensor, cause: str, parts: str) -> None:
        scale = expected.abs().clamp(min=1.0)
        if values.shape == expected.shape and ((values - expected).abs() <= _TOLERANCE * scale).all():
            return
        worst = (
            ((values - expected).abs() / scale).max().item() if values.shape == expected.shape else math.inf
        )
        raise RefusedError(
            f"gives a token another value, depending on {cause} (it differs by {worst:.2g}): "
            f"a step that computes it in {parts} would train something else",
            "compute each token's value from its own logits and label; planc takes the mean over tokens",
        )
