"""Formulas on sizes that a person can follow, and the names that `expect` uses."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import Checked, check_plan, check_source
from planc.devices.hardware import DEVICES
from planc.estimate.estimate import estimate, estimated_facts
from planc.estimate.gaps import gaps
from planc.estimate.layout import layouts
from planc.estimate.loss import loss
from planc.estimate.rank_work import rank_work
from planc.estimate.result import Collective, Estimate, Kind
from planc.estimate.units import units
from planc.graph.ops import AllReduceGradients
from planc.plan.facts import COUNTS, ESTIMATED
from planc.source import SourceFile
from planc.vocab import MeshDim
from tests.plans import FULL, PLANS, canonical_plans

BROKEN = sorted((Path(__file__).parents[1] / "ui").glob("*.plan"))
LLAMA_8B = PLANS / "llama-3.1-8b.plan"


def checked(text: str, *settings: str) -> Checked:
    sources = [SourceFile(f"--set[{number}]", setting) for number, setting in enumerate(settings)]
    return check_source(SourceFile("x.plan", text), base=PLANS, settings=sources)


def estimated(text: str, *settings: str) -> Estimate:
    found = checked(text, *settings)
    assert found.graph is not None and found.inventory is not None, found.diagnostics
    return estimate(found.graph, found.inventory)


def without_expectations(text: str) -> str:
    return re.sub(r"expect \{.*?\n\}", "", text, flags=re.DOTALL)


BARE = without_expectations(FULL)


def full_with(expectation: str) -> str:
    return FULL.replace("world_size == 4", expectation)


def test_what_is_offloaded_is_the_hosts_and_no_part_of_the_peak() -> None:
    kept, offloaded = (estimated(BARE, f"fsdp.cpu_offload={word}") for word in ("false", "true"))
    names = ("parameters", "gradients", "optimizer")
    assert kept.memory.host_bytes == 0
    assert offloaded.memory.host_bytes == sum(offloaded.memory.part(name).num_bytes for name in names)
    assert {"parameters", "optimizer"}.isdisjoint(dict(offloaded.memory.peak_parts))
    assert offloaded.memory.peak.num_bytes < kept.memory.peak.num_bytes


def test_a_shard_is_brought_to_the_device_before_it_is_gathered() -> None:
    kept, offloaded = (estimated(BARE, f"fsdp.cpu_offload={word}") for word in ("false", "true"))
    pools = [one.memory.part("gathering pool").num_bytes for one in (kept, offloaded)]
    assert pools[1] > pools[0]


def test_units_that_are_gathered_ahead_add_to_the_pool() -> None:
    found = [estimated(BARE, f"fsdp.prefetch={number}") for number in (1, 2, 3, 16)]
    pools = [one.memory.part("gathering pool").num_bytes for one in found]
    assert pools[1] - pools[0] == pools[2] - pools[1] > 0
    assert pools[3] > pools[2]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (Kind.ALL_GATHER, 3 * 1000),
        (Kind.REDUCE_SCATTER, 750),
        (Kind.ALL_TO_ALL, 750),
        (Kind.ALL_REDUCE, 1500),
        (Kind.SEND, 1000),
    ],
)
def test_ring_algorithms_on_four_ranks(kind: Kind, sent: int) -> None:
    one = Collective((MeshDim.TP,), 4, kind, "tp.shard", count=2, input_bytes=1000)
    assert one.sent_bytes == 2 * sent


ONE_RANK = ("mesh.dp_shard=1", "mesh.tp=1", "fsdp.reduce_dtype=none")
SIZE = 804_992
"""Parameters of tiny-llama."""


@pytest.mark.parametrize(
    ("kind", "copies"),
    [("sgd(lr = 1e-2)", 0), ("sgd(lr = 1e-2, momentum = 0.9)", 1), ("adamw(lr = 1e-2)", 2)],
)
def test_an_optimizer_holds_what_it_keeps_for_each_parameter(kind: str, copies: int) -> None:
    found = estimated(BARE, f"optimizer.kind={kind}", *ONE_RANK).memory.part("optimizer")
    counters = 4 * 39 if kind.startswith("adamw") else 0
    assert found.num_bytes == 4 * copies * SIZE + counters


@pytest.mark.parametrize(
    ("kind", "num_bytes"),
    [
        ("adamw(lr = 1e-2)", 0),
        ("adamw(lr = 1e-2, implementation = foreach)", 4 * (SIZE - 9 * 128)),
        ("adamw(lr = 1e-2, implementation = for_loop)", 2 * 4 * 128 * 352),
        ("sgd(lr = 1e-2, nesterov = true, momentum = 0.9)", 0),
        ("sgd(lr = 1e-2, weight_decay = 0.1)", 4 * (SIZE - 9 * 128)),
    ],
)
def test_a_step_without_one_kernel_holds_copies_of_a_group_or_a_parameter(kind: str, num_bytes: int) -> None:
    """The norms, which do not decay, are a group of their own."""
    whole, found = (
        dict(estimated(BARE, f"optimizer.kind={one}", *ONE_RANK).memory.phases)["optimizer"]
        for one in ("adamw(lr = 1e-2)", kind)
    )
    assert found - whole == num_bytes


def test_a_layer_of_8b_keeps_49_hidden_states_in_two_bytes() -> None:
    """12 h + 2 x 2 h + 4 q + 4 k + 8 f, 4 bytes a head and a norm: h = q = 4096, k = h / 4, f = 3.5 h."""
    text = LLAMA_8B.read_text().replace('"model.layers.{0..30}" -> full', '"model.layers.{0..30}" -> none')
    small = (
        "mesh.dp_replicate=1",
        "mesh.dp_shard=1",
        "mesh.cp=1",
        "mesh.tp=1",
        "train.tokens_per_step=32768",
    )
    found = estimated(without_expectations(text), *small)
    tokens, hidden = 32768, 4096
    head = 8 * hidden + 4  # the last norm's 6 h and the head's input
    layer = 49 * hidden + 4 * 32 + 4 * 2
    assert found.memory.part("activations").num_bytes == tokens * (32 * layer + head)


def test_recomputed_layers_keep_their_input_alone() -> None:
    text = FULL.replace('"model.layers.*" -> none', '"model.layers.*" -> full')
    whole, again = estimated(FULL).memory, estimated(text).memory
    tokens, hidden, element = 4 * 256, 128, 4
    head = tokens // 2 * (hidden * (4 + element) + 4) + tokens * hidden * element
    inputs = 4 * tokens // 2 * hidden * element
    assert again.part("activations").num_bytes == inputs + head
    layer = (whole.part("activations").num_bytes - head) // 4
    assert again.part("recomputed").num_bytes == layer


def test_accumulation_keeps_whole_gradients_between_micro_steps() -> None:
    accumulating = estimated(FULL).memory.part("gradients between micro steps")
    once = estimated(BARE, "train.tokens_per_step=2048").memory.part("gradients between micro steps")
    of_a_tp_rank = 2 * 201_536 * 4
    assert (accumulating.num_bytes, once.num_bytes) == (of_a_tp_rank, 0)


@pytest.mark.parametrize(
    "setting",
    ["mesh.dp_shard=4", "data.micro_batch=8", "fsdp.param_dtype=bfloat16", "data.sequence_length=128"],
)
def test_each_setting_moves_the_peak(setting: str) -> None:
    text = BARE.replace("replicate_on = dp_replicate", "replicate_on = dp_replicate\n  param_dtype = float32")
    before = estimated(text, "train.tokens_per_step=8192")
    after = estimated(text, "train.tokens_per_step=8192", setting)
    assert after.memory.peak.num_bytes != before.memory.peak.num_bytes


def test_one_rank_sends_nothing() -> None:
    found = estimated(BARE, "mesh.dp_shard=1", "mesh.tp=1")
    assert found.collectives == ()
    assert found.sent_bytes() == 0


def test_gradients_of_replicas_travel_over_every_dim_that_the_op_names() -> None:
    found = check_plan(PLANS / "launch-dp4.plan")
    assert found.graph is not None and found.inventory is not None
    over, mesh = (MeshDim.DP_REPLICATE, MeshDim.CP), tuple((dim, 2) for dim in MeshDim)
    step = (replace(op, over=over) if isinstance(op, AllReduceGradients) else op for op in found.graph.step)
    graph = replace(found.graph, mesh=mesh, step=tuple(step))
    sent = [one for one in estimate(graph, found.inventory).collectives if one.cause == "grads.all_reduce"]
    local = sum(one.local_bytes for one in layouts(graph, found.inventory))
    for mesh_dim in over:
        messages = [one for one in sent if one.over == (mesh_dim,)]
        assert sum(one.count * one.input_bytes for one in messages) == local
        assert {one.group_size for one in messages} == {2}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_an_estimate_has_every_fact_that_expect_can_name(path: Path) -> None:
    found = check_plan(path)
    assert found.graph is not None and found.inventory is not None
    facts = estimated_facts(estimate(found.graph, found.inventory), device=DEVICES["h100"])
    assert set(facts) == set(ESTIMATED)
    assert facts["peak_memory"] > 16 * facts["parameters_per_rank"]


def test_only_the_counts_among_them_take_no_unit() -> None:
    assert set(ESTIMATED) & set(COUNTS) == {"parameters_per_rank", "flops_per_token"}


@pytest.mark.parametrize(
    ("expectation", "codes"),
    [
        ("peak_memory < 1 GiB", []),
        ("peak_memory < 1 MiB", ["P702"]),
        ("parameters_per_rank == 201_536", []),
        ("parameters_per_rank < 200_000", ["P702"]),
        ("tp_bytes_per_step < 1 KiB", ["P702"]),
        ("peak_memori < 1 GiB", ["P703"]),
    ],
)
def test_expectations_on_estimates(expectation: str, codes: list[str]) -> None:
    found = checked(full_with(expectation))
    assert [finding.code.code for finding in found.diagnostics] == codes


def test_a_broken_size_is_told_as_all_views_tell_it() -> None:
    (finding,) = checked(full_with("peak_memory < 1 MiB")).diagnostics
    assert re.fullmatch(r"peak_memory is \d+\.\d\d MiB \([\d_]+ B\)", finding.primary.text)


def test_an_unknown_fact_is_told_which_there_are() -> None:
    (finding,) = checked(full_with("peak_memori < 1 GiB")).diagnostics
    assert finding.help == "did you mean `peak_memory`?"
    assert "tp_bytes_per_step" in finding.notes[0]


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_plans_that_break_rules_are_estimated_all_the_same(path: Path) -> None:
    found = checked(path.read_text(encoding="utf-8"))
    if found.draft is not None:
        assert found.draft.estimate.memory.peak.num_bytes > 0


def test_the_peak_is_the_sum_of_its_parts() -> None:
    memory = estimated(FULL).memory
    assert sum(num_bytes for _, num_bytes in memory.peak_parts) == memory.peak.num_bytes
    assert {"parameters", "optimizer"} <= {name for name, _ in memory.peak_parts}


def gaps_of(*settings: str) -> dict[str, int]:
    """The gaps of the 8B plan on one mesh dim, one sample of 8192 tokens, by name."""
    text = without_expectations(LLAMA_8B.read_text())
    sizes = ("dp_replicate=1", "dp_shard=64", "cp=1", "tp=1")
    mesh = (*(f"mesh.{size}" for size in sizes), "data.sequence_length=8192", "train.tokens_per_step=524288")
    found = checked(text, *mesh, *settings)
    assert found.graph is not None and found.inventory is not None, found.diagnostics
    work = rank_work(found.graph, found.inventory)
    return {gap.name: gap.num_bytes for gap in gaps(work, units(work), loss(work))}


def test_gaps_are_what_forward_frees_under_the_loss() -> None:
    tokens, hidden, vocabulary, layer = 8192, 4096, 128_256, 218_112_000
    assert gaps_of() == {
        "last layer's parameters": 2 * layer,
        "last norm's squares": 4 * tokens * hidden,
        "narrow logits": 2 * tokens * vocabulary,
    }


def test_a_gap_that_holds_a_tensor_of_the_loss_is_none() -> None:
    """Of 512 tokens the loss's tensors are smaller than a layer's parameters in two bytes."""
    short = gaps_of("data.sequence_length=512", "train.tokens_per_step=32768")
    assert "last layer's parameters" not in short
    assert "last norm's squares" in short
