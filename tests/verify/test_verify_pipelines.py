"""A pipeline is verified in stages: as many on a rank as the plan has, and on one rank after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from planc.api import check_source
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import Accumulate, ClipGradients, ReceiveHidden, SendHidden, SplitPipeline, SumTies
from planc.plan.bind import BoundPlan
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.run import Run
from planc.source import SourceFile
from planc.verify.outcome import Item
from planc.verify.rewrite import resumed_elsewhere
from planc.verify.shrink import shrink
from planc.verify.verify import prepare, verify
from planc.vocab import DType, MeshDim
from tests.plans import PLANS
from tests.verify.items import ITEMS

PLAN = """\
model {
  hf = "models/tiny-llama"
}
mesh {
  pp = 2
  tp = 2
}
pipeline on pp {
  schedule = interleaved(stages_per_rank = 2)
}
tensor_parallel on tp {
  auto(sequence_parallel = true)
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 1
}
optimizer {
  kind = adamw(lr = 1e-2)
  clip_grad_norm = 1.0
}
train {
  steps = 10
  tokens_per_step = 1024
}
"""


@pytest.fixture(scope="module")
def plan() -> tuple[BoundPlan, Graph]:
    found = check_source(SourceFile("x.plan", PLAN), base=PLANS)
    assert found.bound is not None and found.graph is not None, found.diagnostics
    return found.bound, found.graph


def doubles_a_gradient_of_the_last_stage(state: State, op: Op, position: Position) -> None:
    for name, parameter in state[nn.Module].named_parameters() if isinstance(op, ClipGradients) else ():
        if name == "lm_head.weight" and parameter.grad is not None:
            parameter.grad.mul_(2)


def test_a_small_pipeline_has_the_plans_stages_on_a_rank(
    plan: tuple[BoundPlan, Graph], tmp_path: Path
) -> None:
    shrunk, _ = prepare(*plan, base=PLANS, folder=tmp_path)
    (split,) = (op for op in shrunk.graph.setup if isinstance(op, SplitPipeline))
    (loop,) = (op for op in shrunk.graph.step if isinstance(op, Accumulate))
    layers = [f"model.layers.{number}" for number in range(4)]
    first, second, third, last = split.stages
    assert (first, second) == (("model.embed_tokens", layers[0]), (layers[1],))
    assert (third, last) == ((layers[2],), (layers[3], "model.norm", "lm_head"))
    # Between two layers, sequence parallelism leaves a rank half of the sequence.
    assert split.shape[:2] == (1, 32)
    assert (loop.times, len(loop.orders)) == (2, 2)
    one = resumed_elsewhere(shrunk.graph)
    assert (one.size(MeshDim.PP), one.size(MeshDim.TP)) == (1, 2)
    body = [type(inner) for op in one.step if isinstance(op, Accumulate) for inner in op.body]
    assert body and not {ReceiveHidden, SendHidden} & set(body)


def test_a_pipeline_computes_what_one_process_computes(plan: tuple[BoundPlan, Graph]) -> None:
    report = verify(*plan, base=PLANS)
    assert [verdict for verdict in report.verdicts if not verdict.ok] == []
    assert {verdict.item for verdict in report.verdicts} == {*ITEMS}


@pytest.mark.slow
def test_deferred_gradients_are_verified_and_a_resume_on_one_rank_defers_none() -> None:
    text = PLAN.replace("interleaved(stages_per_rank = 2)", "zero_bubble")
    found = check_source(SourceFile("x.plan", text), base=PLANS)
    assert found.bound is not None and found.graph is not None, found.diagnostics
    report = verify(found.bound, found.graph, base=PLANS)
    assert [verdict for verdict in report.verdicts if not verdict.ok] == []
    assert {verdict.item for verdict in report.verdicts} == {*ITEMS}


def skips_a_tied_gradient(state: State, op: Op, position: Position) -> None:
    """The last stage's part of it."""
    if isinstance(op, SumTies) and state[Run].coordinate(MeshDim.PP) == 1:
        gradient = state[nn.Module].get_parameter("lm_head.weight").grad
        assert gradient is not None
        gradient.zero_()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_weight_of_two_stages_is_verified(is_wrong: bool) -> None:
    found = check_source(SourceFile("x.plan", PLAN.replace("tiny-llama", "tiny-llama-tied")), base=PLANS)
    assert found.bound is not None and found.graph is not None, found.diagnostics
    fault = skips_a_tied_gradient if is_wrong else None
    report = verify(found.bound, found.graph, base=PLANS, before_op=fault)
    wrong = {verdict.item: verdict.detail for verdict in report.verdicts if not verdict.ok}
    assert {verdict.item for verdict in report.verdicts} == {*ITEMS}
    assert (Item.GRADIENTS in wrong) == is_wrong
    assert bool(wrong) == is_wrong
    if is_wrong:
        assert wrong[Item.GRADIENTS].startswith("model.embed_tokens.weight")


def test_each_end_has_a_frozen_weight_of_both(tmp_path: Path) -> None:
    """A copy each, which are two parameters of the plan and one of the model."""
    adapter = (
        'adapter {\n  kind = lora(rank = 2, alpha = 4)\n  "model.layers.*.self_attn.q_proj" -> adapted\n}\n'
    )
    text = PLAN.replace("tiny-llama", "tiny-llama-tied") + adapter
    found = check_source(SourceFile("x.plan", text), base=PLANS)
    assert found.bound is not None and found.graph is not None, found.diagnostics
    shrunk = shrink(found.bound, found.graph, base=PLANS, folder=tmp_path, dtype=DType.FLOAT32)
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= {*shrunk.graph.frozen}


@pytest.mark.slow
def test_a_wrong_gradient_of_the_last_stage_is_seen(plan: tuple[BoundPlan, Graph]) -> None:
    report = verify(*plan, base=PLANS, before_op=doubles_a_gradient_of_the_last_stage)
    wrong = {verdict.item: verdict.detail for verdict in report.verdicts if not verdict.ok}
    assert {Item.GRADIENTS, Item.GRAD_NORM} <= wrong.keys(), wrong
    assert wrong[Item.GRADIENTS].startswith("lm_head.weight")
