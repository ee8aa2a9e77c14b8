"""The session on a GPU, without one: resume, deadlines, what is published, and steps that run on CPUs."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from planc.api import check_plan
from planc.diagnostics import Severity
from tests.gpu import judges, probe
from tests.gpu.branches import CLAIMS, branches
from tests.gpu.commands import Command, expanded, run_commands
from tests.gpu.nodes import environment, start
from tests.gpu.outcome import Outcome, Result, Verdict, read_results, write_result
from tests.gpu.page import PAGES, RESULTS, Pages, page, publish, readme_status, status
from tests.gpu.run import Places, Session, _program, main, pending, run_all, run_step
from tests.gpu.schedule import Capacity, with_needs
from tests.gpu.site import ROOT, Site, code_digest, read_site, unsupported_torch
from tests.gpu.steps import STEPS, Step
from tests.patience import WAIT_SECONDS

H100 = Site(
    "cuda", ("NVIDIA H100 80GB HBM3",), 85 * 10**9, "2.13.0+cu130", "2.13.0", "13.0", "2.29.2", "0123"
)
CPUS = Site("cpu", ("cpu", "cpu"), 0, "2.13.0+cpu", "2.13.0+cpu", None, None, "0123")


ROOM = Capacity(gib=10, cores=4)


def fine(ran: judges.Ran) -> Outcome:
    return Outcome(Verdict.OK, f"codes {ran.codes}")


def step(name: str, code: str = "", **fields: Any) -> Step:
    """A step of one Python program."""
    return Step(name, name, (Command(("{python}", "-c", code)),), fine, **fields)


def result(name: str, site: Site, verdict: Verdict = Verdict.OK) -> Result:
    return Result(name, Outcome(verdict, "loss 5.4 to 3.6 | fine"), 61.4, "2026-11-23", site)


def places(folder: Path) -> Places:
    return Places(folder / "work", folder / "results", is_published=False)


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
    one = result("first", replace(H100, allowed=("torch==2.9.0",), commit="0123abc"), Verdict.DIFFERS)
    write_result(one, tmp_path)
    assert read_results(tmp_path) == {"first": one}


def test_a_damaged_result_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text("{}")
    with pytest.raises(ValueError, match=r"train.json is not a result .*: remove it"):
        read_results(tmp_path)


@pytest.mark.slow
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


def test_a_step_that_takes_too_long_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "limit", lambda *_: 1.0)
    slow = step("slow", "import time; time.sleep(600)")
    assert run_step(slow, CPUS, places(tmp_path)).outcome.verdict is Verdict.TIMEOUT


def test_a_step_for_more_devices_is_skipped(tmp_path: Path) -> None:
    outcome = run_step(step("three", least_devices=3), CPUS, places(tmp_path)).outcome
    assert outcome == Outcome(Verdict.SKIPPED, "needs 3 devices")


def test_a_step_for_a_larger_device_is_skipped() -> None:
    assert Session(H100, places(Path("none")), math.inf, Event()).measure(step("large", gib=100), math.inf)


def test_a_step_begins_in_an_empty_folder(tmp_path: Path) -> None:
    left = tmp_path / "work" / "first" / "metrics.jsonl"
    left.parent.mkdir(parents=True)
    left.touch()
    run_step(step("first"), CPUS, places(tmp_path))
    assert not left.exists()


def test_missing_files_are_a_failure_with_the_last_line_of_the_error(tmp_path: Path) -> None:
    commands = (Command(("{python}", "-c", "import sys; sys.exit('no memory left')")),)
    failing = Step("train", "", commands, judges.trained)
    outcome = run_step(failing, CPUS, places(tmp_path)).outcome
    assert outcome.verdict is Verdict.FAILED
    assert "command 1 exited with 1" in outcome.figures and "no memory left" in outcome.figures


def test_each_step_is_named_once_and_comes_after_those_it_needs() -> None:
    names = [one.name for one in STEPS]
    assert len({*names}) == len(names)
    assert all(names.index(name) < names.index(one.name) for one in STEPS for name in one.needs)


def _errors(plan: Path) -> list[str]:
    return [one.code.code for one in check_plan(plan).diagnostics if one.severity is Severity.ERROR]


def test_the_plans_of_the_steps_agree_with_their_own_expectations() -> None:
    words = [word for one in STEPS for command in one.commands for word in command.argv]
    plans = sorted({word for word in words if word.endswith(".plan") and not word.startswith("{")})
    assert len(plans) > 10
    wrong = {plan: _errors(ROOT / plan) for plan in plans}
    assert {plan: codes for plan, codes in wrong.items() if codes} == {}


@pytest.mark.parametrize("site", [CPUS, H100], ids=["cpu", "cuda"])
def test_no_placeholder_stays_in_a_command(site: Site, tmp_path: Path) -> None:
    words = [word for one in STEPS for command in one.commands for word in expanded(command, site, tmp_path)]
    assert [word for word in words if "{" in word] == []


def test_an_allowed_release_is_in_every_run() -> None:
    site = replace(H100, torch="2.9.0+cu130", release="2.9.0", allowed=("torch==2.9.0",))
    commands = [expanded(command, site, Path("out")) for one in STEPS for command in one.commands]
    # Whatever checks releases: planc's runs, on one rank, on several, and in drills, which start two.
    runs = [argv for argv in commands if {"planc.run", "tests.gpu.drills"} & {*argv}]
    assert len(runs) > 20 and all("--allow-release" in argv for argv in runs)


def test_a_torch_below_the_floor_needs_a_permission() -> None:
    old = replace(H100, torch="2.9.0+cu130", release="2.9.0")
    assert unsupported_torch(old) == "torch==2.9.0"
    assert unsupported_torch(replace(old, allowed=("torch==2.9.0",))) is None
    assert unsupported_torch(H100) is None


def test_a_permission_that_is_not_needed_is_not_in_a_command() -> None:
    assert read_site("cpu", num_devices=1, allowed=("torch==99.0", "torch==2.9.0")).allowed == (
        "torch==2.9.0",
    )


def test_the_page_names_an_allowed_release() -> None:
    site = replace(H100, torch="2.9.0+cu130", release="2.9.0", allowed=("torch==2.9.0",))
    assert "**Unsupported, but allowed: torch==2.9.0**" in page({"train": result("train", site)})


def test_results_on_cpus_are_never_published() -> None:
    with pytest.raises(AssertionError, match="not published"):
        page({"train": result("train", CPUS)})


def test_the_page_has_a_row_for_each_step() -> None:
    text = page({"train": result("train", H100, Verdict.DIFFERS)})
    rows = [line for line in text.splitlines() if line.startswith("| train |")]
    assert len(rows) == 1 and "**differs** | loss 5.4 to 3.6 \\| fine | 61 |" in rows[0]
    assert rows[0].endswith("| 2026-11-23 | 1 x NVIDIA H100 80GB HBM3 | 2.13.0+cu130 | unknown |")
    assert text.count("| not run |") == len(STEPS) - 1 and "1 x NVIDIA H100" in text


def test_the_committed_pages_are_of_the_committed_results(tmp_path: Path) -> None:
    """The README's status box and the documentation claim what has a result, and no more."""
    written = Pages(tmp_path / "GPU.md", tmp_path / "README.md", tmp_path / "status.md")
    for one, other in ((PAGES.readme, written.readme), (PAGES.status, written.status)):
        shutil.copy(one, other)
    publish(read_results(RESULTS), written)
    for one in ("gpu", "readme", "status"):
        assert getattr(written, one).read_text(encoding="utf-8") == getattr(PAGES, one).read_text(
            encoding="utf-8"
        )


