"""The search: what it proposes passes the check, and its scores are those of whole models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planc.api import check_source
from planc.devices.hardware import DEVICES, FITS
from planc.estimate.efficiency import efficiencies_of
from planc.estimate.estimate import estimate
from planc.estimate.expectation import expected_step
from planc.estimate.step_work import step_work
from planc.hub.user_dirs import cache_dir
from planc.inventory.known import KnownModels
from planc.source import SourceFile
from planc.tune.base import base_of, plan_text
from planc.tune.choice import Choice, Mesh, Recompute, Rules, Space, sharing_experts
from planc.tune.score import Scorer
from planc.tune.search import Search, reasons
from planc.tune.table import written_plan
from tests.plans import PLANS

H100 = DEVICES["h100"]
TINY = "launch-fsdp4.plan"


def search_of(
    name: str,
    *,
    gpus: int,
    tokens: int | None = None,
    more: str = "",
    gib: int = 0,
    edit: tuple[str, str] = ("", ""),
) -> Search:
    """A search of a plan that ships, on devices of 80 GB or of another size."""
    text = (PLANS / name).read_text(encoding="utf-8").partition("expect {")[0].replace(*edit) + more
    checked = check_source(SourceFile(name, text), base=PLANS)
    assert checked.bound is not None, checked.diagnostics
    device = replace(H100, memory_bytes=gib * 2**30) if gib else H100
    base = base_of(checked.bound, tokens=tokens)
    inventory = checked.bound.model
    models = KnownModels(PLANS, cache_dir(), found={checked.bound.plan.model.hf: inventory})
    node = min(8, gpus)
    return Search(base, models, PLANS, Scorer(base, inventory, device, node), device, node, gpus)


def test_what_is_proposed_passes_the_check_and_fits_and_is_in_order() -> None:
    search = search_of(TINY, gpus=8)
    found = search.proposals()
    assert len(found) == 10
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    for one in found:
        assert one.checked.ok and one.checked.graph is not None
        assert one.checked.graph.world_size == 8
        assert one.found.memory.peak.num_bytes <= FITS * H100.memory_bytes


@pytest.mark.slow
def test_of_plans_that_tie_the_mesh_with_the_fewest_dims_is_first() -> None:
    search = search_of("qwen3-8b.plan", gpus=16)
    fastest = search.proposals()[0]
    assert len(fastest.choice.mesh.sizes) > 1
    search = search_of("qwen3-8b.plan", gpus=16)
    search.tie = 0.5
    first = search.proposals()[0]
    assert len(first.choice.mesh.sizes) == 1
    assert first.seconds <= 1.5 * fastest.seconds


def test_a_written_plan_is_sound_and_means_what_was_proposed() -> None:
    search = search_of(TINY, gpus=2)
    one = search.proposals()[1]
    text = written_plan(one, search)
    assert text.startswith("# Found by planc tune for 2 devices (h100): ")
    again = check_source(SourceFile("tuned.plan", text), base=PLANS)
    assert again.ok and again.graph is not None and one.checked.graph is not None
    assert [type(op) for op in again.graph.ops()] == [type(op) for op in one.checked.graph.ops()]
    assert again.graph.mesh == one.checked.graph.mesh


CHOICES = (
    Choice(Mesh(1, 8, 1, 1, Rules.NONE), 1, Recompute.NONE, reshard=True, rotate=""),
    Choice(Mesh(2, 4, 1, 1, Rules.NONE), 2, Recompute.FULL, reshard=False, rotate=""),
    Choice(Mesh(1, 4, 2, 1, Rules.NONE), 1, Recompute.SELECTIVE, reshard=True, rotate="ring"),
    Choice(Mesh(1, 4, 1, 2, Rules.SEQUENCE), 4, Recompute.NONE, reshard=True, rotate="", in_chunks=True),
    Choice(Mesh(1, 8, 1, 1, Rules.NONE), 2, Recompute.SELECTIVE, reshard=True, rotate="", is_compiled=True),
    Choice(Mesh(1, 8, 1, 1, Rules.NONE), 2, Recompute.OFFLOAD, reshard=True, rotate=""),
)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("choice", CHOICES, ids=lambda one: f"{one.mesh.text}, {one.text}")
def test_a_score_from_few_layers_is_that_of_the_model(choice: Choice) -> None:
    """32 layers from three and four."""
    require_score_of_whole(search_of("llama-3.1-8b-8-gpus.plan", gpus=8), choice)


_PROJECTIONS = '"model.layers.*.self_attn.{q,k,v,o}_proj" -> adapted'


@pytest.mark.parametrize(
    ("block", "state_bytes"),
    [
        (f"adapter {{\n  kind = lora(rank = 16, alpha = 32)\n  {_PROJECTIONS}\n}}\n", 4.0136),
        (f"adapter {{\n  kind = lora(rank = 16, alpha = 32)\n  base = nf4\n  {_PROJECTIONS}\n}}\n", 0.9768),
        ('freeze {\n  "model.layers.{0..15}" -> frozen\n}\n', 8.5234),
    ],
    ids=["adapters", "adapters of quantized layers", "half of the layers"],
)
def test_a_plan_that_trains_a_part_is_searched_by_the_states_of_that_part(
    block: str, state_bytes: float
) -> None:
    """The checks of sizes of tp once met adapters that were attached twice."""
    search = search_of("llama-3.1-8b-8-gpus.plan", gpus=8, more=block)
    assert search.base.state_bytes == pytest.approx(state_bytes, abs=1e-4)
    assert Rules.AUTO in search.space().rules[2], search.refused_rules
    require_score_of_whole(search, CHOICES[0])


def require_score_of_whole(search: Search, choice: Choice) -> None:
    """The score is within 1 % of the estimate of the choice's plan."""
    text = plan_text(search.base, choice, devices_per_node=8)
    checked = check_source(SourceFile("whole.plan", text), base=PLANS, models=search.models)
    assert checked.draft is not None
    graph = checked.draft.graph
    assert checked.inventory is not None, checked.diagnostics
    found = estimate(graph, checked.inventory)
    step = step_work(graph, checked.inventory, found)
    search.space()
    score = search.score(choice)
    assert score.peak_bytes == pytest.approx(found.memory.peak.num_bytes, rel=0.01)
    exact = expected_step(step, H100, efficiencies_of("h100")).step_seconds
    assert score.seconds == pytest.approx(exact, rel=0.01)


