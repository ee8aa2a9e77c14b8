"""Rules that planc finds next to a model's own: no worse, and the cheapest that are legal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.plan.style_actions import StyleAction
from planc.solve import solve as solving
from planc.solve.choices import Choice, Cost, choices, small_elements
from planc.solve.containers import Container, containers
from planc.solve.oracle import Oracle, stand_in
from planc.solve.solve import solve
from planc.source import SourceFile
from planc.styles import Boundary
from planc.styles.edges import SEQUENCE
from planc.styles.modules import LOCAL_PARAMS
from planc.vocab import Replicate
from tests.models.architectures import architectures
from tests.models.plans import Variant, plan_with_rules
from tests.solve.blind import PAGE, Costs, Outcome, Rejection, Row, row

NUMBERS_PER_HEAD = ("beam", "granite_swa", "mimo_v2_flash")
"""A bias of the gate; sinks; sinks in some of the layers."""
LARGE = "dots3_note_text"
"""Ten families of modules pass values to each other in its attention."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blind")


@pytest.fixture(scope="module")
def row_of(base: Path) -> Callable[[str], Row]:
    @cache
    def measure(model: str) -> Row:
        found = row(model, architectures()[model], base=base)
        assert found is not None
        return found

    return measure


def solved(model: str, *, base: Path, auto: str = "auto(solve)") -> Checked:
    """A plan with these rules, for a model that was measured."""
    text = plan_with_rules(f"  {auto}", model=model, dtype="float32", variant=Variant("eager"))
    return check_source(SourceFile(f"{model}.plan", text), base=base)


def rules_of(found: Checked) -> dict[str, tuple[str, Boundary]]:
    assert found.graph is not None and found.bound is not None
    return {one.pattern: (one.style, one.boundary) for one in found.bound.auto.rules}


def cheaper(container: Container, oracle: Oracle, than: Cost) -> Iterator[dict[str, Choice]]:
    """Every combination without a rule of the container itself that costs less, legal or not."""
    small = small_elements(list(container.members.values()))
    of = {
        one: choices(
            module,
            tp=2,
            small=small,
            is_head=one == container.head,
            is_prepared=False,
            is_behind_heads=one in container.behind_heads,
            held=oracle.packed.get(module.fqn),
            replicates_kv=False,
        )
        for one, module in container.members.items()
    }
    for chosen in itertools.product(*of.values()):
        if sum((one.cost for one in chosen), Cost()).key < than.key:
            yield dict(zip(of, chosen, strict=True))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("model", [*NUMBERS_PER_HEAD, LARGE])
def test_planc_is_no_worse_and_the_page_has_the_row(model: str, row_of: Callable[[str], Row]) -> None:
    found = row_of(model)
    assert found.verdict in ("better", "shards more")
    assert f"| {' | '.join(found.cells)} |" in PAGE.read_text(encoding="utf-8").splitlines()


def test_planc_is_worse_for_no_model() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    verdicts = [line.split(" | ")[5] for line in lines if line.startswith("| ") and line.count("|") == 9]
    assert len(verdicts) > 100
    assert "WORSE" not in verdicts


@pytest.mark.parametrize("model", NUMBERS_PER_HEAD)
def test_numbers_per_head_are_sharded_with_the_heads(
    model: str, base: Path, row_of: Callable[[str], Row]
) -> None:
    row_of(model)
    found = rules_of(solved(model, base=base))
    assert {style for pattern, (style, _) in found.items() if pattern.endswith("self_attn")} == {
        "local_params"
    }
    assert found["model.layers.*.self_attn.o_proj"] == ("rowwise", Boundary())


def test_on_shards_of_the_sequence_an_attention_with_sinks_gathers_its_input(
    base: Path, row_of: Callable[[str], Row]
) -> None:
    row_of("granite_swa")
    found = rules_of(solved("granite_swa", base=base, auto="auto(sequence_parallel = true)"))
    around = Boundary(input=SEQUENCE, desired=Replicate(), output=SEQUENCE)
    assert found["model.layers.*.self_attn"] == ("prepare_input_output", around)