def test_without_results_nothing_is_claimed() -> None:
    assert "Never run: CUDA, NCCL, several machines." in readme_status({})
    skipped = {"train": result("train", H100, Verdict.SKIPPED)}
    assert readme_status(skipped) == readme_status({})


def test_what_is_claimed_is_what_ran() -> None:
    found = {
        "nccl-tp": result("nccl-tp", H100),
        "nccl-fsdp": result("nccl-fsdp", H100, Verdict.FAILED),
        "train": result("train", H100),
    }
    text = readme_status(found)
    assert "On 1 x NVIDIA H100 80GB HBM3 (2026-11-23): 2 of 3 steps" in text and "1 of 2 over NCCL" in text
    assert "Never run: several devices, several machines." in text
    assert "Not as promised: nccl-fsdp." in status(found)


def test_a_page_that_was_published_can_be_published_again(tmp_path: Path) -> None:
    written = Pages(tmp_path / "GPU.md", tmp_path / "README.md", tmp_path / "status.md")
    shutil.copy(PAGES.readme, written.readme)
    shutil.copy(PAGES.status, written.status)
    for found in ({"train": result("train", H100)}, {}, read_results(RESULTS)):
        publish(found, written)
    assert written.readme.read_text(encoding="utf-8") == PAGES.readme.read_text(encoding="utf-8")
    assert written.status.read_text(encoding="utf-8") == PAGES.status.read_text(encoding="utf-8")