def test_experts_are_tried_over_the_sizes_that_divide_them_and_the_ranks() -> None:
    """128 experts; what is written is sound, also next to a mesh that a plan's own experts would not fit."""
    search = search_of("qwen3-30b-a3b-experts.plan", gpus=16)
    choice = Choice(Mesh(1, 16, 1, 1, Rules.NONE), 1, Recompute.FULL, reshard=True, rotate="")
    wide = replace(choice, mesh=replace(choice.mesh, dp_shard=24))
    assert [other.ep for other in sharing_experts(wide, search.scorer.inventory)] == [2, 4, 8]
    assert "expert_parallel" not in search.text(choice)
    text = search.text(replace(choice, ep=8))
    assert "expert_parallel on dp_shard {\n  size = 8\n  auto\n}" in text
    checked = check_source(SourceFile("x.plan", text), base=PLANS)
    assert checked.graph is not None and checked.graph.experts is not None
    assert checked.graph.experts.size == 8
    long = replace(choice, mesh=replace(choice.mesh, dp_shard=4, cp=4), ep=16, rotate="ring")
    assert "expert_parallel on dp_shard, cp {\n  size = 16\n  auto\n}" in search.text(long)
    sharded = replace(choice, mesh=Mesh(1, 8, 1, 2, Rules.SEQUENCE))
    over_tp = [one for one in search._sharing_experts(sharded) if one.mesh.rules is Rules.EXPERTS]
    assert [one.ep for one in over_tp] == [2, 4, 8, 16]
    for one in (over_tp[-1], replace(over_tp[0], mesh=Mesh(8, 1, 1, 2, Rules.EXPERTS))):
        text = search.text(one)
        assert f"expert_parallel on dp_shard, tp {{\n  size = {one.ep}\n  auto\n}}" in text
        checked = check_source(SourceFile("x.plan", text), base=PLANS)
        # Only one of them leaves room.
        assert {found.code.code for found in checked.diagnostics} == (
            set() if one is over_tp[-1] else {"P810"}
        )
    assert not [*sharing_experts(choice, search_of("qwen3-8b.plan", gpus=16).scorer.inventory)]
    capped = search_of(
        "qwen3-30b-a3b-experts.plan", gpus=16, edit=("  size = 8\n", "  size = 8\n  capacity = 1.25\n")
    )
    # What is dropped is the plan's own choice, on any number of ranks.
    assert "  size = 1\n  capacity = 1.25\n  auto\n" in capped.text(choice)
    assert "  size = 4\n  capacity = 1.25\n  auto\n" in capped.text(replace(choice, ep=4))


@pytest.mark.slow
def test_plans_with_experts_over_ranks_are_proposed() -> None:
    proposals = search_of("qwen3-30b-a3b.plan", gpus=16).proposals()
    shared = [proposal for proposal in proposals if proposal.choice.ep > 1]
    assert shared and all(proposal.checked.ok for proposal in shared)


