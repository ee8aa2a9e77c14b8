"""Warnings of `planc check --data` on rows of classes and of pairs that train otherwise than is meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planc.data_sources.kinds import LabeledSource, MatchedSource
from planc.data_view.findings import findings
from planc.data_view.parts import Part
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from planc.source import Span

PAIR = {"premise": "a cat sat", "hypothesis": "a cat was there", "idx": 3, "kind": "made"}
ROWS = [{**PAIR, "label": number % 3} for number in range(6)]
TEXTS = LabeledSource(("rows.jsonl",), 3, field="premise")
PAIRS = LabeledSource(("rows.jsonl",), 3, field="premise", pair="hypothesis")
NAMED = LabeledSource(("rows.jsonl",), 3, ("no", "yes", "perhaps"), field="premise", pair="hypothesis")
MATCHED = MatchedSource(("rows.jsonl",), query="ask", positive="tell")
ASKED = [{"ask": f"question {number}", "tell": f"answer {number}"} for number in range(6)]


def warned(
    folder: Path, source: Any, rows: list[dict[str, Any]], *, is_evaluation: bool = False
) -> list[tuple[str, str | None]]:
    """The texts and helps of the findings."""
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    spec = DataSpec(source, "bytes", 64, 0, packing="none", padding_id=0)
    part = Part("training", want(spec, base=folder), 300, None, is_evaluation)
    _, found = findings(part, nowhere=Span("x.plan", 1, 1, 1, 2), known=set())
    assert {one.code.code for one in found} <= {"P861"}
    return [(one.primary.text, one.help) for one in found]


def test_a_second_text_that_the_plan_does_not_name_is_told(tmp_path: Path) -> None:
    """Classes of two texts would be learned from one. Numbers and single words are no texts."""
    ((text, help),) = warned(tmp_path, TEXTS, ROWS)
    assert text.startswith(
        '`"hypothesis"` of 6 of 6 rows is a text that is not trained on, as in rows.jsonl:1'
    )
    assert help is not None and 'write `pair = "hypothesis"`' in help
    assert not warned(tmp_path, PAIRS, ROWS)
    assert not warned(tmp_path, TEXTS, [{"premise": "a cat", "label": number} for number in range(3)])


@pytest.mark.parametrize("key", ["premise", "hypothesis"])
def test_a_pair_with_an_empty_text_is_told(key: str, tmp_path: Path) -> None:
    ((text, _),) = warned(tmp_path, PAIRS, [*ROWS, {**ROWS[0], key: ""}])
    assert text == "1 of 7 pairs has an empty text, as rows.jsonl:7"


def test_a_class_without_a_row_is_told(tmp_path: Path) -> None:
    rows = [row for row in ROWS if row["label"] == 1]
    ((text, _),) = warned(tmp_path, PAIRS, rows)
    assert text == "nothing is of classes 0, 2, of the 3 that the task has"
    ((text, _),) = warned(tmp_path, NAMED, [row for row in ROWS if row["label"] < 2])
    assert text == "nothing is of class 2 (perhaps), of the 3 that the task has"
    assert not warned(tmp_path, PAIRS, rows, is_evaluation=True)


def test_positives_that_are_negatives_of_each_other_are_told(tmp_path: Path) -> None:
    assert not warned(tmp_path, MATCHED, ASKED)
    ((text, _),) = warned(tmp_path, MATCHED, [*ASKED, ASKED[1], {**ASKED[0], "tell": "answer 5"}])
    assert text == (
        "2 of 8 pairs have the positive of an earlier row, as rows.jsonl:7 (tell), rows.jsonl:8 (tell)"
    )
