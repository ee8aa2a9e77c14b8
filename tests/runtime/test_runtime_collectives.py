"""How a rank's collectives differ from those predicted, as text, and when a run compares them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planc.cli.running.compiled import Compiled
from planc.cli.running.opening import count_first_step
from planc.estimate.at_intervals import predictions
from planc.runtime.collectives import Differences, describe, differences, differences_of
from tests.plans import PLANS, checked

PREDICTED = {("all_gather", ("dp_shard",), 64): 4, ("all_reduce", ("tp",), 8): 2}
SENT = {
    ("forward", "all_gather", ("dp_shard",), 64): 2,
    ("backward", "all_gather", ("dp_shard",), 64): 2,
    ("grads.clip", "all_reduce", ("tp",), 8): 2,
}


def test_equal_collectives_do_not_differ() -> None:
    assert describe([differences(rank, PREDICTED, SENT) for rank in range(3)]) == ""


def test_another_number_is_named_with_the_ops_that_sent_it() -> None:
    sent = {**SENT, ("backward", "all_gather", ("dp_shard",), 64): 3}
    assert describe([differences(0, PREDICTED, sent)]) == (
        "rank 0: all_gather over dp_shard of 64 bytes (4 predicted, 5 sent by forward, backward)"
    )


def test_another_group_is_one_too_few_and_one_too_many() -> None:
    sent = {**SENT, ("grads.clip", "all_reduce", ("tp",), 8): 1, ("log", "all_reduce", ("cp", "tp"), 8): 1}
    assert describe([differences(0, PREDICTED, sent)]) == (
        "rank 0: all_reduce over tp of 8 bytes (2 predicted, 1 sent by grads.clip), "
        "all_reduce over cp, tp of 8 bytes (0 predicted, 1 sent by log)"
    )


def test_smaller_shards_of_other_ranks_are_no_difference() -> None:
    sent = {(op, kind, over, num_bytes // 2): count for (op, kind, over, num_bytes), count in SENT.items()}
    assert describe([differences(3, PREDICTED, sent)]) == ""
    assert describe([differences(0, PREDICTED, sent)]).startswith(
        "rank 0: all_gather over dp_shard of 64 bytes (4 predicted, 0 sent)"
    )


def test_ranks_that_differ_alike_are_listed_together_with_rank_0s_bytes() -> None:
    sent = {key: count for key, count in SENT.items() if key[0] != "forward"}
    found = [differences(rank, PREDICTED, sent if rank < 2 else SENT) for rank in range(4)]
    assert describe(found) == (
        "ranks 0, 1: all_gather over dp_shard of 64 bytes (4 predicted, 2 sent by backward)"
    )


def test_differences_travel_as_json() -> None:
    found = Differences(0, ("one",), ("two", "three"))
    assert differences_of(0, json.loads(json.dumps(found.data()))) == found


def noted(compiled: Compiled, *, is_skipped: bool) -> tuple[Any, list[str]]:
    texts: list[str] = []
    run = SimpleNamespace(
        graph=compiled.graph,
        device=SimpleNamespace(type="cpu"),
        reports_sample_ids=False,
        observer=SimpleNamespace(noted=texts.append),
        launch=SimpleNamespace(rank=0),
    )
    backend: Any = SimpleNamespace(run=run, instruments=SimpleNamespace(first_step=None))
    count_first_step(backend, compiled, is_skipped=is_skipped)
    return backend.instruments.first_step, texts


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    found = checked(PLANS / "quickstart.plan")
    assert found.graph is not None
    return Compiled(found.graph, Path(), (), (), found.inventory)


def test_a_plan_that_was_compiled_here_is_compared_without_a_note(compiled: Compiled) -> None:
    first_step, texts = noted(compiled, is_skipped=False)
    assert compiled.inventory is not None
    assert (first_step.predicted, texts) == (predictions(compiled.graph, compiled.inventory, rank=0), [])


@pytest.mark.parametrize("is_skipped", [True, False])
def test_a_comparison_left_out_is_noted_with_its_reason(compiled: Compiled, is_skipped: bool) -> None:
    reason = "--skip-collectives-check" if is_skipped else "a compiled plan has no inventory"
    first_step, (text,) = noted(replace(compiled, inventory=None), is_skipped=is_skipped)
    assert first_step.predicted is None
    assert text.startswith(f"the collectives of the first step are not checked: {reason}")
