"""The cost of experts of unequal load: more rows on one rank, and a step that waits for it."""

from __future__ import annotations

from planc.api import check_source
from planc.estimate.estimate import estimate
from planc.estimate.result import Estimate
from planc.estimate.step_work import step_work
from planc.graph.graph import Graph
from planc.inventory.schema import Inventory
from planc.show.estimate import estimate_data, estimate_text
from planc.show.times import Imbalance
from planc.source import SourceFile
from tests.plans import PLANS

PLAN = """\
model {
  hf = "models/tiny-qwen3-moe"
}

mesh {
  dp_shard = 4
}

expert_parallel on dp_shard {
  size = 2
  auto
}

fsdp on dp_shard {
  "model.layers.*" -> unit
}

balance {
  loss = none
}

data {
  source = text("data/*.txt")
  sequence_length = 64
  micro_batch = 1
}

optimizer {
  kind = adamw(lr = 1e-3)
}

train {
  steps = 4
}
"""
LAYERS, PER_TOKEN, TOKENS, HIDDEN, INNER, FLOAT32 = 4, 2, 64, 128, 64, 4


def checked() -> tuple[Graph, Inventory]:
    found = check_source(SourceFile("experts.plan", PLAN), base=PLANS)
    assert found.graph is not None and found.inventory is not None, found.diagnostics
    return found.graph, found.inventory


def activations(estimated: Estimate) -> int:
    return estimated.memory.part("activations").num_bytes


def test_an_imbalance_keeps_the_tensors_of_more_rows_on_the_rank_that_gets_them() -> None:
    """Of each row: its input, the gate and factor, silu of the gate, the input of down, and its output."""
    graph, inventory = checked()
    equal, double, triple = (estimate(graph, inventory, expert_load=load) for load in (1, 2, 3))
    row = (HIDDEN + 2 * INNER + INNER + INNER + HIDDEN) * FLOAT32
    extra = LAYERS * PER_TOKEN * TOKENS * row
    assert activations(double) - activations(equal) == extra
    assert activations(triple) - activations(double) == extra


def test_results_that_a_rank_sends_back_and_its_matmuls_are_twice_as_many() -> None:
    graph, inventory = checked()
    equal, double = (estimate(graph, inventory, expert_load=load) for load in (1, 2))
    pairs = zip(equal.collectives, double.collectives, strict=True)
    grown = [(two.input_bytes / one.input_bytes, one.is_routed) for one, two in pairs]
    assert {ratio for ratio, is_routed in grown if is_routed} == {2.0}
    assert {ratio for ratio, is_routed in grown if not is_routed} == {1.0}
    steps = [step_work(graph, inventory, one) for one in (equal, double)]
    rows = [sum(one.rows for one in step.matmuls if one.inner == 2 * INNER) for step in steps]
    assert steps[1].matmul_flops > steps[0].matmul_flops and rows[1] > rows[0]


def test_the_views_have_the_imbalance_next_to_the_equal_load() -> None:
    graph, inventory = checked()
    equal, uneven = estimate(graph, inventory), estimate(graph, inventory, expert_load=2)
    imbalance = Imbalance(uneven, None)
    last = estimate_text(equal, imbalance=imbalance).splitlines()[-1]
    assert "with 2 x the tokens on one rank's experts: peak" in last and "instead of" in last
    data = estimate_data(equal, imbalance=imbalance)["imbalance"]
    assert data == {"load": 2, "uneven_peak_memory": uneven.memory.peak.num_bytes}
    assert uneven.memory.peak.num_bytes > equal.memory.peak.num_bytes