@pytest.mark.slow
def test_plans_with_experts_over_ranks_of_tp_are_proposed() -> None:
    """Where there is sequence parallelism: this plan has no rules, and here no mesh without tp."""
    more = "expect {\n  dp_size == 8\n}\n"
    proposals = search_of("qwen3-30b-a3b-experts.plan", gpus=16, more=more).proposals()
    over_tp = [proposal for proposal in proposals if proposal.choice.mesh.rules is Rules.EXPERTS]
    assert over_tp and all(proposal.checked.ok for proposal in over_tp)


def test_rules_that_the_plan_has_stay() -> None:
    rules = search_of("llama-3.1-8b-64-gpus.plan", gpus=16).space().rules
    assert {rules[tp] for tp in rules if tp > 1} == {(Rules.GIVEN,)}


def test_a_size_of_tp_that_the_checks_refuse_is_named_with_its_code() -> None:
    """The small Llama has four key-value heads."""
    search = search_of(TINY, gpus=8)
    assert 8 not in search.space().rules and 4 in search.space().rules
    assert reasons(search)["tp 8, the plan's rules"].startswith("P40")


def test_an_expectation_that_no_plan_meets_leaves_none() -> None:
    search = search_of(TINY, gpus=8, more="expect {\n  world_size == 4\n}\n")
    assert search.proposals() == ()
    assert set(search.notes.values()) == {"world_size would be 8, which breaks `expect`"}


@pytest.mark.slow
def test_less_memory_is_used_where_there_is_less() -> None:
    ample, scarce = (
        search_of("llama-3.1-8b-8-gpus.plan", gpus=8, gib=gib).scored()[0].choice for gib in (300, 30)
    )
    assert ample.recompute is Recompute.NONE
    assert scarce.recompute is not Recompute.NONE or scarce.in_chunks


@pytest.mark.slow
def test_inputs_in_host_memory_are_weighed_against_recomputation() -> None:
    search = search_of("llama-3.1-8b-8-gpus.plan", gpus=8, gib=60)
    found = {one.choice: one for one in search.scored()}
    moved = [one for one in found if one.recompute is Recompute.OFFLOAD and not one.is_compiled]
    pairs = [(one, replace(one, recompute=Recompute.FULL)) for one in moved]
    assert any(full in found for _, full in pairs)
    for one, full in pairs:
        assert 'activation_checkpoint {\n  "model.layers.*" -> offload\n}\n' in search.text(one)
        if full in found:
            assert found[one].score.peak_bytes < found[full].score.peak_bytes
            assert found[one].seconds >= found[full].seconds


@pytest.mark.slow
def test_inputs_stay_on_a_device_whose_link_to_the_host_is_unknown() -> None:
    search = search_of(TINY, gpus=2)
    assert {*search.space().recompute} == {*Recompute}
    search = search_of(TINY, gpus=2)
    search.device = replace(search.device, host_bandwidth=None)
    assert {*search.space().recompute} == {*Recompute} - {Recompute.OFFLOAD}
    assert Recompute.OFFLOAD not in {one.choice.recompute for one in search.scored()}


@pytest.mark.slow
def test_the_best_plans_are_tried_compiled_where_that_is_legal() -> None:
    search = search_of("llama-3.1-8b-8-gpus.plan", gpus=8)
    scored = search.scored()
    compiled = {one.choice for one in scored if one.choice.is_compiled}
    assert scored[0].choice in compiled
    assert {one.rotate for one in compiled} >= {"", "allgather"}
    assert "ring" not in {one.rotate for one in compiled}
    assert reasons(search)["compile, ring"].startswith("P806")
    for one in compiled:
        assert 'compile {\n  "model.layers.*" -> region\n}\n' in search.text(one)


@pytest.mark.slow
def test_a_model_with_a_layer_without_attention_is_not_compiled() -> None:
    """Code in its place may loop over tokens, which a compiler unrolls."""
    search = search_of(TINY, gpus=2)
    assert any(one.choice.is_compiled for one in search.scored())
    search = search_of(TINY, gpus=2)
    inventory = search.scorer.inventory
    search.scorer.inventory = replace(inventory, attentions=inventory.attentions[1:])
    assert not any(one.choice.is_compiled for one in search.scored())
    assert reasons(search)["compile"].startswith("`model.layers.0` has no attention")


def test_what_a_plan_compiles_stays() -> None:
    own = 'compile {\n  backend = aot_eager\n  "model.layers.0" -> region\n}\n'
    search = search_of(TINY, gpus=2, more=own)
    found = search.proposals()
    assert found and not any(one.choice.is_compiled for one in found)
    assert all(one.text.count("compile {") == one.text.count("aot_eager") == 1 for one in found)


@pytest.mark.slow
def test_a_step_of_one_micro_batch_is_tried_though_smaller_ones_do_not_fit() -> None:
    """Between micro steps FSDP keeps whole gradients: 32 GB of an 8B model in float32."""
    search = search_of("llama-3.1-8b-8-gpus.plan", gpus=8, tokens=131_072, gib=60)
    sizes = {one.choice.micro_batch for one in search.scored() if one.choice.mesh.dp_shard == 8}
    assert sizes == {2}


