"""Every packing verifies over cp, against documents that a model sees one at a time; a leak shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from planc.api import Checked, check_plan
from planc.graph.op import Op
from planc.graph.ops import Forward
from planc.runtime.interpreter import Position
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Data, LocalBatch
from planc.source import SourceFile
from planc.verify.outcome import Item
from planc.verify.verify import compared, prepare, run_plan
from planc.vocab import MeshDim
from tests.plans import write_plan

PLAN = """\
model {
  hf = "models/tiny-llama"
}
mesh {
  dp_shard = 2
  cp = 2
}
fsdp on dp_shard, cp {
  "model.layers.*" -> unit
}
context_parallel on cp {
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 2
}
optimizer {
  kind = adamw(lr = 1e-3)
}
train {
  steps = 10
}
"""
CASES = {
    "isolate, ring": ("data.packing=isolate",),
    "isolate, all-gather": ("data.packing=isolate", "context_parallel.rotate=allgather"),
    "isolate, ulysses": (
        "data.packing=isolate",
        "context_parallel.rotate=ulysses",
        "context_parallel.load_balancer=none",
    ),
    "whole, ring": ("data.packing=whole",),
    "whole, all-gather": ("data.packing=whole", "context_parallel.rotate=allgather"),
    "none, ring": ("data.packing=none",),
}

BeforeOp = Callable[[State, Op, Position], None]


def documents_leak(state: State, op: Op, position: Position) -> None:
    """Makes one document of all that share a sequence."""
    if isinstance(op, Forward) and state.get(Documents) is not None:
        length = state[Data].op.sequence_length
        one = np.tile(np.arange(length), (state[Data].op.micro_batch, 1))
        state.get(Documents).begin(one, on_device=torch.from_numpy(one))


def positions_shifted(state: State, op: Op, position: Position) -> None:
    """Counts the positions of the second rank of cp from 1, where others count from 0."""
    if isinstance(op, Forward):
        state[LocalBatch].position_ids.add_(state[Run].coordinate(MeshDim.CP))


def plan_of(folder: Path, *settings: str) -> Checked:
    sources = [SourceFile(f"--set[{number}]", text) for number, text in enumerate(settings)]
    return check_plan(write_plan(folder, text=PLAN), settings=sources)


def failing(folder: Path, *settings: str, before_op: BeforeOp | None = None) -> set[Item]:
    plan = plan_of(folder, *settings)
    assert plan.bound is not None and plan.graph is not None
    twin = folder / "twin"
    shrunk, training = prepare(plan.bound, plan.graph, base=folder, folder=twin)
    records = run_plan(shrunk.graph, folder=twin, before_op=before_op)
    return {verdict.item for verdict in compared(records, training) if not verdict.ok}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("case", CASES)
def test_a_packing_trains_over_cp_as_documents_that_are_alone(case: str, tmp_path: Path) -> None:
    assert failing(tmp_path, *CASES[case]) == set()


def test_documents_that_see_each_other_unasked_show(tmp_path: Path) -> None:
    assert Item.LOSS in failing(tmp_path, *CASES["isolate, ring"], before_op=documents_leak)


def test_positions_that_ranks_count_unlike_show(tmp_path: Path) -> None:
    assert Item.LOSS in failing(tmp_path, *CASES["isolate, ring"], before_op=positions_shifted)
