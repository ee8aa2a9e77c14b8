"""Bad models, data, checkpoints and environments are refused as declared: rows 69 to 110 of the corpus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.robustness.bad_files import CHECK, ELSEWHERE, FILE_CASES, RUN, FileCase, nothing
from tests.robustness.file_answers import Folders, answer, problems


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("files"))


def test_every_row_has_a_case_or_a_suite() -> None:
    rows = [*(case.row for case in FILE_CASES), *ELSEWHERE]
    numbers = {int(match[0]) for row in rows if (match := re.match(r"\d+", row))}
    assert numbers == set(range(69, 111))


def test_every_suite_that_is_named_is_there() -> None:
    root = Path(__file__).parents[2]
    assert [path for path in ELSEWHERE.values() if not (root / path).is_file()] == []


@pytest.mark.parametrize("command", [CHECK, RUN], ids=" ".join)
def test_the_workspace_is_sound_before_it_is_spoilt(command: tuple[str, ...], folders: Folders) -> None:
    case = FileCase(" ".join(command), nothing, "", 0, command)
    found = answer(case, folders.of(case, number=len(FILE_CASES) + len(command)))
    assert list(problems(case, found)) == [], found.text


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("number", range(len(FILE_CASES)), ids=lambda number: FILE_CASES[number].row)
def test_a_bad_file_is_refused_as_declared(number: int, folders: Folders) -> None:
    case = FILE_CASES[number]
    folder = folders.of(case, number)
    assert list(problems(case, found := answer(case, folder))) == [], found.text
    assert not (folder / "marker").exists()
