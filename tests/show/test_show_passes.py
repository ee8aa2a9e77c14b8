"""The passes that make a graph are listed in order, each with its reason and its effect."""

from __future__ import annotations

import json

import pytest

from planc.cli.main import main
from planc.lower.pipeline import PASSES
from planc.plan.bind import BoundPlan
from planc.show.passes import effects, passes_text
from tests.plans import PLANS, checked


def bound_of(name: str) -> BoundPlan:
    bound = checked(PLANS / f"{name}.plan").bound
    assert bound is not None
    return bound


def test_every_pass_is_listed_in_order_with_its_reason() -> None:
    first, *rest = effects(bound_of("quickstart"))
    assert (first.name, first.removed, first.changed) == ("lower", (), ())
    assert [(one.name, one.reason) for one in rest] == [(one.name, one.reason) for one in PASSES]


def test_what_one_rank_does_not_need_is_removed() -> None:
    _, dropped = effects(bound_of("launch-one-process"))
    assert dropped.removed == ("tp.shard", "fsdp.shard")
    assert "grads.clip" in dropped.changed and "optimizer.step" not in dropped.changed


def test_a_pass_that_removes_nothing_is_shown_as_such() -> None:
    text = passes_text(bound_of("quickstart"))
    assert text.startswith("lower\n  makes  every op that the plan requests\ndrop-trivial-dims\n")
    assert "  removes   no op\n" in text


def test_the_command_prints_both(capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(PLANS / "launch-one-process.plan")
    assert main(["show", plan, "--passes"]) == 0
    assert capsys.readouterr().out == passes_text(bound_of("launch-one-process"))
    assert main(["show", plan, "--passes", "--output-format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["passes"]
    assert [one["name"] for one in found] == ["lower", *(one.name for one in PASSES)]
    assert found[1]["removed"] == ["tp.shard", "fsdp.shard"]
