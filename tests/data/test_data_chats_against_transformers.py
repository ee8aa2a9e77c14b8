"""A part of what `python -m tests.data.against_transformers chats` compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.against_transformers import chats


def test_ids_and_masks_of_conversations_are_those_of_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ("byte-level", "Llama 2")
    assert chats.compare(tmp_path, num_conversations=200, kinds=kinds) == 0, capsys.readouterr().out
