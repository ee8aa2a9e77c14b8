"""A key of the environment is in nothing that planc prints or writes, whatever goes wrong."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from planc.outgoing import guard
from tests.launch.processes import Outcome, free_port, start
from tests.parity.cases import Case, make_workspace, plan_text

KEY = "hf_SENTINEL_of_nobody"
OTHER_KEY = "0123456789SENTINEL"
ENVIRONMENT = {
    "HF_TOKEN": KEY,
    "HUGGING_FACE_HUB_TOKEN": KEY,
    "WANDB_API_KEY": OTHER_KEY,
    "HF_HUB_OFFLINE": "1",
    "PLANC_DEBUG": "1",
}
PLAN = Path(__file__).parents[2] / "plans" / "quickstart.plan"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("secrets") / "workspace")
    (folder / "one.plan").write_text(plan_text(Case("1"), saves=True), encoding="utf-8")
    return folder


def planc(*arguments: str, **more: str) -> Outcome:
    return start(sys.executable, "-m", "planc", *arguments, environment={**ENVIRONMENT, **more})


def shows(outcome: Outcome, folder: Path | None = None) -> list[str]:
    """Where a key stands: in the output, or in files below a folder."""
    texts = {"stdout": outcome.stdout.encode(), "stderr": outcome.stderr.encode()}
    if folder is not None:
        texts |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [name for name, text in texts.items() if b"SENTINEL" in text]


LAUNCHES = (
    ("--nodes", "1"),
    ("--form", "accelerate", "--nodes", "1"),
    ("--form", "slurm", "--nodes", "1", "--cpus-per-node", "4"),
    (
        *("--form", "kubernetes", "--nodes", "1", "--image", "x", "--run-dir", "/r/x"),
        *("--volume", "c:/r"),
    ),
)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", str(PLAN), "--hf-token", KEY),
        ("check", str(PLAN), "--set", f'x.y = "{KEY}"'),
        ("check", f"{KEY}.plan", "--output-format", "json"),
        ("explain", OTHER_KEY),
        ("show", f"{KEY}.plan"),
        ("run", f"{KEY}.plan", "--debug"),
        ("checkpoint", "ls", f"/{KEY}/x"),
        ("doctor", str(PLAN)),
    ],
    ids=lambda arguments: " ".join(arguments[:3]).replace(str(PLAN), "PLAN"),
)
def test_a_key_is_not_shown(arguments: Sequence[str]) -> None:
    outcome = planc(*arguments)
    assert outcome.stdout + outcome.stderr
    assert shows(outcome) == []


@pytest.mark.parametrize("form", LAUNCHES, ids=lambda form: form[1])
def test_what_starts_a_plan_holds_no_key(form: Sequence[str]) -> None:
    outcome = planc("launch", str(PLAN), "--set", "mesh.backend=gloo", *form)
    assert outcome.code == 0, outcome.stderr
    assert PLAN.name in outcome.stdout
    assert shows(outcome) == []


def test_a_compiled_plan_holds_no_key(tmp_path: Path) -> None:
    outcome = planc("compile", str(PLAN), "-o", str(tmp_path / "x.planc.json"))
    assert outcome.code == 0, outcome.stderr
    assert shows(outcome, tmp_path) == []


def test_a_run_leaves_no_key(workspace: Path, tmp_path: Path) -> None:
    outcome = planc("run", str(workspace / "one.plan"), "--run-dir", str(tmp_path / "run"))
    assert outcome.code == 0, outcome.stderr
    assert (tmp_path / "run" / "metrics.jsonl").is_file()
    assert shows(outcome, tmp_path) == []


def test_a_run_that_fails_leaves_no_key(workspace: Path, tmp_path: Path) -> None:
    world = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": KEY}
    world |= {"MASTER_ADDR": KEY, "MASTER_PORT": str(free_port())}
    errors = tmp_path / "errors.json"
    command = ("run", str(workspace / "one.plan"), "--run-dir", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    outcome = planc(*command, **world, TORCHELASTIC_ERROR_FILE=str(errors))
    assert outcome.code == 2
    assert "LOCAL_RANK = '***' is not a number" in outcome.stderr
    assert "LOCAL_RANK" in errors.read_text(encoding="utf-8")
    assert "LOCAL_RANK" in (tmp_path / "run" / "status.json").read_text(encoding="utf-8")
    assert shows(outcome, tmp_path) == []


def test_a_traceback_shows_no_key(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "from planc.cli import main\n"
        "from planc.cli.commands import explain\n"
        "def fail(arguments): raise ConnectionError('https://user:' + os.environ['HF_TOKEN'] + '@host')\n"
        "explain.run = fail\n"
        "raise SystemExit(main.main(['explain', '--debug']))\n"
    )
    outcome = start(sys.executable, "-c", program, environment=ENVIRONMENT)
    assert "ConnectionError: https://user:***@host" in outcome.stderr
    assert "Traceback" in outcome.stderr
    assert shows(outcome) == []


def test_what_is_too_short_for_a_key_is_shown() -> None:
    stream = io.StringIO()
    guard(stream, environment={"WANDB_API_KEY": "x"})
    stream.write("x\n")
    assert stream.getvalue() == "x\n"
