"""What a layer keeps between its backward and the gradient of its weight."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from planc.runtime.torch.parallel.deferred_weights import compute_gradients, defer_weight


def test_what_precedes_a_layer_is_freed_before_the_gradient_of_its_weight() -> None:
    torch.manual_seed(0)
    layer, twin = nn.Linear(4, 3, bias=False), nn.Linear(4, 3, bias=False)
    twin.load_state_dict(layer.state_dict())
    pipeline: Any = SimpleNamespace(now=SimpleNamespace(weights=[]))
    defer_weight(layer, pipeline)
    received = torch.randn(2, 5, 4, requires_grad=True)
    expected = received.detach().clone()
    layer(received.sin()).square().sum().backward()
    assert received.grad is not None and layer.weight.grad is None
    held = weakref.ref(received)
    del received
    assert held() is None
    compute_gradients(pipeline.now.weights)
    twin(expected.sin()).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad)
