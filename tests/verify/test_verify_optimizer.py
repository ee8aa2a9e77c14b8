"""Every optimizer and each of its implementations trains as torch's own loop does in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch.optim import Optimizer

from planc.api import Checked, check_plan
from planc.graph.op import Op
from planc.graph.ops import BuildSchedule, StepOptimizer
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.parallel.owners import Sharded
from planc.runtime.torch.training.muon import Muon
from planc.source import SourceFile
from planc.verify.outcome import Item
from planc.verify.ranks import BeforeOp
from planc.verify.verify import verify
from tests.plans import write_plan

PLAN = """\
model {
  hf = "models/tiny-llama"
}
mesh {
  tp = 2
}
tensor_parallel on tp {
  auto
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 2
}
optimizer {
  kind = sgd(lr = 1e-1, momentum = 0.9, weight_decay = 0.1)
  clip_grad_norm = 1.0
  schedule = wsd(warmup = 1 steps, decay = 30 steps, min_factor = 0.1)
  "model.embed_tokens" -> group(lr = 1e-2)
  "**.*norm*" -> group(weight_decay = 0.0, lr = 2e-1)
}
train {
  steps = 100
}
"""
SGD = "sgd(lr = 1e-1, momentum = 0.9, weight_decay = 0.1, nesterov = true, implementation = {})"
KINDS = {
    "sgd without momentum": "sgd(lr = 1e-1)",
    "sgd, for_loop": SGD.format("for_loop"),
    "sgd, foreach": SGD.format("foreach"),
    "adamw, fused": "adamw(lr = 1e-3, implementation = fused)",
    "adamw, foreach": "adamw(lr = 1e-3, implementation = foreach)",
    "adamw, 8 bits": "adamw_8bit(lr = 1e-3, block = 16)",
    "adamw, bfloat16": "adamw_bf16(lr = 1e-3)",
    "muon": "muon(lr = 2e-2, lr_scale = match_rms_adamw, rest = adamw(lr = 1e-2))",
}
"""Under tensor parallelism alone some parameters are plain tensors, which no kernel takes with the others."""


def checked(folder: Path, *settings: str) -> Checked:
    sources = [SourceFile(f"--set[{index}]", text) for index, text in enumerate(settings)]
    found = check_plan(write_plan(folder, text=PLAN), settings=sources)
    assert found.bound is not None and found.graph is not None, [str(one) for one in found.diagnostics]
    return found


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_implementation_is_torchs_loop(kind: str, tmp_path: Path) -> None:
    found = checked(tmp_path, f"optimizer.kind={kind}")
    assert found.bound is not None and found.graph is not None
    report = verify(found.bound, found.graph, base=tmp_path)
    assert [verdict for verdict in report.verdicts if not verdict.ok] == []


SHARDED = """\
model {
  hf = "models/%s"
}
mesh {
  dp_shard = 2
  tp = 2
}
tensor_parallel on tp {
  auto
}
fsdp on dp_shard {
  "model.layers.*" -> unit
  ["model.embed_tokens", "model.norm", "lm_head"] -> unit
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 2
}
optimizer {
  kind = muon(lr = 2e-2, rest = adamw(lr = 1e-2))
  clip_grad_norm = 1.0
}
train {
  steps = 100
}
"""


def muon_failures(model: str, folder: Path, before_op: BeforeOp | None = None) -> list[Item]:
    """What differs from Muon in one process, on dp_shard 2 x tp 2."""
    found = check_plan(write_plan(folder, text=SHARDED % model))
    assert found.bound is not None and found.graph is not None, [str(one) for one in found.diagnostics]
    report = verify(found.bound, found.graph, base=folder, before_op=before_op)
    return [verdict.item for verdict in report.verdicts if not verdict.ok]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-phi3", pytest.param("tiny-qwen3-moe", marks=pytest.mark.slow)])
def test_muon_takes_fused_projections_and_stacked_experts_apart(model: str, tmp_path: Path) -> None:
    """In one process every part, and every expert, is a matrix of its own. A save resumes on two ranks."""
    assert muon_failures(model, tmp_path) == []


def shards_alone(state: State, op: Op, position: Position) -> None:
    """Every rank orthogonalizes its own shards."""
    if isinstance(op, StepOptimizer):
        optimizer = state[Optimizer]
        assert isinstance(optimizer, Muon)
        optimizer._matrices[:] = [
            replace(matrix, held=Sharded(tuple(local_of(matrix.parameter).shape), ()), widths=())
            for matrix in optimizer._matrices
        ]


def fused_whole(state: State, op: Op, position: Position) -> None:
    """Fused projections are one matrix."""
    if isinstance(op, StepOptimizer):
        optimizer = state[Optimizer]
        assert isinstance(optimizer, Muon)
        optimizer._matrices[:] = [replace(matrix, widths=()) for matrix in optimizer._matrices]


def held_in_ranks_order(state: State, op: Op, position: Position) -> None:
    """Gathered projections keep the order in which ranks hold them."""
    if isinstance(op, StepOptimizer):
        optimizer = state[Optimizer]
        assert isinstance(optimizer, Muon)
        optimizer._matrices[:] = [
            replace(matrix, held=replace(matrix.held, packing=None)) for matrix in optimizer._matrices
        ]


@pytest.mark.parametrize(
    ("fault", "model"),
    [
        pytest.param(shards_alone, "tiny-phi3", marks=pytest.mark.slow),
        pytest.param(fused_whole, "tiny-phi3", marks=pytest.mark.slow),
        # Its experts' two projections are sharded each.
        pytest.param(held_in_ranks_order, "tiny-qwen3-moe", marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_muon_shows_in_the_parameters(fault: BeforeOp, model: str, tmp_path: Path) -> None:
    assert Item.PARAMETERS in muon_failures(model, tmp_path, fault)


def rates_exchanged(state: State, op: Op, position: Position) -> None:
    """Gives the groups one another's learning rates."""
    if isinstance(op, BuildSchedule):
        groups = state[Optimizer].param_groups
        rates = [group["peak_lr"] for group in groups]
        for group, rate in zip(groups, reversed(rates), strict=True):
            group["peak_lr"] = rate


def test_a_group_with_another_s_learning_rate_shows(tmp_path: Path) -> None:
    found = checked(tmp_path)
    assert found.bound is not None and found.graph is not None
    report = verify(found.bound, found.graph, base=tmp_path, before_op=rates_exchanged)
    failed = [verdict.item for verdict in report.verdicts if not verdict.ok]
    assert Item.PARAMETERS in failed
    assert Item.GRADIENTS not in failed
