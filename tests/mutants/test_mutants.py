"""The harness sees what it must see, and a slice of its mutants on every run of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from planc.api import check_plan
from planc.graph.graph import plan_hash
from planc.show.resolved import resolved_text
from tests.dist.pool import start_server
from tests.mutants.campaign import (
    MUTATIONS,
    TYPES,
    Mutant,
    Result,
    Workshop,
    drafted_plans,
    judged,
    mutants,
    shrunk_bases,
)
from tests.mutants.draft import Draft, read_draft
from tests.mutants.mutant import Edited
from tests.mutants.report import ALARM, CAUGHT, FINE, HOLE, ON_PRINCIPLE, class_of, report, told
from tests.mutants.shrink import Base, bases
from tests.mutants.verdicts import broken_promises
from tests.plans import TINY, write_plan

NUM_MUTANTS = 25
SEED = 0


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    start_server()
    return Workshop(tmp_path_factory.mktemp("mutants"))


@pytest.fixture(scope="module")
def starts() -> Sequence[Base]:
    return shrunk_bases()


@pytest.fixture(scope="module")
def small(starts: Sequence[Base]) -> Sequence[Base]:
    """Some bases of two ranks."""
    return [base for base in starts if base.draft.world_size() == 2][::6]


@pytest.fixture(scope="module")
def tp2(starts: Sequence[Base]) -> Base:
    return next(base for base in starts if base.name == "quickstart tp")


def result_of(workshop: Workshop, base: Base, draft: Draft) -> Result:
    path = workshop.write("one", Edited(draft, base.config, "by hand"))
    return judged(Mutant(0, "style", base.name, "by hand", path, ""), depths=("static",))


def without_rule(draft: Draft, pattern: str) -> Draft:
    block = draft.block("tensor_parallel")
    index = [rule.patterns for rule in block.rules].index((pattern,))
    return draft.edit("tensor_parallel", lambda block: block.with_rule(index))


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("path", drafted_plans(), ids=lambda path: path.stem)
def test_a_draft_means_what_it_was_read_from(path: Path, workshop: Workshop) -> None:
    checked = check_plan(path)
    assert checked.bound is not None and checked.graph is not None
    copy = workshop.folder / f"models-of-{path.stem}"
    copy.mkdir()
    (copy / "models").symlink_to(path.parent / "models")
    (copy / "x.plan").write_text(str(read_draft(resolved_text(checked.bound))))
    again = check_plan(copy / "x.plan").graph
    assert again is not None
    assert plan_hash(again) == plan_hash(checked.graph)


@pytest.mark.slow
def test_every_base_is_accepted_by_check(workshop: Workshop, starts: Sequence[Base]) -> None:
    errors = {
        base.name: [str(one) for one in checked.diagnostics]
        for base in starts
        if not (checked := check_plan(workshop.write("base", Edited(base.draft, base.config, "")))).ok
    }
    assert errors == {}


@pytest.mark.slow
def test_a_base_trains_as_one_process(workshop: Workshop, tp2: Base) -> None:
    result = result_of(workshop, tp2, tp2.draft)
    assert (result.status, result.detail, result.promises) == ("equal", "", ())


@pytest.mark.slow
@pytest.mark.parametrize("path", drafted_plans(), ids=lambda path: path.stem)
def test_every_canonical_plan_trains_as_one_process(path: Path, workshop: Workshop) -> None:
    for base in (base for base in bases(path) if base.draft.world_size() <= 4):
        result = result_of(workshop, base, base.draft)
        assert (base.name, result.status, result.detail) == (base.name, "equal", "")


@pytest.mark.slow
def test_a_gradient_that_is_not_summed_shows(workshop: Workshop, tp2: Base) -> None:
    result = result_of(workshop, tp2, without_rule(tp2.draft, "model.norm"))
    assert result.status == "differs"
    assert "model.norm.weight" in result.detail


@pytest.mark.slow
def test_a_run_that_fails_shows_with_its_op(workshop: Workshop, tp2: Base) -> None:
    result = result_of(workshop, tp2, without_rule(tp2.draft, "model.layers.*.self_attn.o_proj"))
    assert result.status == "crash"
    assert "in op `forward`" in result.detail


def test_a_broken_expectation_is_bad_though_the_run_is_right(workshop: Workshop, tp2: Base) -> None:
    wrong = tp2.draft.edit("expect", lambda block: replace(block, comparisons=(("world_size", "==", "3"),)))
    result = result_of(workshop, tp2, wrong)
    assert (result.status, result.promises) == ("equal", ("world_size is 2",))
    assert result.is_bad


def test_a_module_around_others_states_how_their_values_leave_it(tmp_path: Path) -> None:
    """A norm takes shards of sequences from DeepSeek's attention, whose last layer has whole ones."""
    edits = [
        ("models/tiny-llama", "models/tiny-deepseek-v3"),
        ("  auto\n", "  auto(sequence_parallel = true)\n"),
    ]
    bound = check_plan(write_plan(tmp_path, text=TINY, edits=edits)).bound
    assert bound is not None
    assert [*broken_promises(bound)] == []


RESULT = Result(Mutant(0, "style", "base", "note", Path("x.plan"), ""), {"static": ()}, status="equal")


@pytest.mark.parametrize(
    ("codes", "status", "expected"),
    [
        ((), "crash", HOLE),
        (("P408",), "differs", CAUGHT),
        ((), "equal", FINE),
        (("P408",), "equal", ALARM),
        (("P221",), "equal", ON_PRINCIPLE),
        (("P221", "P408"), "equal", ALARM),
    ],
)
def test_a_result_is_classed_by_verdict_and_truth(codes: tuple[str, ...], status: str, expected: str) -> None:
    assert class_of(replace(RESULT, codes={"static": codes}, status=status), "static") == expected


def test_a_hole_is_listed_with_its_plan() -> None:
    hole = replace(RESULT, status="hang", detail="rank 1 not done")
    assert "bad accepted: 1\nx.plan" in report([RESULT, hole])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_mutants(tmp_path: Path, small: Sequence[Base]) -> None:
    def notes(folder: Path) -> list[str]:
        found = mutants(Workshop(folder), small, seed=7, types=("style", "mesh", "batch", "pair"))
        return [f"{mutant.type} {mutant.base} {mutant.note}" for mutant in islice(found, 8)]

    assert notes(tmp_path / "a") == notes(tmp_path / "b")


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_edits_some_plan(name: str, starts: Sequence[Base]) -> None:
    edited = (
        (MUTATIONS[name].mutate(base.draft, base.config, Random(seed)), base)
        for base in starts
        for seed in range(3)
    )
    assert any(one and (one.draft, one.config) != (base.draft, base.config) for one, base in edited)


@pytest.mark.slow
def test_no_bad_plan_of_a_small_slice_is_accepted(workshop: Workshop, small: Sequence[Base]) -> None:
    found = mutants(workshop, small, seed=SEED, types=TYPES)
    results = [judged(mutant, depths=("static",)) for mutant in islice(found, NUM_MUTANTS)]
    assert [told(one) for one in results if class_of(one, "static") == HOLE] == []
    assert {one.status for one in results} > {"equal", "crash"}
