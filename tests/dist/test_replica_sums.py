"""Gradients of whole replicas, summed while backward computes others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

from planc.api import check_source
from planc.graph.graph import Graph
from planc.graph.ops import AllReduceGradients
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch.parallel.collectives import CollectiveRecorder
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.replica_sums import ReplicaSums, begin_sums, replica_sums
from planc.runtime.torch.state import Weights
from planc.source import SourceFile
from planc.vocab import MeshDim
from tests.dist.first_steps import run_compared
from tests.dist.pool import run_ranks
from tests.parity.cases import TP2_REPLICATE2, Case, plan_text
from tests.parity.compare import worst_gradient, worst_relative
from tests.parity.ranks import Task, train_rank
from tests.parity.reference import train_reference

COMPILE = 'compile {\n  backend = aot_eager\n  "model.layers.*" -> region\n}\n'
REPLICATE2 = {"dp_replicate": 2}
CASES = (
    Case("DP2", "accumulate 4, recompute", REPLICATE2, micro_batch=1, recomputes=True),
    Case("DP2", "tied, loss chunks", REPLICATE2, model="llama-tied", settings=("train.loss_chunks=4",)),
    Case("TP2·DP2", "norms of heads", TP2_REPLICATE2, model="qwen3", micro_batch=2),
)
COMPILED = Case("DP2", "compiled", REPLICATE2)
EXPERTS = Case("DP2", "experts", REPLICATE2, model="qwen3-moe")
OP = AllReduceGradients(over=(MeshDim.DP_REPLICATE,), blocks=("layers",), bucket_bytes=1, span=None)


class Layers(nn.Module):
    """Layers with one parameter each, which run one after the other."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(num_layers))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs).tanh()
        return inputs


def sums_of(
    model: nn.Module, mesh: DeviceMesh, op: AllReduceGradients = OP, *, keeps_gradients: bool = True
) -> ReplicaSums:
    run: Any = SimpleNamespace(graph=SimpleNamespace(step=(op,)), keeps_gradients=keeps_gradients)
    found = replica_sums(run, Mesh(mesh), Weights.of(model), None)
    assert found is not None
    return found


def num_sent_as_gradients_arrive(rank: int, world_size: int) -> tuple[list[list[int]], bool]:
    """Messages sent before each layer's gradient is there, in a micro step that accumulates and in the last;
    and whether the gradients are those of both replicas' inputs together."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp_replicate",))
    torch.manual_seed(0)
    model, inputs = Layers(3).double(), torch.randn(2, 5, 4, dtype=torch.float64)
    sums, sent = sums_of(model, mesh), list[int]()
    for layer in model.layers:
        layer.weight.register_hook(lambda _: sent.append(sum(calls.calls.values())))
    by_micro_step = []
    with CollectiveRecorder() as calls:
        for is_last in (False, True):
            begin_sums(sums, Position(step=1, is_last_micro_step=is_last), None, deferred=False)
            model(inputs[rank]).sum().backward()
            by_micro_step.append(sent.copy())
            sent.clear()
        sums.finish()
    whole = Layers(3).double()
    whole.load_state_dict(model.state_dict())
    for each in (*inputs, *inputs):
        whole(each).sum().backward()
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    is_sum = all(torch.allclose(one.grad, other.grad, rtol=0, atol=1e-12) for one, other in pairs)  # type: ignore[arg-type]
    return by_micro_step, is_sum


def test_a_layer_is_summed_before_the_gradients_below_it_are_there() -> None:
    """The hook of a weight runs before its own gradient is accumulated: the layers above are sent by then."""
    for by_micro_step, is_sum in run_ranks(num_sent_as_gradients_arrive, 2):
        assert by_micro_step == [[0, 0, 0], [0, 1, 2]]
        assert is_sum


def memory_of_two_steps(rank: int, world_size: int, keeps_gradients: bool) -> tuple[list[int], bool]:
    """Where the gradients of each step's first layer are, and whether the second step's are right."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp_replicate",))
    torch.manual_seed(0)
    model, inputs = Layers(2).double(), torch.randn(2, 5, 4, dtype=torch.float64)
    sums = sums_of(model, mesh, replace(OP, blocks=()), keeps_gradients=keeps_gradients)
    first, held, places = model.layers[0].weight, list[Tensor](), list[int]()
    for step in (1, 2):
        model.zero_grad(set_to_none=True)
        begin_sums(sums, Position(step=step), None, deferred=False)
        model(inputs[rank]).sum().backward()
        sums.finish()
        assert first.grad is not None
        places.append(first.grad.data_ptr())
        # Held, so what comes next can't be in its place by chance.
        held.append(first.grad)
    whole = Layers(2).double()
    whole.load_state_dict(model.state_dict())
    for each in inputs:
        whole(each).sum().backward()
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    return places, all(torch.allclose(one.grad, other.grad, rtol=0, atol=1e-12) for one, other in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("keeps_gradients", [True, False])
def test_on_cpus_the_memory_of_the_sums_is_kept_from_step_to_step(keeps_gradients: bool) -> None:
    for (first, second), is_sum in run_ranks(memory_of_two_steps, 2, keeps_gradients):
        assert (first == second) is keeps_gradients
        assert is_sum


def summed_at_the_end(rank: int, world_size: int) -> tuple[dict[str, list[float]], int]:
    """(values of each gradient on this rank, messages), where backward sends nothing itself."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "tp"))
    replica = mesh["dp_replicate"].get_local_rank()
    layers = nn.ModuleList(nn.Module() for _ in range(2))
    for layer, dtype in zip(layers, (torch.float32, torch.bfloat16), strict=True):
        for name, kind in (("one", dtype), ("other", torch.float32)):
            layer.register_parameter(name, nn.Parameter(torch.zeros(4, 6, dtype=kind)))
            layer.get_parameter(name).grad = torch.full((4, 6), 1.0 + replica, dtype=kind)
    model = nn.Module()
    model.add_module("layers", layers)
    model.register_parameter("unused", nn.Parameter(torch.zeros(3)))
    model.register_parameter("frozen", nn.Parameter(torch.zeros(3), requires_grad=False))
    divided = nn.Parameter(distribute_tensor(torch.zeros(8), mesh["tp"], [Shard(0)]))
    divided.grad = DTensor.from_local(torch.full((4,), 10.0 + rank), mesh["tp"], [Shard(0)], run_check=False)
    model.register_parameter("divided", divided)
    sums = sums_of(model, mesh)
    begin_sums(sums, Position(step=1), None, deferred=False)
    with CollectiveRecorder() as calls:
        sums.finish()
    assert isinstance(divided.grad, DTensor) and divided.grad.placements == (Shard(0),)
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    values = {name: local_of(one).unique().tolist() for name, one in found.items()}
    return values, sum(calls.calls.values())


def test_gradients_that_hold_up_their_message_are_summed_at_the_end() -> None:
    """A message for the first layer, two for the second, whose dtypes are two, and one for the rest, of which
    one has no gradient."""
    same = {f"layers.{layer}.{name}": [3.0] for layer in range(2) for name in ("one", "other")}
    for rank, (values, num_messages) in enumerate(run_ranks(summed_at_the_end, 4)):
        # Ranks 0 and 2 hold the first half of the sharded dimension, 1 and 3 the second.
        assert values == same | {"divided": [22.0] if rank % 2 == 0 else [24.0]}
        assert num_messages == 4


def added_to_after_the_sum(rank: int, world_size: int) -> str:
    """The failure where a layer runs a backward of its own each time that it is called."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp_replicate",))
    model = Layers(1)
    inputs = torch.ones(1, 4, requires_grad=True)
    once = checkpoint(model, inputs, use_reentrant=True)
    twice = checkpoint(model, once, use_reentrant=True)
    sums = sums_of(model, mesh)
    begin_sums(sums, Position(step=1), None, deferred=False)
    with pytest.raises(RunError) as failure:
        twice.sum().backward()
    sums.finish()
    return failure.value.message


