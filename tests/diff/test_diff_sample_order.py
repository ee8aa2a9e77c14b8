"""The step from which a diff sees other samples, against orders of the data that both plans really have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from planc.api import check_plan
from planc.cli.support.count_sequences import count_known
from planc.diff.differ import diff
from planc.diff.difference import Action, Change, PlanDiff
from planc.diff.side import Side, side_of
from planc.graph.graph import Graph
from planc.graph.ops import OpenSource
from planc.graph.sources import training_data
from planc.runtime.data.open import MixedData, OpenData, mixed, open_data
from planc.runtime.data.ops import data_spec
from tests.plans import PLANS, write_plan

LENGTH, BATCH, STEPS = 8, 4, 1_500
MODEL = (PLANS / "models" / "tiny-llama").resolve()
PLAN = f"""\
model {{
  hf = "{MODEL}"
}}

data {{
  sequence_length = {LENGTH}
  micro_batch = {BATCH}
  packing = none
SOURCES
}}

optimizer {{
  kind = adamw(lr = 1e-3)
}}

train {{
  steps = {STEPS}
}}
"""
Sources = tuple[tuple[str, str, str], ...]
"""Label, file and weight of each; an empty label for a source without a block."""
SIZES = {"a": 700, "b": 311, "c": 97, "rare": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of documents of which no two are equal, each a sequence of its own."""
    folder = tmp_path_factory.mktemp("orders")
    for name, number in SIZES.items():
        lines = (json.dumps({"text": f"{name[0]}{one:05}"}) for one in range(number))
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def side(folder: Path, name: str, sources: Sources, more: str = "", *, steps: int = STEPS) -> Side:
    written = []
    for label, file, weight in sources:
        source = f'source = jsonl("{file}.jsonl")'
        weighed = f", weight = {weight}" if weight else ""
        written.append(f'  source "{label}" {{ {source}{weighed} }}' if label else f"  {source}")
    text = PLAN.replace("SOURCES", "\n".join((*written, more))).replace(f"{STEPS}", f"{steps}")
    found = side_of(check_plan(write_plan(folder, name=f"{name}.plan", text=text)), name=name)
    assert found is not None
    return found


def samples(graph: Graph, folder: Path) -> Iterator[bytes]:
    """The tokens of every sequence in the order of a run, from the data itself."""
    training = training_data(graph)

    def opened(op: OpenSource | None) -> OpenData:
        spec = data_spec(op or training, training=training)
        return open_data(spec, base=folder, model_vocab_size=260)

    ops = [op for op in graph.setup if isinstance(op, OpenSource)]
    parts = [MixedData(op.label, op.weight, opened(op)) for op in ops]
    data = mixed(parts, seed=training.shuffle_seed) if ops else opened(None)
    for first in range(0, graph.num_steps * training.global_batch, training.global_batch):
        for one in data.order.sample_ids(first, count=training.global_batch):
            yield data.dataset[int(one)][0].tobytes()


