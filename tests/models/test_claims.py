"""How many models the pages say that planc trains, against transformers' list and the table of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.architectures import in_the_table, known_types
from tests.models.page import read_rows
from tests.models.tasks import TABLES

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGES = ("README.md", "docs/start/status.md", "docs/concepts/proof.md", "docs/evidence/index.md")


def test_a_page_counts_the_encoder_decoders_that_train_as_without_planc() -> None:
    rows = read_rows(TABLES["seq2seq_lm"].results)
    equal = sum(row.cells["solve"].status == "equal" for row in rows.values())
    claim = f"{equal} of transformers' {len(rows)} encoder-decoders of text, tiny, train as without planc"
    assert claim in (ROOT / PAGES[1]).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_counts_the_models_of_the_table(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"{len(in_the_table())} of transformers' {len(known_types())} causal language models" in text


@pytest.mark.parametrize("page", PAGES[:2])
def test_a_page_counts_the_models_that_train_as_without_planc(page: str) -> None:
    equal = sum(row.cells["one"].status == "equal" for row in read_rows(RESULTS).values())
    assert f"{equal} train as without planc" in (ROOT / page).read_text(encoding="utf-8")
