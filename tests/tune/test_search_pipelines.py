"""Pipelines of a search: proposed where they are faster, explained, and never of a model without stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planc.api import check_source
from planc.devices.hardware import DEVICES, FITS
from planc.estimate.efficiency import efficiencies_of
from planc.estimate.estimate import estimate
from planc.estimate.expectation import expected_step
from planc.estimate.step_work import step_work
from planc.source import SourceFile
from planc.tune.base import plan_text
from planc.tune.choice import Choice, Mesh, Recompute, Rules
from planc.tune.search import Search, reasons
from planc.tune.table import written_plan
from planc.vocab import MeshDim
from tests.plans import PLANS
from tests.tune.test_search import TINY, search_of

_SLOW_NETWORK = 10**8
"""Bytes a second, with which FSDP over nodes costs more than stages."""


def search_of_slow_nodes(name: str, *, gpus: int, tokens: int) -> Search:
    """A search on nodes of one device each, with a slow network between them."""
    search = search_of(name, gpus=gpus, tokens=tokens)
    search.node = search.scorer.node = 1
    search.device = search.scorer.device = replace(DEVICES["h100"], nic_bandwidth=_SLOW_NETWORK)
    return search


@pytest.mark.slow
def test_a_pipeline_is_first_where_stages_send_less_than_fsdp() -> None:
    search = search_of_slow_nodes("llama-3.1-8b-8-gpus.plan", gpus=8, tokens=131_072)
    first = search.proposals()[0]
    assert first.choice.mesh.pp > 1
    assert first.checked.ok and first.checked.graph is not None
    assert first.checked.graph.size(MeshDim.PP) == first.choice.mesh.pp
    assert first.found.memory.peak.num_bytes <= FITS * DEVICES["h100"].memory_bytes
    text = written_plan(first, search)
    assert f"schedule = {first.choice.schedule}" in text and "wait for others" in text
    assert check_source(SourceFile("tuned.plan", text), base=PLANS).ok


@pytest.mark.slow
def test_a_schedule_that_defers_gradients_is_tried_where_there_is_memory_for_it() -> None:
    search = search_of_slow_nodes("llama-3.1-8b-8-gpus.plan", gpus=8, tokens=131_072)
    search.device = search.scorer.device = replace(search.device, memory_bytes=200 * 2**30)
    first = search.scored()[0]
    assert first.choice.schedule == "zero_bubble" and not first.choice.is_compiled
    checked = check_source(SourceFile("tuned.plan", search.text(first.choice)), base=PLANS)
    assert checked.ok, checked.diagnostics


PIPELINES = (
    Choice(Mesh(1, 4, 1, 1, Rules.NONE, pp=2), 1, Recompute.NONE, reshard=False, rotate=""),
    Choice(Mesh(1, 2, 1, 2, Rules.SEQUENCE, pp=2), 1, Recompute.FULL, reshard=True, rotate=""),
    Choice(
        Mesh(1, 1, 1, 1, Rules.NONE, pp=8),
        1,
        Recompute.SELECTIVE,
        reshard=False,
        rotate="",
        stages_per_rank=2,
    ),
    Choice(
        Mesh(1, 4, 1, 1, Rules.NONE, pp=2),
        1,
        Recompute.NONE,
        reshard=False,
        rotate="",
        is_zero_bubble=True,
    ),
)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("choice", PIPELINES, ids=lambda one: f"{one.mesh.text}, {one.text}")
def test_the_score_of_a_pipeline_is_that_of_its_plan(choice: Choice) -> None:
    search = search_of("llama-3.1-8b-8-gpus.plan", gpus=8)
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
    exact = expected_step(step, DEVICES["h100"], efficiencies_of("h100")).step_seconds
    assert score.seconds == pytest.approx(exact, rel=0.01)


def test_a_stage_that_trains_nothing_has_a_score_and_no_backward() -> None:
    """The checks refuse it (P330), after the search has scored it."""
    frozen = 'freeze {\n  "model.embed_tokens" -> frozen\n  "model.layers.{0..1}" -> frozen\n}\n'
    search = search_of("launch-fsdp4.plan", gpus=2, more=frozen)
    choice = Choice(Mesh(1, 1, 1, 1, Rules.NONE, pp=2), 1, Recompute.NONE, reshard=False, rotate="")
    assert search.score(choice).peak_bytes > 0


def test_a_model_that_checks_refuse_in_stages_has_no_pipeline() -> None:
    other = 'model {\n  override hf = "models/tiny-codegen"\n}\n'
    search = search_of("launch-one-process.plan", gpus=4, more=other)
    assert all(one.choice.mesh.pp == 1 for one in search.proposals())
    assert reasons(search)["pp"].startswith("P320")


def test_every_size_of_pp_that_is_not_proposed_is_explained() -> None:
    search = search_of(TINY, gpus=8)
    proposed = {one.choice.mesh.pp for one in search.proposals()}
    explained = {name for name in reasons(search) if name.startswith("pp ") and "," not in name}
    assert {f"pp {size}" for size in (2, 4) if size not in proposed} <= explained