def test_a_gradient_that_changes_after_its_sum_has_started_ends_the_run() -> None:
    text = "backward adds to the gradient of layers.0.weight after its sum over replicas has started"
    assert run_ranks(added_to_after_the_sum, 2) == [text, text]


def graph_of(case: Case, *, workspace: Path, more: str = "") -> Graph:
    """The graph of a case, with a bucket for each layer."""
    sources = [SourceFile(f"--set[{index}]", text) for index, text in enumerate(case.settings)]
    text = plan_text(replace(case, replicas="whole")) + more
    checked = check_source(SourceFile("replicas.plan", text), base=workspace, settings=sources)
    assert checked.graph is not None, checked.diagnostics
    old = checked.graph.step
    step = (replace(op, bucket_bytes=1) if isinstance(op, AllReduceGradients) else op for op in old)
    return replace(checked.graph, step=tuple(step))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", (*CASES, COMPILED), ids=lambda case: case.name)
def test_replicas_with_a_message_for_each_layer_train_as_one_process(
    case: Case, workspace: Path, tmp_path: Path
) -> None:
    reference = train_reference(case.model, workspace=workspace, dtype=torch.float64)
    case = replace(case, weights="pretrained", settings=("model.dtype=float64", *case.settings))
    graph = graph_of(case, workspace=workspace, more=COMPILE if case.variant == "compiled" else "")
    record, *_ = run_ranks(train_rank, graph.world_size, Task(graph, workspace, tmp_path), init=False)
    assert worst_gradient(record.gradients, reference.gradients)[1] < 1e-12
    assert worst_relative([step.loss for step in record.metrics], reference.losses) < 1e-12
    assert worst_relative([step.grad_norm for step in record.metrics], reference.grad_norms) < 1e-12


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("case", (*CASES, EXPERTS), ids=lambda case: case.name)
def test_a_message_for_each_layer_is_what_the_graph_predicts(
    case: Case, workspace: Path, tmp_path: Path
) -> None:
    graph = graph_of(case, workspace=workspace)
    for one in run_compared(graph, workspace / case.model, tmp_path):
        assert (one.code, one.message, one.counted) == (None, "", (1,))