def test_what_the_session_has_no_time_for_has_no_result(tmp_path: Path) -> None:
    steps = [step("quick", seconds=1, cpu_seconds=1), step("long", seconds=100, cpu_seconds=100)]
    session = Session(CPUS, places(tmp_path), time.monotonic() + 50, Event())
    assert run_all(steps, session, ROOM) == ["long"]
    assert [*read_results(tmp_path / "results")] == ["quick"]


def test_a_step_that_the_end_of_the_session_cuts_has_no_result(tmp_path: Path) -> None:
    cut = step("cut", "import time; time.sleep(600)", cpu_seconds=2)
    session = Session(CPUS, places(tmp_path), time.monotonic() + 2, Event())
    assert run_all([cut], session, ROOM) == ["cut"] and not (tmp_path / "results").exists()


def test_a_program_of_the_users_runs_beside_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import os, sys; print('measured', sys.argv[1], os.environ['OUT'])")
    one = _program([f"{path} phases", "5", "0"])
    outcome = run_step(one, CPUS, places(tmp_path)).outcome
    assert outcome.verdict is Verdict.OK and outcome.figures.endswith("work/program-mine-phases")
    assert not one.is_alone and _program([str(path), "5", "alone"]).is_alone


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


def test_a_session_on_cpus_needs_no_device() -> None:
    assert probe.main(["--devices", "2", "--device", "cpu", "--minutes", "12"]) == 0


@pytest.mark.slow
def test_the_target_runs_a_step_on_cpus(tmp_path: Path) -> None:
    (tmp_path / ".installed").touch()
    settings = f"PYTHON={sys.executable}", f"GPU_PACKAGES={tmp_path}"
    arguments = "GPU_ARGS=--device cpu --minutes 12 --only doctor --again"
    found = subprocess.run(
        ("make", "gpu", *settings, arguments), cwd=ROOT, text=True, capture_output=True, timeout=WAIT_SECONDS
    )
    assert found.returncode == 0, found.stderr
    assert "1 steps in about" in found.stdout and "every step that was taken is ok" in found.stdout


@pytest.fixture(scope="module")
def site() -> Site:
    return read_site("cpu", num_devices=2)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """One place for all steps: some read what others wrote."""
    return places(tmp_path_factory.mktemp("steps"))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "one",
    [pytest.param(one, id=one.name, marks=() if one.is_quick else pytest.mark.slow) for one in STEPS],
)
def test_the_step_runs_on_cpus(one: Step, site: Site, shared: Places) -> None:
    for needed in with_needs([one], STEPS, lambda name: (shared.work / name).is_dir()):
        found = run_step(needed, site, shared)
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
    assert "--deep 0.20 GiB for 0.10 GiB measured (+100.0%)" in outcomes[1].figures


