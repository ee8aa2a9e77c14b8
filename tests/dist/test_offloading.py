"""Inputs of modules that wait in the host's memory: how many a device holds, and that no bit changes."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planc.runtime.torch.training.offloading import Offloader, inner_forward, replace_inner_forward
from planc.runtime.torch.training.recompute import recompute

NUM_LAYERS = 6


class Layer(nn.Module):
    """Takes hidden states by name, as some models' layers do, and a table that all layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, *, hidden: Tensor, table: Tensor) -> Tensor:
        return hidden + (self.linear(hidden) * table).tanh()


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_LAYERS))

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden=hidden, table=table)
        return hidden


class Alive:
    """Counts the inputs of layers that exist when any layer runs, in forward or again in backward."""

    def __init__(self, model: Layers) -> None:
        self.most = 0
        self._inputs: list[weakref.ref[Any]] = []
        for layer in model.layers:
            layer.linear.register_forward_pre_hook(self._note)

    def _note(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._inputs.append(weakref.ref(arguments[0].untyped_storage()))
        found = (one() for one in self._inputs)
        self.most = max(self.most, len({id(one) for one in found if one is not None}))


def offloaded() -> Layers:
    model, offloader = Layers(), Offloader(torch.device("cpu"))
    for layer in model.layers:
        layer.forward = offloader.wrap(layer.forward, is_trained=lambda: True)
    return model


def gradients(model: Layers, *, num_steps: int = 1) -> list[Tensor]:
    """Those of the last step, of the input among them."""
    for _ in range(num_steps):
        model.zero_grad()
        torch.manual_seed(1)
        states, table = torch.randn(3, 8, 16, requires_grad=True), torch.randn(8, 16)
        model(states * 1, table).square().sum().backward()
    assert states.grad is not None
    return [states.grad, *(one.grad for one in model.parameters() if one.grad is not None)]


def test_no_bit_of_a_gradient_changes() -> None:
    whole = gradients(Layers())
    assert len(whole) == 1 + 2 * NUM_LAYERS
    assert all(torch.equal(*pair) for pair in zip(gradients(offloaded(), num_steps=3), whole, strict=True))


def test_a_device_holds_two_inputs() -> None:
    model, recomputed = offloaded(), Layers()
    for layer in recomputed.layers:
        recompute(layer, mode="full")
    found, others = Alive(model), Alive(recomputed)
    gradients(model, num_steps=2)
    gradients(recomputed)
    assert (found.most, others.most) == (2, NUM_LAYERS)


def test_the_first_layer_of_what_is_trained_is_recomputed() -> None:
    """Its input needs no gradient, as below adapters of a frozen base."""
    model, plain = offloaded(), Layers()
    states, table = torch.randn(3, 8, 16), torch.randn(8, 16)
    num_runs = 0

    def count(*_: Any) -> None:
        nonlocal num_runs
        num_runs += 1

    model.layers[0].linear.register_forward_pre_hook(count)
    for one in (model, plain):
        one(states, table).square().sum().backward()
    assert num_runs == 2
    grads = [[parameter.grad for parameter in one.parameters()] for one in (model, plain)]
    assert all(own is not None and torch.equal(own, other) for own, other in zip(*grads, strict=True))


def test_buffers_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    plain = torch.empty_like

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        nonlocal made
        made += "pin_memory" in kwargs
        return plain(*args, **kwargs)

    monkeypatch.setattr(torch, "empty_like", counted)
    gradients(offloaded(), num_steps=4)
    assert made == NUM_LAYERS


def test_two_micro_batches_in_flight_come_back_in_either_order() -> None:
    expected = [one.grad for one in _two(Layers(), reverse=False).parameters()]
    for reverse in (False, True):
        found = _two(offloaded(), reverse=reverse)
        for one, want in zip(found.parameters(), expected, strict=True):
            assert one.grad is not None and want is not None
            torch.testing.assert_close(one.grad, want, rtol=1e-6, atol=1e-6)


def _two(model: Layers, *, reverse: bool) -> Layers:
    """Both forwards precede both backwards, as in a pipeline; sums of two gradients may differ in a bit."""
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        losses.append(model(torch.randn(2, 8, 16, requires_grad=True) * 1, torch.randn(8, 16)).square().sum())
    for loss in reversed(losses) if reverse else losses:
        loss.backward()
    return model


def test_compiled_code_is_inside_of_the_copies() -> None:
    model, plain = offloaded(), Layers()
    for one in (model, plain):
        for layer in one.layers:
            compiled = torch.compile(inner_forward(layer), backend="aot_eager", fullgraph=False)
            replace_inner_forward(layer, compiled)
    assert all(torch.equal(*pair) for pair in zip(gradients(model), gradients(plain), strict=True))


def test_nothing_moves_without_gradients() -> None:
    model = offloaded()
    with torch.no_grad():
        assert torch.equal(
            model(torch.ones(1, 8, 16), torch.ones(8, 16)), Layers()(torch.ones(1, 8, 16), torch.ones(8, 16))
        )
