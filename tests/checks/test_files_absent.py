"""Data and tokenizers that are not on the machine that checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import Checked, check_plan
from planc.data_sources.globs import without_file
from planc.runtime.data.errors import DataError
from planc.runtime.data.sources import matched_files
from tests.plans import TINY, write_plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "corpus" / "deep").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "deep/c.json"):
        (tmp_path / "corpus" / name).write_text("text")
    return tmp_path


def checked(folder: Path, pattern: str, *, tokenizer: str = "bytes") -> Checked:
    edits = [('text("data/*.txt")', f'text("{pattern}")\n  tokenizer = {tokenizer}')]
    return check_plan(write_plan(folder, text=TINY, edits=edits))


@pytest.mark.parametrize(
    ("pattern", "directory", "near"),
    [
        ("corpus/*.md", "corpus", "2 `*.txt`"),
        ("corpus/**/*.md", "corpus", "2 `*.txt`"),
        ("corpus/x.txt", "corpus", "2 `*.txt`"),
        ("corpus/deep/*.txt", "corpus/deep", "1 `*.json`"),
        ("corpus/*/*.txt", "corpus", "2 `*.txt`"),
    ],
)
def test_a_pattern_without_a_file_is_noted_with_what_is_there(
    folder: Path, pattern: str, directory: str, near: str
) -> None:
    result = checked(folder, pattern)
    (found,) = result.diagnostics
    assert result.ok and found.code.code == "P738" and str(found.severity) == "note"
    assert found.primary.text == f"no file matches `{pattern}`"
    assert found.notes == (f"`{folder / directory}` has {near}",)
    assert str(folder) in str(found.help)


@pytest.mark.parametrize(
    "pattern", ["corpus/*.txt", "corpus/**/*.json", "elsewhere/*.txt", "corpus/none/*.txt"]
)
def test_files_that_match_or_a_directory_that_is_elsewhere_give_no_finding(
    folder: Path, pattern: str
) -> None:
    assert checked(folder, pattern).diagnostics == ()


def test_a_pattern_that_matches_only_a_directory_has_no_file(folder: Path) -> None:
    found = without_file("corpus/d*", base=folder)
    assert found is not None and found.directory == folder / "corpus"


def test_evaluation_data_is_searched_too(folder: Path) -> None:
    source = 'eval "held_out" { source = text("corpus/*.held"), every = 5 steps }'
    plan = write_plan(folder, text=TINY, edits=[('text("data/*.txt")', f'text("corpus/*.txt")\n  {source}')])
    assert [one.primary.text for one in check_plan(plan).diagnostics] == ["no file matches `corpus/*.held`"]


def test_a_tokenizer_that_is_not_in_its_directory_is_noted(folder: Path) -> None:
    (folder / "corpus" / "tokenizer.json").write_text("{}")
    (found,) = checked(folder, "corpus/*.txt", tokenizer='file("corpus/tokeniser.json")').diagnostics
    assert (found.code.code, found.primary.text) == ("P738", "no file `corpus/tokeniser.json`")
    assert str(found.help).startswith("write `corpus/tokenizer.json`, unless")


@pytest.mark.parametrize("path", ["elsewhere/tokenizer.json", "models/llama-3.1-8b/tokenizer.json"])
def test_a_tokenizer_next_to_a_configuration_alone_is_elsewhere(folder: Path, path: str) -> None:
    assert checked(folder, "corpus/*.txt", tokenizer=f'file("{path}")').diagnostics == ()


def test_the_run_names_the_directory_and_what_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(DataError) as caught:
        matched_files(("corpus/*.md",), base=Path("."))
    start = f"help: patterns are relative to {folder}; "
    assert caught.value.__notes__ == [f"{start}{folder / 'corpus'} has 2 `*.txt`"]
    with pytest.raises(DataError) as caught:
        matched_files(("none/*.md",), base=Path("."))
    assert caught.value.__notes__ == [f"{start}{folder / 'none'} does not exist"]


def test_a_checkpoint_to_branch_from_is_noted_if_only_its_directory_is_here(folder: Path) -> None:
    (folder / "runs" / "first" / "checkpoints" / "step-20").mkdir(parents=True)

    def findings(path: str) -> list[tuple[str, str, str]]:
        edits = [("steps = 10\n}", f'steps = 10\n}}\ncheckpoint {{\n  resume = "{path}"\n}}')]
        found = check_plan(write_plan(folder, text=TINY, edits=edits)).diagnostics
        return [(one.code.code, one.primary.text, one.help or "") for one in found]

    for path in ("runs/first", "runs/first/checkpoints/step-20", "elsewhere/first"):
        assert findings(path) == []
    (found,) = findings("runs/first/checkpoints/step-2")
    assert found[:2] == ("P738", "no directory `runs/first/checkpoints/step-2`")
    assert found[2].startswith("write `runs/first/checkpoints/step-20`, unless the directory is on the run's")
