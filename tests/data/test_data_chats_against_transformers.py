"""A part of what `python -m tests.data.against_transformers chats` compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.against_transformers import chats

KINDS = ("byte-level", "Llama 2")


@pytest.mark.parametrize("is_in_turn", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_ids_and_masks_of_conversations_are_those_of_transformers(
    is_in_turn: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    num_conversations = 100 if is_in_turn else 200
    num_different = chats.compare(
        tmp_path, num_conversations=num_conversations, kinds=KINDS, is_in_turn=is_in_turn
    )
    assert num_different == 0, capsys.readouterr().out
