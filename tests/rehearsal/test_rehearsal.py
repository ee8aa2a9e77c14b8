"""A graph in a fake world: what fails is found, and a short stack's figures are those of the whole model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_source
from planc.deep_check.check import check_deep, counted_collectives, predicted_collectives
from planc.estimate.estimate import estimate
from planc.graph.graph import Graph
from planc.graph.ops import OPS, Accumulate, AllReduceGradients, BuildModel, ShardTensorParallel
from planc.inventory.load import load_inventory, save_inventory
from planc.runtime.rehearsal.backend import RehearsalBackend
from planc.runtime.rehearsal.findings import Measured
from planc.runtime.rehearsal.measure import fake_world, measure
from planc.runtime.rehearsal.played import PASSED_OVER
from planc.runtime.rehearsal.rehearse import rehearse
from planc.runtime.rehearsal.stack import Stack, rehearsed_stack
from planc.runtime.torch.weights.build import meta_model
from planc.source import SourceFile
from planc.styles import BY_NAME
from planc.styles.style import edges
from planc.vocab import MeshDim, Replicate
from tests.parity.cases import ALL_8, CP2_DP2, MODELS, TP2_DP2, TP2_REPLICATE2, Case, compile_case, plan_text
from tests.slow import slow_except

DEEP = "llama-seven-layers"
NUM_LAYERS = 7


@pytest.fixture(scope="module")
def deep_workspace(workspace: Path) -> Path:
    """The workspace with a model of more layers than a rehearsal runs."""
    folder = workspace / DEEP
    folder.mkdir()
    config = {**MODELS["llama"], "num_hidden_layers": NUM_LAYERS}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_inventory(folder)
    return workspace


def compile_text(text: str, *, workspace: Path) -> Graph:
    checked = check_source(SourceFile("rehearsed.plan", text), base=workspace)
    assert checked.graph is not None, checked.diagnostics
    return checked.graph


def short_and_whole(graph: Graph, *, base: Path) -> tuple[Stack, Measured, Measured]:
    """Rank 0 measured on a short stack, and with every layer."""
    stack = full_stack(graph, base=base)
    return stack, measure(graph, stack, base=base), measure(graph, Stack(()), base=base)


def full_stack(graph: Graph, *, base: Path) -> Stack:
    (build,) = (op for op in graph.setup if isinstance(op, BuildModel))
    return rehearsed_stack(meta_model(build, base=base), graph)


def assert_same_figures(short: Measured, whole: Measured) -> None:
    assert sorted(map(str, short.sent)) == sorted(map(str, whole.sent))
    assert short.peak.num_bytes == whole.peak.num_bytes
    assert short.reserved_bytes == whole.reserved_bytes


def test_every_op_has_a_handler() -> None:
    assert {*RehearsalBackend.handlers, *PASSED_OVER} == set(OPS) - {Accumulate}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("DP2·CP2·TP2", "", ALL_8, model=DEEP), marks=pytest.mark.slow),
        Case("TP2·DP2", "recompute, accumulate", TP2_DP2, model=DEEP, recomputes=True, micro_batch=1),
    ],
    ids=lambda case: case.name,
)
def test_a_short_stack_gives_the_figures_of_the_whole(case: Case, deep_workspace: Path) -> None:
    graph = compile_case(case, workspace=deep_workspace)
    stack, short, whole = short_and_whole(graph, base=deep_workspace)
    assert [len(kind.kept) for kind in stack.kinds] == [4]
    assert_same_figures(short, whole)


@pytest.mark.slow
def test_a_message_that_holds_some_of_every_layer_is_as_long_as_on_the_whole(deep_workspace: Path) -> None:
    """Gradients of norms travel over tp in one. The simulated allocator knows the length of the short one."""
    case = Case("TP2·DP2", "whole replicas", TP2_REPLICATE2, model=DEEP, replicas="whole")
    graph = with_small_buckets(compile_case(case, workspace=deep_workspace))
    stack, short, whole = short_and_whole(graph, base=deep_workspace)
    assert [len(kind.kept) for kind in stack.kinds] == [4]
    assert sorted(map(str, short.sent)) == sorted(map(str, whole.sent))
    assert {one.op for one in whole.sent} >= {"grads.sync", "backward"}
    assert short.peak.num_bytes == whole.peak.num_bytes
    assert short.reserved_bytes == pytest.approx(whole.reserved_bytes, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", slow_except(["fused", "foreach", "for_loop"], "foreach"))
def test_gradients_of_every_layer_are_there_when_the_optimizer_steps(
    implementation: str, deep_workspace: Path
) -> None:
    """Summed, they are in messages, one for each layer."""
    settings = (f"optimizer.kind=adamw(lr = 1e-3, implementation = {implementation})",)
    case = Case("DP2", "", {"dp_replicate": 2}, model=DEEP, replicas="whole", settings=settings)
    graph = with_small_buckets(compile_case(case, workspace=deep_workspace))
    stack, short, whole = short_and_whole(graph, base=deep_workspace)
    assert [len(kind.kept) for kind in stack.kinds] == [4]
    assert_same_figures(short, whole)
    (stepping,) = (dict(one.parts) for one in short.segments if one.segment == "optimizer.step")
    assert stepping["gradients"] == pytest.approx(stepping["parameters"], rel=0.01)
    assert short.reserved_bytes >= short.held_bytes


def with_small_buckets(graph: Graph) -> Graph:
    """The graph whose layers each fill a bucket, as those of most models do."""
    step = (replace(op, bucket_bytes=1) if isinstance(op, AllReduceGradients) else op for op in graph.step)
    return replace(graph, step=tuple(step))


def test_layers_that_share_a_bucket_run_whole(deep_workspace: Path) -> None:
    case = Case("DP2", "", {"dp_replicate": 2}, model=DEEP, replicas="whole")
    graph = compile_case(case, workspace=deep_workspace)
    (layers,) = full_stack(with_small_buckets(graph), base=deep_workspace).kinds
    assert len(layers.left_out) == NUM_LAYERS - 4
    assert full_stack(graph, base=deep_workspace).kinds == ()


@pytest.mark.slow
def test_messages_of_single_layers_stay_apart_from_one_that_grows(deep_workspace: Path) -> None:
    """The root holds the norms of every layer; attentions and MLPs are reduced for themselves."""
    text = plan_text(Case("DP2", "", {"dp_shard": 2}, model=DEEP))
    unit = '"model.layers.*.mlp" -> unit\n  "model.layers.*.self_attn" -> unit'
    graph = compile_text(text.replace('"model.layers.*" -> unit', unit), workspace=deep_workspace)
    _, short, whole = short_and_whole(graph, base=deep_workspace)
    assert sorted(map(str, short.sent)) == sorted(map(str, whole.sent))
    assert any(one.count >= NUM_LAYERS for one in whole.sent)


@pytest.mark.slow
def test_layers_that_are_treated_unlike_are_kinds_of_their_own(deep_workspace: Path) -> None:
    text = plan_text(Case("TP2·DP2", "", TP2_DP2, model=DEEP))
    text += 'activation_checkpoint {\n  "model.layers.{0..3}" -> full\n}\n'
    stack, short, whole = short_and_whole(compile_text(text, workspace=deep_workspace), base=deep_workspace)
    assert [len(kind.layers) for kind in stack.kinds] == [4, 3]
    assert_same_figures(short, whole)


@pytest.mark.slow
def test_units_of_several_layers_run_whole(deep_workspace: Path) -> None:
    text = plan_text(Case("DP4", "", {"dp_shard": 4}, model=DEEP))
    unit = '["model.layers.0", "model.layers.1"] -> unit\n  "model.layers.{2..6}" -> unit'
    graph = compile_text(text.replace('"model.layers.*" -> unit', unit), workspace=deep_workspace)
    stack, short, whole = short_and_whole(graph, base=deep_workspace)
    assert stack.kinds == ()
    assert short == whole


@pytest.mark.slow
def test_collectives_of_a_world_too_large_to_start_are_those_estimated(deep_workspace: Path) -> None:
    mesh = {"dp_replicate": 2, "dp_shard": 16, "cp": 2, "tp": 4}
    case = Case("large", "", mesh, model=DEEP, micro_batch=1, settings=("train.tokens_per_step=8192",))
    graph = compile_case(case, workspace=deep_workspace)
    rehearsal = rehearse(graph, base=deep_workspace)
    inventory = load_inventory(deep_workspace / DEEP, cache_dir=deep_workspace).inventory
    assert rehearsal.failures == ()
    assert rehearsal.measured is not None
    assert counted_collectives(rehearsal.measured) == predicted_collectives(estimate(graph, inventory))


def test_what_would_fail_is_found_at_its_line(workspace: Path) -> None:
    """Rules see this one before; the graph is broken behind their back."""
    graph = compile_case(Case("TP2·DP2", "", TP2_DP2), workspace=workspace)
    broken = tuple(
        replace(op, edges=edges(BY_NAME["colwise"], replace(op.use, output=Replicate()), is_prepared=False))
        if isinstance(op, ShardTensorParallel) and op.modules[0].endswith("k_proj")
        else op
        for op in graph.setup
    )
    rehearsal = rehearse(replace(graph, setup=broken), base=workspace)
    assert rehearsal.measured is None
    assert {failure.rank for failure in rehearsal.failures} == {0, 3}
    first = rehearsal.failures[0]
    assert "in op `forward` (step 1, rank 0 (dp_shard 0, tp 0))" in first.message
    assert first.span is not None and first.span.file == "parity.plan"


def test_ranks_with_uneven_shards_are_rehearsed(workspace: Path) -> None:
    """257 rows over 8 ranks: the last has 26 where the others have 33."""
    case = Case("DP8", "", {"dp_shard": 8}, model="llama-uneven")
    rehearsal = rehearse(compile_case(case, workspace=workspace), base=workspace)
    assert rehearsal.failures == ()
    assert rehearsal.ranks == (0, 7)


def test_a_second_rehearsal_comes_from_the_cache(workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(Case("CP2·DP2", "", CP2_DP2), workspace=workspace)
    inventory = load_inventory(workspace / "llama", cache_dir=workspace).inventory
    nowhere = SourceFile("parity.plan", "").start()

    def deep() -> object:
        return check_deep(
            graph, base=workspace, estimate=estimate(graph, inventory), cache_dir=tmp_path, nowhere=nowhere
        )

    first, second = deep(), deep()
    assert not first.is_cached and second.is_cached
    assert second.rehearsal == first.rehearsal
    assert first.diagnostics == second.diagnostics == ()


def test_a_process_with_a_group_refuses_to_rehearse() -> None:
    with (
        fake_world(0, world_size=4),
        pytest.raises(ValueError, match="a process of its own"),
        fake_world(1, world_size=4),
    ):
        pass


def test_ring_shards_send_over_cp_alone(workspace: Path) -> None:
    graph = compile_case(Case("CP4", "", {"cp": 4}), workspace=workspace)
    measured = rehearse(graph, base=workspace).measured
    assert measured is not None
    assert {one.over for one in measured.sent if one.kind == "all_to_all"} == {(MeshDim.CP,)}