def first_other_step(old: Side, new: Side, folder: Path) -> int | None:
    """The first step with another sample in both runs; None if there is none before one of them ends."""
    pairs = zip(samples(old.graph, folder), samples(new.graph, folder), strict=False)
    return next((1 + place // BATCH for place, (one, other) in enumerate(pairs) if one != other), None)


def order_of(found: PlanDiff) -> Change | None:
    return next((change for change in found.changes if change.name == "sample order"), None)


A, B, C = ("web", "a", "0.7"), ("code", "b", "0.3"), ("books", "c", "0.2")
CASES: dict[str, tuple[Sources, Sources]] = {
    "weights": ((A, B), (("web", "a", "0.6"), ("code", "b", "0.4"))),
    "nearly the same weights": ((A, B), (("web", "a", "0.7002"), ("code", "b", "0.2998"))),
    "weights that differ in a later block": (
        (("web", "a", "1"), ("code", "b", "1")),
        (("web", "a", "1.0003"), ("code", "b", "1")),
    ),
    "one more source": ((A, B), (A, B, C)),
    "one more source of little weight": ((A, B), (A, B, ("books", "c", "0.0004"))),
    "a source less": ((A, B, C), (A, B)),
    "another file": ((A, B), (A, ("code", "c", "0.3"))),
    "another order": ((A, B), (B, A)),
    "one that weighs as much as another": ((A, ("code", "b", "0.7")), (A, ("code", "c", "0.7"))),
    "weights for none": ((A, B), (("web", "a", ""), ("code", "b", ""))),
    "another order without weights": (
        (("web", "a", ""), ("code", "b", "")),
        (("code", "b", ""), ("web", "a", "")),
    ),
    "a mixture of a single source": ((("", "a", ""),), (A,)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_step_is_the_first_with_another_sample(folder: Path, case: str) -> None:
    old, new = (side(folder, name, one) for name, one in zip(("old", "new"), CASES[case], strict=True))
    step = first_other_step(old, new, folder)
    assert step is not None
    found = order_of(diff(old, new))
    assert found is not None
    assert (found.action, found.note) == (Action.CHANGE, f"other samples from step {step:_} on")


def test_the_cases_differ_in_early_and_late_steps(folder: Path) -> None:
    """Else a diff that always says step 1 would pass."""
    steps = [
        first_other_step(side(folder, "x", old), side(folder, "y", new), folder)
        for old, new in (CASES["weights"], CASES["weights that differ in a later block"])
    ]
    assert steps[0] == 1
    assert steps[1] is not None and steps[1] > 4_096 // BATCH


UNWEIGHTED = (("web", "a", ""), ("code", "b", ""))


@pytest.mark.parametrize(
    ("old", "new", "label"),
    [
        (UNWEIGHTED, (*UNWEIGHTED, ("few", "rare", "")), "few"),
        ((*UNWEIGHTED, ("few", "rare", "")), UNWEIGHTED, "few"),
        ((("", "a", ""),), (("web", "a", ""), ("few", "rare", "")), "few"),
    ],
)
def test_without_weights_the_step_is_the_first_with_the_other_source(
    folder: Path, old: Sources, new: Sources, label: str
) -> None:
    sides = side(folder, "old", old), side(folder, "new", new)
    found = order_of(diff(*sides))
    assert found is not None
    assert found.note == f'other samples from the first step on that takes a sequence of "{label}"'
    longer = sides[1] if len(new) > len(old) else sides[0]
    places = (place for place, one in enumerate(samples(longer.graph, folder)) if one[:8] == b"r" + bytes(7))
    assert first_other_step(*sides, folder) == 1 + next(places) // BATCH


SAME: dict[str, tuple[Sources, Sources]] = {
    "other labels": ((A, B), (("net", "a", "0.7"), ("programs", "b", "0.3"))),
    "the same shares": ((A, B), (("web", "a", "7"), ("code", "b", "3"))),
    "other labels without weights": (UNWEIGHTED, (("net", "a", ""), ("programs", "b", ""))),
    "a difference after the end": (
        (("web", "a", "1"), ("code", "b", "1")),
        (("web", "a", "1.0000001"), ("code", "b", "1")),
    ),
    "a mixture of one": ((("", "a", ""),), (("web", "a", ""),)),
}


@pytest.mark.parametrize("case", SAME)
def test_nothing_is_said_of_orders_that_are_the_same(folder: Path, case: str) -> None:
    old, new = (side(folder, name, one) for name, one in zip(("old", "new"), SAME[case], strict=True))
    assert first_other_step(old, new, folder) is None
    assert order_of(diff(old, new)) is None


@pytest.mark.parametrize("sources", [(A, B), UNWEIGHTED, (("", "a", ""),)])
def test_another_seed_is_another_order_from_the_first_step_on(folder: Path, sources: Sources) -> None:
    old = side(folder, "old", sources)
    new = side(folder, "new", sources, "  shuffle_seed = 1")
    assert first_other_step(old, new, folder) == 1
    found = order_of(diff(old, new))
    assert found is not None and found.note == "other samples from step 1 on"


@pytest.mark.parametrize(("steps", "other", "ends"), [(1_000, 1_500, "old"), (1_500, 1_000, "new")])
def test_more_steps_change_nothing_before_the_earlier_end(
    folder: Path, steps: int, other: int, ends: str
) -> None:
    old, new = (side(folder, name, (A, B), steps=number) for name, number in (("old", steps), ("new", other)))
    assert first_other_step(old, new, folder) is None
    found = order_of(diff(old, new))
    assert found is not None
    expected = f"the same up to step 1_000, where the {ends} plan ends"
    assert (found.action, found.note) == (Action.KEEP, expected)


@pytest.mark.parametrize(
    ("known", "note"),
    [
        (True, "the same up to step 506, where the old plan ends"),
        (False, "the same; `planc data prepare` counts the steps"),
    ],
)
def test_more_epochs_change_nothing_before_the_earlier_end(folder: Path, known: bool, note: str) -> None:
    """Two epochs of 1,011 sequences, four a step; unknown for data that is neither small nor prepared."""
    sides = []
    for epochs in ("2", "3"):
        text = PLAN.replace(
            "SOURCES",
            '  source "web" { source = jsonl("a.jsonl") }\n  source "code" { source = jsonl("b.jsonl") }',
        )
        path = write_plan(folder, name="x.plan", text=text.replace(f"steps = {STEPS}", f"epochs = {epochs}"))
        found = side_of(check_plan(path, count=count_known if known else None), name=epochs)
        assert found is not None
        sides.append(found)
    change = order_of(diff(*sides))
    assert change is not None
    assert (change.action, change.note) == (Action.KEEP, note)
