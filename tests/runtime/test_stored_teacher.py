"""A teacher's stored log-probabilities: parts that are missing, of another origin, or damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.torch.training import stored_teacher
from planc.runtime.torch.training.stored_teacher import (
    Layout,
    is_stored,
    part_path,
    require_stored,
    write_part,
)

LAYOUT = Layout(num_sequences=5, sequence_length=3, top_k=2)
ORIGIN = {"teacher": "models/teacher", "top_k": "2", "data": "abc"}
IDS = torch.arange(30, dtype=torch.int32).view(5, 3, 2)
VALUES = -torch.arange(30).view(5, 3, 2) / 7


@pytest.fixture(autouse=True)
def two_sequences_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_teacher, "_PART_BYTES", 2 * 3 * 2 * 8 + 1)


def write(folder: Path, *numbers: int) -> None:
    for number in numbers:
        part = [*LAYOUT.part(number)]
        write_part(folder, number, IDS[part], VALUES[part], {**ORIGIN, "weights": "def"})


def test_sequences_come_back_from_the_parts_that_have_them(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2)
    rows = require_stored(tmp_path, LAYOUT, ORIGIN).rows(np.array([4, 0, 3, 3]))
    assert torch.equal(rows["teacher_ids"], IDS[[4, 0, 3, 3]])
    assert torch.equal(rows["teacher_log_probabilities"], VALUES[[4, 0, 3, 3]])


def test_a_run_ends_without_a_part(tmp_path: Path) -> None:
    write(tmp_path, 0, 2)
    assert [is_stored(tmp_path, number, LAYOUT, ORIGIN) for number in range(3)] == [True, False, True]
    with pytest.raises(RunError, match="lacks 1 part of 3") as raised:
        require_stored(tmp_path, LAYOUT, ORIGIN)
    assert "planc teacher" in str(raised.value.help)


@pytest.mark.parametrize("name", ORIGIN)
def test_a_run_ends_if_a_part_is_of_another_origin(name: str, tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2)
    with pytest.raises(RunError, match=f"has log-probabilities of other {name}"):
        require_stored(tmp_path, LAYOUT, {**ORIGIN, name: "another"})


@pytest.mark.parametrize("change", ["short", "header"])
def test_a_run_ends_if_a_part_is_cut_short(change: str, tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2)
    content = part_path(tmp_path, 1).read_bytes()
    part_path(tmp_path, 1).write_bytes(content[:-1] if change == "short" else content[:5])
    with pytest.raises(RunError, match="can't be read") as raised:
        require_stored(tmp_path, LAYOUT, ORIGIN)
    assert raised.value.code is ExitCode.STORAGE


@pytest.mark.parametrize("offset", [1, 30, 56])
def test_a_step_ends_if_a_sequence_that_it_reads_is_damaged(offset: int, tmp_path: Path) -> None:
    """Others of the part are read."""
    write(tmp_path, 0, 1, 2)
    content = bytearray(part_path(tmp_path, 2).read_bytes())
    content[-offset] ^= 1
    part_path(tmp_path, 2).write_bytes(content)
    teacher = require_stored(tmp_path, LAYOUT, ORIGIN)
    assert torch.equal(teacher.rows(np.array([2]))["teacher_ids"], IDS[[2]])
    with pytest.raises(RunError, match="sequence 4 is damaged"):
        teacher.rows(np.array([2, 4]))
