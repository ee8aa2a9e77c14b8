"""The session on a GPU, without one: resume, deadlines, what is published, and steps that run on CPUs."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gpu import judges
from tests.gpu.branches import CLAIMS, branches
from tests.gpu.commands import Command, expanded, run_commands
from tests.gpu.outcome import Outcome, Result, Verdict, read_results, write_result
from tests.gpu.page import PAGE, RESULTS, page
from tests.gpu.run import Places, main, pending, run_step
from tests.gpu.site import Site, code_digest, read_site, unsupported_torch
from tests.gpu.steps import STEPS, Step

H100 = Site(
    "cuda", ("NVIDIA H100 80GB HBM3",), 85 * 10**9, "2.13.0+cu130", "2.13.0", "13.0", "2.29.2", "0123"
)
CPUS = Site("cpu", ("cpu", "cpu"), 0, "2.13.0+cpu", "2.13.0+cpu", None, None, "0123")


def fine(ran: judges.Ran) -> Outcome:
    return Outcome(Verdict.OK, f"codes {ran.codes}")


def step(name: str, code: str = "", *, minutes: float = 1.0, num_devices: int = 1) -> Step:
    """A step of one Python program."""
    return Step(name, name, (Command(("{python}", "-c", code)),), minutes, fine, num_devices)


def result(name: str, site: Site, verdict: Verdict = Verdict.OK) -> Result:
    return Result(name, Outcome(verdict, "loss 5.4 to 3.6 | fine"), 61.4, "2026-11-23", site)


def places(folder: Path) -> Places:
    return Places(folder / "work", folder / "results", None)


def test_a_session_resumes_at_the_first_step_without_a_result(tmp_path: Path) -> None:
    steps = [step("first"), step("second")]
    run_step(steps[0], CPUS, places(tmp_path))
    assert pending(steps, read_results(tmp_path / "results"), CPUS) == steps[1:]


@pytest.mark.parametrize(
    "other",
    [replace(CPUS, code="4567"), replace(CPUS, torch="2.12.0"), replace(CPUS, names=("cpu",))],
    ids=["code", "torch", "devices"],
)
def test_a_result_of_another_site_does_not_count(tmp_path: Path, other: Site) -> None:
    write_result(result("first", other), tmp_path)
    steps = [step("first")]
    assert pending(steps, read_results(tmp_path), CPUS) == steps


def test_again_repeats_steps_with_a_result(tmp_path: Path) -> None:
    write_result(result("first", CPUS), tmp_path)
    steps = [step("first")]
    assert pending(steps, read_results(tmp_path), CPUS, again=True) == steps


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    one = result("first", replace(H100, allowed=("torch==2.11.0",)), Verdict.DIFFERS)
    write_result(one, tmp_path)
    assert read_results(tmp_path) == {"first": one}


def test_a_damaged_result_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text("{}")
    with pytest.raises(ValueError, match=r"train.json is not a result .*: remove it"):
        read_results(tmp_path)


def test_a_deadline_ends_the_whole_group(tmp_path: Path) -> None:
    grandchild = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    code = (
        f"import os, subprocess, sys; os.chdir({str(tmp_path)!r}); "
        f"subprocess.run([sys.executable, '-c', {grandchild!r}])"
    )
    began = time.monotonic()
    ran = run_commands((Command(("{python}", "-c", code)),), CPUS, tmp_path / "out", seconds=5)
    assert ran.is_timeout and time.monotonic() - began < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_step_that_takes_too_long_is_a_timeout(tmp_path: Path) -> None:
    slow = step("slow", "import time; time.sleep(600)", minutes=1 / 60)
    assert run_step(slow, CPUS, places(tmp_path)).outcome.verdict is Verdict.TIMEOUT


def test_a_step_for_more_devices_is_skipped(tmp_path: Path) -> None:
    outcome = run_step(step("three", num_devices=3), CPUS, places(tmp_path)).outcome
    assert outcome == Outcome(Verdict.SKIPPED, "needs 3 devices")


def test_a_step_begins_in_an_empty_folder(tmp_path: Path) -> None:
    left = tmp_path / "work" / "first" / "metrics.jsonl"
    left.parent.mkdir(parents=True)
    left.touch()
    run_step(step("first"), CPUS, places(tmp_path))
    assert not left.exists()


def test_missing_files_are_a_failure_with_the_last_line_of_the_error(tmp_path: Path) -> None:
    commands = (Command(("{python}", "-c", "import sys; sys.exit('no memory left')")),)
    failing = Step("train", "", commands, 1.0, judges.trained)
    outcome = run_step(failing, CPUS, places(tmp_path)).outcome
    assert outcome.verdict is Verdict.FAILED
    assert "command 1 exited with 1" in outcome.figures and "no memory left" in outcome.figures


def test_each_step_is_under_nine_minutes_and_named_once() -> None:
    assert all(one.minutes < 9 for one in STEPS)
    assert len({one.name for one in STEPS}) == len(STEPS)


@pytest.mark.parametrize("site", [CPUS, H100], ids=["cpu", "cuda"])
def test_no_placeholder_stays_in_a_command(site: Site, tmp_path: Path) -> None:
    words = [word for one in STEPS for command in one.commands for word in expanded(command, site, tmp_path)]
    assert [word for word in words if "{" in word] == []


def test_an_allowed_release_is_in_every_run() -> None:
    site = replace(H100, torch="2.11.0+cu130", release="2.11.0", allowed=("torch==2.11.0",))
    runs = [command for one in STEPS for command in one.commands if "planc.run" in command.argv]
    assert runs and all("--allow-release" in expanded(command, site, Path("out")) for command in runs)


def test_a_torch_below_the_floor_needs_a_permission() -> None:
    old = replace(H100, torch="2.11.0+cu130", release="2.11.0")
    assert unsupported_torch(old) == "torch==2.11.0"
    assert unsupported_torch(replace(old, allowed=("torch==2.11.0",))) is None
    assert unsupported_torch(H100) is None


def test_the_page_names_an_allowed_release() -> None:
    site = replace(H100, torch="2.11.0+cu130", release="2.11.0", allowed=("torch==2.11.0",))
    assert "**Unsupported, but allowed: torch==2.11.0**" in page({"train": result("train", site)})


def test_results_on_cpus_are_never_published() -> None:
    with pytest.raises(AssertionError, match="not published"):
        page({"train": result("train", CPUS)})


def test_the_page_has_a_row_for_each_step() -> None:
    text = page({"train": result("train", H100, Verdict.DIFFERS)})
    rows = [line for line in text.splitlines() if line.startswith("| train |")]
    assert len(rows) == 1 and "**differs** | loss 5.4 to 3.6 \\| fine | 61 |" in rows[0]
    assert text.count("| not run |") == len(STEPS) - 1 and "1 x NVIDIA H100" in text


def test_the_committed_page_is_of_the_committed_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read_results(RESULTS))


def test_every_branch_for_cuda_is_claimed_by_a_step() -> None:
    assert sorted(branches()) == [claim.where for claim in CLAIMS]
    assert {claim.step for claim in CLAIMS} <= {one.name for one in STEPS}


def test_a_new_branch_for_cuda_is_found(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(
        'def one(device):\n    """On cuda."""\n    return device.type == "cuda"\n\n\n'
        "def two():\n    return torch.cuda.device_count()\n\n\ndef three(device):\n    return 'cuda'\n"
    )
    assert branches(tmp_path) == ["new.py::one", "new.py::two"]


def test_the_digest_sees_a_change_that_is_not_committed(tmp_path: Path) -> None:
    path = tmp_path / "planc" / "one.py"
    path.parent.mkdir()
    path.write_text("a = 1\n")
    before = code_digest(tmp_path)
    path.write_text("a = 2\n")
    assert code_digest(tmp_path) != before


def test_devices_have_the_names_that_planc_has_for_them() -> None:
    names = {"NVIDIA GB200": "gb200", "NVIDIA B200": "b200", "NVIDIA H200": "h200", "NVIDIA A10": None}
    assert {name: replace(H100, names=(name,)).gpu for name in names} == names
    small = replace(H100, names=("NVIDIA A100-SXM4-40GB",), memory_bytes=42 * 10**9)
    assert (small.gpu, replace(small, memory_bytes=85 * 10**9).gpu) == ("a100_40gb", "a100")


def test_without_a_device_there_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    # On a machine with devices there is another way to have none.
    code = main(["--devices", "1000"])
    lines = capsys.readouterr().err.splitlines()
    assert code == 2 and len(lines) == 1 and lines[0].startswith("make gpu: ")


@pytest.fixture(scope="module")
def site() -> Site:
    return read_site("cpu", num_devices=2)


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, id=one.name, marks=() if one.is_quick else pytest.mark.slow) for one in STEPS],
)
def test_the_step_runs_on_cpus(one: Step, site: Site, tmp_path: Path) -> None:
    found = run_step(one, site, places(tmp_path))
    assert found.outcome.verdict is Verdict.OK, found.outcome.figures


def test_a_memory_peak_beside_its_prediction_differs(tmp_path: Path) -> None:
    """A log as one from a device, with half of the memory that both predictions have."""
    (tmp_path / "run").mkdir()
    line = '{"step": 1, "loss": 5.0, "memory_bytes": 104857600, "memory_reserved_bytes": 104857600}\n'
    (tmp_path / "run" / "metrics.jsonl").write_text(line)
    (tmp_path / "0.out").write_text('{"facts": {"peak_memory": 104857600}}')
    text = (
        "  rehearsed memory  {} MiB reserved per rank at the peak; at most 100.00 MiB of it allocated at once"
    )
    outcomes = []
    for reserved in ("100.00", "200.00"):
        (tmp_path / "1.out").write_text(text.format(reserved))
        outcomes.append(judges.judged(judges.remembered, judges.Ran(H100, tmp_path, (0, 0, 0))))
    assert [one.verdict for one in outcomes] == [Verdict.OK, Verdict.DIFFERS]
    assert "--deep 200 MiB for 100 measured (+100.0%)" in outcomes[1].figures


def test_the_interpreter_is_the_one_of_the_session() -> None:
    assert expanded(Command(("{planc}", "doctor")), CPUS, Path("out"))[:3] == [sys.executable, "-m", "planc"]
