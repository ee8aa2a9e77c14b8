"""Some of the comparisons of `python -m tests.data.against_transformers`."""

from __future__ import annotations

import pytest

pytest.importorskip("sentencepiece")
pytest.importorskip("tiktoken")

from tests.data.against_transformers import tokenizers


def test_tokenizers_are_those_of_transformers() -> None:
    compared, built = tokenizers.compare(num_texts=20, every=67)
    assert not compared.different, compared.examples
    assert len(built) > 3
    assert compared.compared[tokenizers.IDS] == compared.compared[tokenizers.DECODED] > 50