def ran_beside_by_hand(tmp_path: Path, *, seconds: float, reserved: float) -> Outcome:
    """The outcome for a loop by hand of 200 ms, and 10 GiB and 220 ms predicted."""
    (tmp_path / "predict").mkdir()
    estimate = {"facts": {"peak_memory": 10 * 2**30}, "time": {"expected": {"expected_step_seconds": 0.22}}}
    (tmp_path / "predict" / "0.out").write_text(json.dumps(estimate))
    deep = "rehearsed memory  10.00 GiB reserved per rank at the peak; at most 9.00 GiB of it allocated"
    (tmp_path / "predict" / "1.out").write_text(deep)
    folder = tmp_path / "speed"
    (folder / "run").mkdir(parents=True)
    (folder / "hand.json").write_text(json.dumps({"seconds": 0.2, "reserved_bytes": 9 * 2**30}))
    line = {"loss": 5.0, "seconds": seconds, "memory_reserved_bytes": int(reserved * 2**30), "tokens": 1}
    lines = [json.dumps({"step": number, **line}) for number in range(1, 13)]
    (folder / "run" / "metrics.jsonl").write_text("\n".join(lines))
    return judges.judged(judges.beside_by_hand("predict", None, goal=0.99), judges.Ran(H100, folder, (0, 0)))


@pytest.mark.parametrize(
    ("seconds", "reserved", "verdict"),
    [(0.2, 10.1, Verdict.OK), (0.21, 10.1, Verdict.DIFFERS), (0.2, 11.0, Verdict.DIFFERS)],
    ids=["as promised", "slower", "more memory"],
)
def test_a_run_beside_a_loop_by_hand(
    tmp_path: Path, seconds: float, reserved: float, verdict: Verdict
) -> None:
    outcome = ran_beside_by_hand(tmp_path, seconds=seconds, reserved=reserved)
    assert outcome.verdict is verdict and "220 ms expected" in outcome.figures


@pytest.mark.parametrize(
    ("loss", "norm", "verdict"),
    [(5.0, 1.0, Verdict.OK), (5.001, 1.0, Verdict.DIFFERS), (5.0, 1.001, Verdict.DIFFERS)],
)
def test_a_mesh_is_compared_in_loss_and_norm(
    tmp_path: Path, loss: float, norm: float, verdict: Verdict
) -> None:
    for name, values in (("one-rank", (5.0, 1.0)), ("nccl-tp", (loss, norm))):
        (tmp_path / name / "run").mkdir(parents=True)
        line = {"step": 1, "loss": values[0], "grad_norm": values[1]}
        (tmp_path / name / "run" / "metrics.jsonl").write_text(json.dumps(line))
    ran = judges.Ran(H100, tmp_path / "nccl-tp", (0,))
    assert judges.judged(judges.equal_to_one_rank("one-rank"), ran).verdict is verdict


@pytest.mark.parametrize(
    ("codes", "seconds", "verdict"),
    [([6, -9], 20.0, Verdict.OK), ([None, -9], 240.0, Verdict.DIFFERS), ([6, -9], 90.0, Verdict.DIFFERS)],
)
def test_a_killed_rank_is_noticed_in_time(
    tmp_path: Path, codes: list[int | None], seconds: float, verdict: Verdict
) -> None:
    (tmp_path / "drill.json").write_text(json.dumps({"codes": codes, "seconds": seconds}))
    assert judges.judged(judges.noticed, judges.Ran(H100, tmp_path, (0,))).verdict is verdict


def test_ranks_without_a_device_each_play_a_node_each() -> None:
    shared = [environment(rank, 2, port=1, num_devices=1) for rank in (0, 1)]
    assert [one["NCCL_HOSTID"] for one in shared] == ["node0", "node1"]
    assert {(one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"]) for one in shared} == {("0", "1")}
    own = [environment(rank, 2, port=1, num_devices=2) for rank in (0, 1)]
    assert [one["LOCAL_RANK"] for one in own] == ["0", "1"] and "NCCL_HOSTID" not in own[0]


def test_the_other_ranks_end_soon_after_one_fails(tmp_path: Path) -> None:
    code = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)"
    began = time.monotonic()
    ranks = start(("-c", code), 2, logs=tmp_path, num_devices=0)
    assert ranks.wait(math.inf, grace_seconds=0.5) == [None, 3] and time.monotonic() - began < 60


def test_the_interpreter_is_the_one_of_the_session() -> None:
    assert expanded(Command(("{planc}", "doctor")), CPUS, Path("out"))[:3] == [sys.executable, "-m", "planc"]
