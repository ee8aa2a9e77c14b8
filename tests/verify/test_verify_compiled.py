"""Compiled and offloaded plans train as one process does, and really compile and offload."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule

from planc.api import check_source
from planc.graph.op import Op
from planc.graph.ops import InitMesh, StepOptimizer
from planc.runtime.compilers import unusable_inductor
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.weights.weights import move_buffers
from planc.source import SourceFile
from planc.styles.modules import RULES
from planc.verify.pool import RankError
from planc.verify.shrink import shrink
from planc.verify.verify import cause, compared, prepare, run_plan, verify
from planc.vocab import DType
from tests.plans import PLANS
from tests.slow import slow_except

PLAN = """\
model {
  hf = "models/tiny-llama"
}
mesh {
  MESH
}
fsdp on dp_shard, cp {
  replicate_on = dp_replicate
  cpu_offload = OFFLOAD
  "model.layers.*" -> unit
}
TENSOR
RECOMPUTATION
CONTEXT
COMPILE
data {
  source = python_stdlib()
  sequence_length = 64
  micro_batch = 2
  packing = PACKING
}
optimizer {
  kind = adamw(lr = 1e-2)
  clip_grad_norm = 1.0
}
train {
  steps = 10
  tokens_per_step = 1024
}
checkpoint {
  save_every = 5 steps
}
"""
COMPILE = 'compile {\n  backend = aot_eager\n  "model.layers.*" -> region\n}'
CONTEXT = (
    "context_parallel on cp {{\n  rotate = {}\n  load_balancer = {}\n"
    '  ["input_ids", "labels", "position_ids"] -> Shard(1)\n}}'
)
AUTO = "tensor_parallel on tp {\n  auto\n}"
ALLGATHER, ULYSSES = CONTEXT.format("allgather", "headtail"), CONTEXT.format("ulysses", "none")


def plan_text(
    *,
    mesh: str = "dp_shard = 2",
    offload: bool = False,
    recomputation: str = "",
    context: str = "",
    tensor: str = "",
    compilation: str = COMPILE,
    packing: str = "attend",
) -> str:
    block = f'activation_checkpoint {{\n  "model.layers.*" -> {recomputation}\n}}' if recomputation else ""
    text = PLAN.replace("MESH", mesh).replace("OFFLOAD", str(offload).lower()).replace("TENSOR", tensor)
    text = text.replace("RECOMPUTATION", block).replace("CONTEXT", context)
    return text.replace("COMPILE", compilation).replace("PACKING", packing)


def is_compiled(state: State, op: Op, position: Position) -> None:
    """Fails in a rank whose two equal layers are not compiled to one graph, beside the two of the loss."""
    if isinstance(op, StepOptimizer) and counters["stats"]["unique_graphs"] != 1 + 2:
        raise AssertionError(f"graphs: {counters['stats']}")


def is_compiled_in_parts(state: State, op: Op, position: Position) -> None:
    """Fails in a rank whose layers are the graph of one, or none; the loss has two."""
    if isinstance(op, StepOptimizer) and counters["stats"]["unique_graphs"] < 2 + 2:
        raise AssertionError(f"graphs: {counters['stats']}")


def is_offloaded(state: State, op: Op, position: Position) -> None:
    """Fails in a rank that has a unit whose shards stay on the device."""
    for module in state[nn.Module].modules() if isinstance(op, StepOptimizer) else ():
        group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
        if group is not None and not isinstance(group.offload_policy, CPUOffloadPolicy):
            raise AssertionError("a unit is not offloaded")


CASES = {
    "fsdp, recomputed": {"recomputation": "full"},
    "hsdp, recomputed in part": {
        "mesh": "dp_replicate = 2\n  dp_shard = 2",
        "recomputation": "selective",
    },
    "allgather, documents alone, recomputed": {
        "mesh": "cp = 2",
        "context": ALLGATHER,
        "packing": "isolate",
        "recomputation": "full",
    },
    "ulysses, documents alone": {"mesh": "cp = 2", "context": ULYSSES, "packing": "isolate"},
    "tp": {"mesh": "tp = 2", "tensor": AUTO},
    "tp, cp, recomputed": {
        "mesh": "cp = 2\n  tp = 2",
        "tensor": AUTO,
        "context": ALLGATHER,
        "recomputation": "full",
    },
    # Styles on DTensors gave wrong gradients here, without an error.
    "sequence parallelism, fsdp, recomputed": {
        "mesh": "dp_shard = 2\n  tp = 2",
        "tensor": RULES,
        "recomputation": "full",
    },
    "sequence parallelism, recomputed in part": {
        "mesh": "tp = 2",
        "tensor": RULES,
        "recomputation": "selective",
    },
}


QUICK = ("sequence parallelism, fsdp, recomputed",)


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_except(CASES, *QUICK))
def test_compiled_layers_give_the_gradients_of_one_process(case: str, tmp_path: Path) -> None:
    found = check_source(SourceFile("x.plan", plan_text(**CASES[case])), base=PLANS)
    assert found.bound is not None and found.graph is not None, found.diagnostics
    shrunk, training = prepare(found.bound, found.graph, base=PLANS, folder=tmp_path)
    records = run_plan(shrunk.graph, folder=tmp_path, before_op=is_compiled)
    assert [verdict for verdict in compared(records, training) if not verdict.ok] == []


@pytest.mark.slow
@pytest.mark.skipif(unusable_inductor("cpu", os.environ) is not None, reason="inductor can't build")
def test_inductors_kernels_give_the_gradients_of_one_process() -> None:
    text = plan_text(mesh="tp = 2", tensor=RULES, recomputation="full")
    text = text.replace("aot_eager", "inductor")
    found = check_source(SourceFile("x.plan", text), base=PLANS)
    assert found.bound is not None and found.graph is not None, found.diagnostics
    report = verify(found.bound, found.graph, base=PLANS, before_op=is_compiled)
    assert [verdict for verdict in report.verdicts if not verdict.ok] == []


@pytest.mark.slow
def test_what_stands_around_a_ring_is_compiled_in_parts(tmp_path: Path) -> None:
    compilation = COMPILE.replace("aot_eager", "aot_eager\n  fullgraph = false")
    text = plan_text(mesh="cp = 2", context=CONTEXT.format("ring", "headtail"), compilation=compilation)
    found = check_source(SourceFile("x.plan", text), base=PLANS)
    assert found.bound is not None and found.graph is not None, found.diagnostics
    shrunk, training = prepare(found.bound, found.graph, base=PLANS, folder=tmp_path)
    records = run_plan(shrunk.graph, folder=tmp_path, before_op=is_compiled_in_parts)
    assert [verdict for verdict in compared(records, training) if not verdict.ok] == []


def test_ranks_that_compile_are_waited_for_longer(tmp_path: Path) -> None:
    """The first stage may compile for minutes while the second waits for what it sends."""
    seconds = []
    for number, compilation in enumerate(("", COMPILE)):
        found = check_source(SourceFile("x.plan", plan_text(compilation=compilation)), base=PLANS)
        assert found.bound is not None and found.graph is not None, found.diagnostics
        folder = tmp_path / str(number)
        folder.mkdir()
        shrunk = shrink(found.bound, found.graph, base=PLANS, folder=folder, dtype=DType.FLOAT32)
        seconds += [op.timeout_seconds for op in shrunk.graph.setup if isinstance(op, InitMesh)]
    assert seconds[1] > 5 * seconds[0]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mesh", ["dp_shard = 2", "dp_shard = 1"])
def test_offloaded_parameters_train_and_resume_as_others(mesh: str) -> None:
    text = plan_text(mesh=mesh, offload=True, compilation="")
    found = check_source(SourceFile("x.plan", text), base=PLANS)
    assert found.bound is not None and found.graph is not None, found.diagnostics
    report = verify(found.bound, found.graph, base=PLANS, before_op=is_offloaded)
    assert [verdict for verdict in report.verdicts if not verdict.ok] == []


def test_buffers_stay_where_a_module_computes() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    move_buffers(model, device=torch.device("meta"))
    assert {buffer.device.type for buffer in model.buffers()} == {"meta"}
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert model[0].running_mean is not None and model[0].running_mean.shape == (4,)


def test_the_cause_of_torch_compiles_error_is_kept() -> None:
    error = RankError(
        "Traceback:\n  File x\n"
        "OpFailure: BackendCompilerFailed in op `forward` (rank 0): backend='inductor' raised:\n"
        "CppCompileError: C++ compile error\n\nCommand:\ng++ x\n"
    )
    assert cause(error) == (
        "OpFailure: BackendCompilerFailed in op `forward` (rank 0): backend='inductor' raised: "
        "CppCompileError: C++ compile error"
    )
