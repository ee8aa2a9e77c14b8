"""Runs that push what they export to a server of this machine: the push is not part of training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hub.push_server import TOKEN, PushServer, serving
from tests.hub.test_hub_push import variables
from tests.launch.processes import LAUNCHER_VARIABLES, ROOT, Outcome, start
from tests.patience import WAIT_SECONDS, patient, wait_until
from tests.plans import TINY, write_plan

PLAN = (
    TINY.replace("steps = 10", "steps = 2")
    .replace("  tp = 2\n", "")
    .replace("tensor_parallel on tp {\n  auto\n}\n\n", "")
    .replace("train {", 'checkpoint {\n  export "hf" { push = hub("org/name") }\n}\n\ntrain {')
)
ALONE = PLAN.replace("size: int = 2", "size: int = 1")
RUN = (sys.executable, "-m", "planc.run")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *RUN[1:])


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan of one rank, which pushes its export."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("the quick brown fox " * 500)
    return write_plan(tmp_path, text=ALONE)


def run(plan: Path, url: str, *command: str, **others: str) -> Outcome:
    """The run of a plan, into `run` next to it."""
    return start(*command, str(plan), "--run-dir", str(plan.parent / "run"), environment=_env(url, **others))


def _env(url: str, **others: str) -> dict[str, str]:
    names = ("HF_ENDPOINT", "HF_TOKEN", "HF_HUB_DISABLE_XET", "HF_HUB_OFFLINE")
    return {**{name: variables(url)[name] for name in names}, **others}


def files_in(folder: Path) -> Mapping[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def status(plan: Path) -> Mapping[str, object]:
    found: Mapping[str, object] = json.loads((plan.parent / "run" / "status.json").read_text())
    return found


def test_one_of_two_ranks_pushes_every_byte_and_the_token_is_nowhere(plan: Path) -> None:
    plan.write_text(PLAN)
    with serving(PushServer(repository="org/name")) as server:
        outcome = run(plan, server.url, *TORCHRUN)
    assert outcome.code == 0, outcome.stderr
    exported = files_in(plan.parent / "run" / "export" / "hf")
    assert "model.safetensors" in exported
    assert {name: server.branches["main"][name] for name in exported} == exported
    assert sum("repos/create" in request for request in server.requests) == 1
    assert len(server.commits) == 1
    assert f"pushed {plan.parent}/run/export/hf to org/name (private), branch main" in outcome.stdout
    written = b"".join(files_in(plan.parent / "run").values())
    assert TOKEN.encode() not in written
    assert TOKEN not in outcome.stdout + outcome.stderr


@pytest.mark.slow
def test_a_push_that_fails_ends_no_run_and_the_printed_command_pushes_later(plan: Path) -> None:
    with serving(PushServer(token="hf_other")) as server:
        outcome = run(plan, server.url, *RUN)
        assert outcome.code == 0, outcome.stderr
        folder = plan.parent / "run"
        command = f"planc checkpoint push {folder}"
        what = f"push {folder}/export/hf to org/name (private), branch main"
        text = f"warning: cannot {what}: the Hub does not accept the token (401)"
        assert text in outcome.stdout + outcome.stderr
        assert (
            f"`{command}` pushes it later (training does not depend on it)" in outcome.stdout + outcome.stderr
        )
        assert status(plan)["state"] == "done"
        assert status(plan)["failed_attempts"] == {what: 1}
        server.token = TOKEN
        later = start(sys.executable, "-m", *command.split(), environment=_env(server.url))
    assert later.code == 0, later.stderr
    exported = files_in(folder / "export" / "hf")
    assert {name: server.branches["main"][name] for name in exported} == exported


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids requests to the Hub"),
        ({"HF_TOKEN": ""}, "no token for the Hub is set"),
    ],
    ids=["offline", "no token"],
)
def test_what_can_not_push_does_not_train(plan: Path, others: Mapping[str, str], text: str) -> None:
    with serving(PushServer()) as server:
        outcome = run(plan, server.url, *RUN, **others)
    assert outcome.code == 2
    assert f"this machine can't push the plan's exports: {text} [P946]" in outcome.stderr
    line = 1 + plan.read_text().splitlines().index('  export "hf" { push = hub("org/name") }')
    assert f"x.plan:{line}:" in outcome.stderr
    assert server.requests == []
    assert status(plan)["state"] == "failed"
    assert not (plan.parent / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_signal_ends_a_push_that_hangs_and_the_run_is_done(plan: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    command = (*RUN, str(plan), "--run-dir", str(plan.parent / "run"))
    with serving(PushServer(is_mute=True)) as server:
        environment = {**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **_env(server.url)}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        with patient(process, "the end of the run", seconds=WAIT_SECONDS):
            wait_until(lambda: bool(server.requests), "the first request of the push")
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate()
    assert process.returncode == 0, output
    assert time.monotonic() - began < WAIT_SECONDS / 2
    assert "the push was stopped; `planc checkpoint push" in output
    assert status(plan)["state"] == "done"


@pytest.mark.slow
def test_a_run_started_again_at_its_end_pushes_what_failed_before(plan: Path) -> None:
    with serving(PushServer(token="hf_other")) as server:
        codes = [run(plan, server.url, *RUN).code]
        assert server.commits == []
        server.token = TOKEN
        codes.append(run(plan, server.url, *RUN).code)
    assert codes == [0, 0]
    exported = files_in(plan.parent / "run" / "export" / "hf")
    assert {name: server.branches["main"][name] for name in exported} == exported
