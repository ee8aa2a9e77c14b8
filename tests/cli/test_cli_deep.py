"""`planc check --deep`: what it prints, what it remembers, and what it refuses."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import planc
from planc.api import check_plan
from planc.cli.main import main
from planc.cli.support.deep import progress
from planc.deep_check import cache
from planc.deep_check import check as deep
from planc.deep_check.check import check_deep
from planc.estimate.estimate import estimate
from planc.graph.graph import Graph
from planc.runtime.rehearsal.findings import Failure, Rehearsal
from planc.source import Span
from tests.plans import QUICKSTART, TINY, write_plan


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLANC_CACHE", str(tmp_path / "cache"))
    return write_plan(tmp_path, text=TINY)


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A plan that has been rehearsed, and the steps that were announced meanwhile."""

    plan: Path
    said: list[str]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    plan = write_plan(tmp_path_factory.mktemp("rehearsed"), text=TINY)
    said: list[str] = []
    checked = check_plan(plan)
    assert checked.graph is not None and checked.inventory is not None
    check_deep(
        checked.graph,
        base=plan.parent,
        estimate=estimate(checked.graph, checked.inventory),
        cache_dir=plan.parent / "cache",
        nowhere=checked.sources[str(plan)].start(),
        said=said.append,
    )
    return Rehearsed(plan, said)


@pytest.fixture
def rehearsed(first: Rehearsed, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLANC_CACHE", str(first.plan.parent / "cache"))
    return first.plan


def kept(plan: Path) -> list[Path]:
    return [*(plan.parent / "cache" / "rehearsals").glob("*.json")]


def test_a_deep_check_says_what_was_rehearsed_and_that_it_remembers(
    rehearsed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(rehearsed), "--deep"]) == 0
    out = capsys.readouterr().out
    assert " passed, plan_hash " in out
    assert "  rehearsed " in out and "setup, steps, save, from the cache\n" in out
    assert "per rank and step, as estimated" in out
    assert "of it allocated at once, in" in out
    assert len(kept(rehearsed)) == 1


@pytest.mark.slow
def test_a_damaged_memory_is_forgotten(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(plan), "--deep"]) == 0
    (file,) = kept(plan)
    file.write_text(file.read_text(encoding="utf-8").replace('"ranks"', '"rank"'), encoding="utf-8")
    capsys.readouterr()
    assert main(["check", str(plan), "--deep"]) == 0
    assert "from the cache" not in capsys.readouterr().out


def test_a_failure_is_a_finding_at_its_line(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No plan is known that passes the rules and fails its rehearsal, so the failure is a remembered one."""
    failed = Rehearsal(
        (0,), 2, 2, (Failure(0, "ValueError in op `forward`: no\nmore", Span(str(plan), 2, 1, 2, 6)),), None
    )
    monkeypatch.setattr(deep, "load", lambda graph, cache_dir: failed)
    assert main(["check", str(plan), "--deep", "--output-format", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["diagnostics"]
    assert (found["code"], found["line"]) == ("P850", 2)
    assert found["notes"] == ["more", "fails on every rehearsed rank"]


def test_expectations_are_held_against_the_rehearsed_peak_too(
    rehearsed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between the estimate and the rehearsal, a limit passes the one and breaks the other."""
    facts = check_plan(rehearsed).draft
    assert facts is not None
    estimated = facts.estimate.memory.peak.num_bytes
    plan = write_plan(tmp_path, text=TINY)
    for limit, passes in ((estimated + 1, False), (2 * estimated, True)):
        plan.write_text(f"{TINY}\nexpect {{\n  peak_memory < {limit} B\n}}\n", encoding="utf-8")
        assert main(["check", str(plan)]) == 0
        capsys.readouterr()
        assert main(["check", str(plan), "--deep", "--output-format", "json"]) == (0 if passes else 1)
        found = json.loads(capsys.readouterr().out)["diagnostics"]
        assert [one["code"] for one in found] == ([] if passes else ["P702"])


def test_a_failure_is_not_remembered(tmp_path: Path) -> None:
    graph = Graph("none", (), num_steps=1, setup=(), step=(), save=())
    cache.save(Rehearsal((0,), 1, 1, (Failure(0, "no", None),), None), graph=graph, cache_dir=tmp_path)
    assert cache.load(graph, cache_dir=tmp_path) is None


@pytest.mark.parametrize("source", ["graph/ops/gradients.py", "runtime/torch/weights/build.py"])
def test_a_change_of_planc_itself_is_rehearsed_anew(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "planc"
    for name in (source, "modeling/initialization.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("", encoding="utf-8")
    monkeypatch.setattr(planc, "__path__", [str(package)])
    graph = Graph("none", (), num_steps=1, setup=(), step=(), save=())
    cache.save(Rehearsal((0,), 1, 1, (), None), graph=graph, cache_dir=tmp_path)
    assert cache.load(graph, cache_dir=tmp_path) is not None
    (package / source).write_text("changed", encoding="utf-8")
    assert cache.load(graph, cache_dir=tmp_path) is None


def test_a_broken_plan_is_not_rehearsed(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(TINY.replace("steps = ", "step = "), encoding="utf-8")
    assert main(["check", str(plan), "--deep"]) == 1
    assert "rehearsed" not in capsys.readouterr().out
    assert kept(plan) == []


def test_a_diff_goes_without_a_rehearsal(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(plan), "--deep", "--diff"]) == 2
    assert "--deep" in capsys.readouterr().err


def test_a_rehearsed_peak_is_judged_by_the_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is 31.8 MiB and the rehearsal 33.0 MiB, of which 90 % of the device is between them."""
    monkeypatch.setenv("PLANC_CACHE", str(tmp_path / "cache"))
    text = QUICKSTART.read_text(encoding="utf-8")
    plan = write_plan(tmp_path, text=f"{text}hardware {{\n  gpu = device(memory = 36 MiB)\n}}\n")
    assert main(["check", str(plan)]) == 0
    assert "P811" not in capsys.readouterr().out
    assert main(["check", str(plan), "--deep"]) == 0
    out = capsys.readouterr().out
    assert "setup, steps, save\n" in out
    assert "warning[P811]" in out
    assert "the rehearsal measured this" in out


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown_while_working(stream: io.StringIO) -> str:
    with progress("x.plan", stream=stream) as said:
        said("rank 3, 2 of 2")
    return stream.getvalue()


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.usefixtures("at_home")
def test_a_terminal_shows_what_is_rehearsed() -> None:
    shown = shown_while_working(Terminal())
    assert "rehearsing x.plan" in shown
    assert shown.endswith(("\x1b[2K", "\x1b[?25h"))  # the line is gone, the cursor back


@pytest.mark.usefixtures("at_home")
def test_a_pipe_shows_nothing_of_the_work() -> None:
    assert shown_while_working(io.StringIO()) == ""


@pytest.mark.usefixtures("at_home")
def test_continuous_integration_shows_nothing_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert shown_while_working(Terminal()) == ""


def test_a_rehearsal_says_what_comes_next(first: Rehearsed) -> None:
    assert first.said == ["loading torch", "building the model", "rank 0, 1 of 2", "rank 3, 2 of 2"]