@pytest.mark.slow
def test_of_plans_that_are_as_fast_the_one_with_the_fewest_micro_steps_is_first() -> None:
    """Whole replicas send as much with any micro batch, and large ones keep a device busy with any."""
    found = search_of("llama-3.2-1b.plan", gpus=2).scored()
    alike = [
        one
        for one in found
        if one.choice.mesh.text == "dp_replicate 2"
        # Chunks take the time of their sums.
        and not (one.choice.is_compiled or one.choice.in_chunks)
    ]
    sizes = [one.choice.micro_batch for one in alike if one.choice.recompute is Recompute.NONE]
    assert len({one.seconds for one in alike if one.choice.recompute is Recompute.NONE}) == 1
    assert len(set(sizes)) > 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_score_does_not_depend_on_what_was_scored_before() -> None:
    """Whole replicas need no `fsdp` block, and replicas of shards do."""
    sharded, whole = (
        Choice(Mesh(replicas, shards, 1, 1, Rules.NONE), 1, Recompute.NONE, reshard=True, rotate="")
        for replicas, shards in ((2, 2), (4, 1))
    )
    search = search_of(TINY, gpus=4)
    for first, second in ((sharded, whole), (whole, sharded)):
        used = replace(search, scorer=replace(search.scorer, _bound={}))
        used.score(first)
        fresh = replace(search, scorer=replace(search.scorer, _bound={}))
        assert used.score(second) == fresh.score(second)


def test_a_mesh_is_left_out_only_where_the_states_of_its_own_optimizer_do_not_fit() -> None:
    """SGD keeps nothing of a parameter, and AdamW two moments."""
    sgd = search_of(TINY, gpus=4, more="optimizer {\n  override kind = sgd(lr = 1e-3)\n}\n")
    assert search_of(TINY, gpus=4).base.state_bytes == 3 * sgd.base.state_bytes == 12


@pytest.mark.slow
def test_a_mesh_of_a_proposal_is_not_among_those_that_are_left_out() -> None:
    search = search_of(TINY, gpus=8, gib=1)
    found = search.proposals()
    assert found and not {one.choice.mesh for one in found} & search.notes.keys()


def test_replicas_that_compute_in_the_models_dtype_are_written_without_fsdp() -> None:
    choice = Choice(Mesh(2, 1, 1, 1, Rules.NONE), 1, Recompute.NONE, reshard=True, rotate="")
    for name, has_dtypes in ((TINY, False), ("llama-3.1-8b.plan", True)):
        base = search_of(name, gpus=2).base
        assert bool(base.dtypes) is has_dtypes
        assert ("fsdp on" in plan_text(base, choice, devices_per_node=2)) is has_dtypes


def test_pairs_stay_together_on_every_mesh_that_is_tried() -> None:
    """Checks of a size of tp with one sequence refused every one, as pairs are two."""
    of_pairs = """
data {
  override source = pairs("rows.jsonl", template = none)
  override packing = none
}
train {
  loss = dpo(beta = 0.1)
}
"""
    search = search_of(TINY, gpus=4, tokens=64 * 256, more=of_pairs)
    proposals = search.proposals()
    assert proposals, search.refused_rules
    assert all(proposal.choice.micro_batch % 2 == 0 for proposal in proposals)
    assert search.space().rules[2] == (Rules.GIVEN,)


def test_a_group_of_pairs_may_be_larger_than_other_micro_batches() -> None:
    space = Space(2, 2, 128, 160, 128 * 640, {1: (Rules.NONE,)}, ())
    assert space.micro_batches(Mesh(1, 2, 1, 1, Rules.NONE)) == (160,)


def test_meshes_multiply_to_the_devices_and_close_the_batch() -> None:
    rules = {1: (Rules.NONE,), 2: (Rules.AUTO,)}
    space = Space(16, 8, 8192, 1, 8192 * 24, rules, ("ring",))
    meshes = [*space.meshes()]
    assert {one.dp_replicate * one.dp_shard * one.cp * one.tp for one in meshes} == {16}
    assert all(24 % (one.dp_replicate * one.dp_shard) == 0 for one in meshes)
    assert {(one.cp, one.tp) for one in meshes} == {(2, 1), (1, 2), (2, 2)}


def test_replicas_may_be_whole_and_sequences_stay_long() -> None:
    space = Space(8, 8, 4096, 1, 4096 * 64, {1: (Rules.NONE,)}, ("ring",))
    assert {(one.dp_replicate, one.dp_shard, one.cp) for one in space.meshes()} == {
        (1, 8, 1),
        (2, 4, 1),
        (4, 2, 1),
        (8, 1, 1),
    }