def test_an_attention_of_ten_families_shares_its_heads(base: Path, row_of: Callable[[str], Row]) -> None:
    row_of(LARGE)
    found = rules_of(solved(LARGE, base=base))
    assert found["model.layers.*.self_attn.{q_b,kv_b,g}_proj"] == ("colwise", Boundary())
    assert found["model.layers.*.self_attn.o_proj"] == ("rowwise", Boundary())


@pytest.mark.parametrize("model", ["granite_swa", "mimo_v2_flash"])
def test_no_cheaper_rules_of_an_attention_are_legal(
    model: str, base: Path, row_of: Callable[[str], Row]
) -> None:
    row_of(model)
    checked = solved(model, base=base)
    assert checked.plan is not None and checked.inventory is not None
    few = stand_in(checked.inventory)
    oracle = Oracle(checked.plan, few)
    attention = next(one for one in containers(checked.plan, few) if one.name.endswith("self_attn"))
    found = solve(checked.plan, checked.inventory).solved
    cost = next(one.cost for one in found if one.container == attention.name)
    tried = 0
    for chosen in cheaper(attention, oracle, cost):
        actions = {family: one.action for family, one in chosen.items() if one.action is not None}
        assert oracle.refusal(actions) is not None
        tried += 1
    assert tried > 50


def test_numbers_per_head_are_refused_only_as_long_as_the_projections_leave_heads_whole(
    base: Path, row_of: Callable[[str], Row]
) -> None:
    row_of("granite_swa")
    checked = solved("granite_swa", base=base)
    assert checked.plan is not None and checked.inventory is not None
    attention = "model.layers.*.self_attn"
    refusal = Oracle(checked.plan, checked.inventory).refusal(
        {attention: StyleAction(LOCAL_PARAMS, Boundary())}
    )
    assert refusal is not None
    (culprits,) = refusal.culprits
    assert culprits.is_exact == {attention}
    assert culprits.takes == culprits.gives == {f"{attention}.{name}_proj" for name in "qkvo"}


def test_a_search_that_was_cut_short_says_so(
    base: Path, row_of: Callable[[str], Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    row_of("granite_swa")
    checked = solved("granite_swa", base=base)
    assert checked.plan is not None and checked.inventory is not None
    monkeypatch.setattr(solving, "MAX_TRIES", 2)
    one = next(one for one in solve(checked.plan, checked.inventory).solved if not one.actions)
    assert one.container == "model.layers.*.self_attn"
    assert one.refused.endswith("(the search ended after 2 combinations)")


_OWN = Costs(100, 50, frozenset("ab"))
_REJECTED = Rejection("P412", "unknown style")


@pytest.mark.parametrize(
    ("found", "own", "same_whole", "verdict"),
    [
        (Costs(100, 50, frozenset("ab")), _OWN, None, "equal"),
        (Costs(90, 50, frozenset("ab")), _OWN, None, "better"),
        (Costs(100, 40, frozenset("ab")), _OWN, None, "better"),
        (Costs(90, 60, frozenset("abc")), _OWN, Costs(100, 50, frozenset("ab")), "shards more"),
        (Costs(90, 60, frozenset("abc")), _OWN, Costs(100, 51, frozenset("ab")), "WORSE"),
        (Costs(90, 60, frozenset("abc")), _OWN, _REJECTED, "WORSE"),
        (Costs(100, 60, frozenset("ab")), _OWN, Costs(100, 50, frozenset("ab")), "WORSE"),
        (Costs(110, 40, frozenset("a")), _OWN, Costs(100, 50, frozenset("a")), "WORSE"),
        (_REJECTED, _OWN, None, "WORSE"),
        (_OWN, _REJECTED, None, "own plan rejected"),
        (_REJECTED, _REJECTED, None, "both rejected"),
    ],
)
def test_a_verdict_counts_parameters_and_bytes(
    found: Outcome, own: Outcome, same_whole: Outcome | None, verdict: str
) -> None:
    assert Row("model", found, own, same_whole).verdict == verdict
