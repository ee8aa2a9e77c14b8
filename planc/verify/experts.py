"""Experts of the reference in one process: balance as formulas of autograd, capacity token by token."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot

from planc.verify.recipe import Balance


@dataclass(frozen=True, slots=True)
class _Routed:
    """The tokens of one call of a router."""

    logits: Tensor
    """[tokens, experts]."""
    chosen: Tensor
    """[tokens, experts per token]."""
    sets: Tensor
    """[tokens]: the number of each token's set."""


class Routes:
    """The choices of a model's routers for the texts of a step."""

    def __init__(self, model: nn.Module, balance: Balance, *, num_sequences: int) -> None:
        self.balance = balance
        self.num_sets = num_sequences // balance.num_sequences
        self._sequences = torch.empty(0, dtype=torch.int64)
        self._routed: dict[str, list[_Routed]] = {}
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.biases = {router: (bias, tensors[bias]) for router, _, bias in balance.layers if bias}
        """The name and the tensor of each bias that is moved, by router."""
        self.adds_losses = balance.coefficient > 0 or balance.z_loss > 0
        self._loads: dict[str, Tensor] = {}
        for router, experts, _ in balance.layers:
            self._watch(model.get_submodule(router), model.get_submodule(experts), name=router)

    def _watch(self, router: nn.Module, experts: nn.Module, *, name: str) -> None:
        logits: list[Tensor] = []

        def keep(module: Any, arguments: tuple[Tensor, ...], _: object) -> None:
            # The weight's own product: what a router's code returns first may be anything.
            hidden = arguments[0].flatten(0, -2)
            dtype = hidden.dtype if hidden.dtype is torch.float64 else torch.float32
            bias = getattr(module, "bias", None)
            logits[:] = [
                linear(hidden.to(dtype), module.weight.to(dtype), bias if bias is None else bias.to(dtype))
            ]

        def add(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            tensors = (value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor))
            chosen = next(tensor for tensor in tensors if tensor.dtype is torch.int64)
            sets = self._sequences // self.balance.num_sequences
            self._routed.setdefault(name, []).append(_Routed(logits.pop().double(), chosen, sets))

        router.register_forward_hook(keep)
        experts.register_forward_pre_hook(add, with_kwargs=True)

    def expect(self, sequences: list[int], *, length: int) -> None:
        """The next forward has a text of this length of each of these sequences of the step."""
        self._sequences = torch.tensor(sequences).repeat_interleave(length)

    def losses(self) -> tuple[Tensor, Tensor]:
        """The balance loss and the z-loss of all forwards since they were last asked for."""
        layers = list(self._routed.values())
        self._loads = {
            name: _load(routed, num_experts=routed[0].logits.shape[-1])
            for name, routed in self._routed.items()
        }
        self._routed = {}
        z = sum((_z(layer) for layer in layers), torch.zeros((), dtype=torch.float64))
        if self.balance.pooled:
            layers = [[one for layer in layers for one in layer]]
        switch = sum((self._switch(layer) for layer in layers), torch.zeros((), dtype=torch.float64))
        return self.balance.coefficient * switch, self.balance.z_loss * z

    @torch.no_grad()
    def move_biases(self) -> None:
        """Move each bias by the choices of the step whose losses were asked for: up where they are few."""
        for router, (_, bias) in self.biases.items():
            load = self._loads[router]
            bias += self.balance.update * (load.mean() - load).sign().view(bias.shape).to(bias.dtype)

    def _switch(self, routed: list[_Routed]) -> Tensor:
        """The mean over sets of E * sum over experts of (share of tokens) * (mean probability)."""
        probabilities = torch.cat([one.logits for one in routed]).softmax(-1)
        num_experts = probabilities.shape[-1]
        is_chosen = torch.cat([one_hot(one.chosen, num_experts).amax(-2) for one in routed]).double()
        sets = torch.cat([one.sets for one in routed])
        total = torch.zeros((), dtype=torch.float64)
        for number in sorted(set(sets.tolist())):
            of_set = sets == number
            shares, means = is_chosen[of_set].mean(0), probabilities[of_set].mean(0)
            total = total + num_experts * (shares * means).sum()
        return total / self.num_sets


def _load(routed: list[_Routed], *, num_experts: int) -> Tensor:
    """The tokens of each expert, float64."""
    return torch.cat([call.chosen.flatten() for call in routed]).bincount(minlength=num_experts).double()


def _z(routed: list[_Routed]) -> Tensor:
    return torch.cat([one.logits for one in routed]).logsumexp(-1).square().mean()


def limit_tokens(experts: nn.Module, *, capacity: float, length: int) -> None:
    """Leave out of a token's sum the experts that earlier tokens of its sequence have filled.

    The module sees the tokens of one sequence at a time, whose capacity is that of one of this length.
    """
    inner: Any = experts.forward
    number = next(len(parameter) for parameter in experts.parameters() if parameter.ndim == 3)

    def forward(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        most = math.ceil(Fraction(str(capacity)) * length * chosen.shape[1] / number)
        taken = torch.zeros(chosen.shape, dtype=torch.bool)
        counts: Counter[int] = Counter()
        for token, experts_of_token in enumerate(chosen.tolist()):
            for place, expert in enumerate(experts_of_token):
                taken[token, place] = counts[expert] < most
                counts[expert] += 1
        result: Tensor = inner(tokens, chosen, torch.where(taken, weights, torch.zeros_like(weights)))
        return result

    experts.forward = forward
