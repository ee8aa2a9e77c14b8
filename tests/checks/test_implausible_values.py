"""Settings that are legal, and that nobody means."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plans import TINY, checked, write_plan

KIND = "kind = adamw(lr = 1e-3)"


def found(folder: Path, *, old: str, new: str) -> list[tuple[str, str]]:
    assert old in TINY
    plan = write_plan(folder, text=TINY.replace(old, new))
    return [(one.code.code, one.primary.text) for one in checked(plan).diagnostics]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("adamw(lr = 3.0)", "lr = 3"),
        ("sgd(lr = 3.0)", "lr = 3"),
        ("adamw(lr = 1e-3, eps = 1.0)", "eps = 1"),
        ("adamw(lr = 1e-3, weight_decay = 10.0)", "weight_decay = 10"),
    ],
)
def test_a_setting_far_from_usual_is_warned_of(kind: str, text: str, tmp_path: Path) -> None:
    assert found(tmp_path, old=KIND, new=f"kind = {kind}") == [("P723", text)]


def test_a_clip_that_stops_training_is_warned_of(tmp_path: Path) -> None:
    new = f"{KIND}\n  clip_grad_norm = 1e-9"
    assert found(tmp_path, old=KIND, new=new) == [("P723", "clips every gradient to a norm of 1e-09")]


@pytest.mark.parametrize("kind", ["adamw(lr = 0.1)", "sgd(lr = 1.0)", "adamw(lr = 1e-3, weight_decay = 1.0)"])
def test_what_has_been_published_is_not(kind: str, tmp_path: Path) -> None:
    assert found(tmp_path, old=KIND, new=f"kind = {kind}") == []


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ('text("data/*.txt")', ["P734"]),
        ('text("data/val.txt")', ["P734"]),
        ('text("held_out/*.txt", "./data/val-*.txt")', ["P734"]),
        ('jsonl("data/../data/val.txt")', ["P734"]),
        ('text("held_out/*.txt")', []),
        ('text("data/val/a.txt")', []),
        ('text("data/val.md")', []),
        ("python_stdlib()", []),
    ],
)
def test_an_evaluation_on_the_training_text_is_warned_of(
    source: str, codes: list[str], tmp_path: Path
) -> None:
    old = 'source = text("data/*.txt")'
    new = f'{old}\n  eval "held" {{ source = {source}, every = 5 steps }}'
    assert [code for code, _ in found(tmp_path, old=old, new=new)] == codes


@pytest.mark.parametrize(("timeout", "findings"), [("9 s", 1), ("10 s", 0)])
def test_ranks_that_hardly_wait_for_each_other_are_warned_of(
    timeout: str, findings: int, tmp_path: Path
) -> None:
    new = f"mesh {{\n  timeout = {timeout}\n"
    expected = [("P723", f"the run ends if a rank waits {timeout} for another")] * findings
    assert found(tmp_path, old="mesh {\n", new=new) == expected


def test_one_rank_waits_for_nobody(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, text=TINY.replace("mesh {\n", "mesh {\n  timeout = 1 s\n"))
    alone = checked(plan, "size=1", "mesh.tp=1")
    assert [one.code.code for one in alone.diagnostics] == []


@pytest.mark.parametrize(
    ("trained", "evaluated", "codes"),
    [
        ("data/**/*.txt", "data/val/a.txt", ["P734"]),
        ("data/**/*.txt", "data/a.txt", ["P734"]),
        ("**/train/**", "a/b/train/val.txt", ["P734"]),
        ("data/**/train/*.txt", "data/val/a.txt", []),
        ("data/a.txt", "data/b.txt", []),
        ("data/shard-[0-8].txt", "data/shard-9.txt", []),
    ],
)
def test_globs_of_any_depth_are_followed(
    trained: str, evaluated: str, codes: list[str], tmp_path: Path
) -> None:
    new = f'source = text("{trained}")\n  eval "held" {{ source = text("{evaluated}"), every = 5 steps }}'
    # P738 notes that no such files are here.
    noted = found(tmp_path, old='source = text("data/*.txt")', new=new)
    assert [code for code, _ in noted if code != "P738"] == codes
