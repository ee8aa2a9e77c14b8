"""Graphs of torch.compile are counted; breaks are listed by line of code, and new graphs with a reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from planc.runtime.torch.training.compiled_graphs import CompiledGraphs


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Whole(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values * 2


class Broken(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        scale = (values + 1).sum().item()
        return values * scale


def compiled(*modules: nn.Module, fullgraph: bool) -> tuple[Callable[[Tensor], Tensor], ...]:
    options = {"backend": "eager", "dynamic": False}
    return tuple(torch.compile(module.forward, fullgraph=fullgraph, **options) for module in modules)


def test_graphs_are_counted_from_the_start_and_reported_once() -> None:
    (earlier,) = compiled(Whole(), fullgraph=True)
    earlier(torch.ones(2))
    graphs = CompiledGraphs(num_modules=1)
    assert (graphs.num_graphs, list(graphs.report("step 1"))) == (0, [])
    (layer,) = compiled(nn.Linear(2, 2), fullgraph=True)
    layer(torch.ones(2))
    assert list(graphs.report("step 1")) == ["torch.compile made 1 graph of 1 module"]
    layer(torch.ones(2))
    assert (graphs.num_graphs, list(graphs.report("step 2"))) == (1, [])


def test_more_graphs_are_reported_with_the_input_that_differs() -> None:
    graphs = CompiledGraphs(num_modules=1)
    (layer,) = compiled(Whole(), fullgraph=True)
    layer(torch.ones(2))
    assert len(list(graphs.report("step 1"))) == 1
    layer(torch.ones(3))
    (line,) = graphs.report("step 7")
    reason = "tensor 'values' size mismatch at index 0. expected 2, actual 3"
    assert line == f"step 7: torch.compile made 1 more graph: {reason}"
    assert graphs.num_graphs == 2


def test_code_that_is_compiled_for_the_first_time_has_no_reason() -> None:
    """Nor has it the reason of an earlier compilation."""
    graphs = CompiledGraphs(num_modules=2)
    layer, late = compiled(Whole(), nn.Linear(2, 2), fullgraph=True)
    for length in (2, 3):
        layer(torch.ones(length))
    list(graphs.report("step 1"))
    late(torch.ones(2))
    assert list(graphs.report("step 2")) == ["step 2: torch.compile made 1 more graph"]


def test_a_module_that_is_compiled_again_keeps_its_parameters_and_their_optimizer() -> None:
    """Three lengths are three graphs, and train as the module by itself."""
    torch.manual_seed(0)
    layer, alone = nn.Linear(4, 4), nn.Linear(4, 4)
    alone.load_state_dict(layer.state_dict())
    (forward,) = compiled(layer, fullgraph=True)
    graphs, places = CompiledGraphs(num_modules=1), [one.data_ptr() for one in layer.parameters()]
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.1) for one in (layer, alone)]
    for length in (2, 3, 5):
        values = torch.randn(length, 4)
        for run, optimizer in zip((forward, alone), optimizers, strict=True):
            optimizer.zero_grad()
            run(values).square().sum().backward()
            optimizer.step()
    assert graphs.num_graphs == 3
    assert [one.data_ptr() for one in layer.parameters()] == places
    assert all(map(torch.equal, layer.parameters(), alone.parameters()))


def test_breaks_are_listed_by_line_of_code() -> None:
    graphs = CompiledGraphs(num_modules=2)
    for layer in compiled(Broken(), nn.Sequential(Broken(), Broken()), fullgraph=False):
        layer(torch.ones(2))
    lines, first = inspect.getsourcelines(Broken)
    number = first + next(index for index, line in enumerate(lines) if ".item()" in line)
    made, broken = graphs.report("step 1")
    assert made == f"torch.compile made {graphs.num_graphs} graphs of 2 modules"
    place = f"graph break at {__file__}:{number}: "
    assert broken.startswith(f"{place}Unsupported Tensor.item() call") and broken.endswith("(2 times)")
