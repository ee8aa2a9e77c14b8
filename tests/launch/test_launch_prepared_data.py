"""Large data is tokenized by one process of each machine; the other ranks wait, and share its errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from planc.data_sources.kinds import TextSource
from planc.runtime.data.open import open_data
from planc.runtime.data.prepared.folder import folders
from planc.runtime.data.prepared.leftovers import unfinished
from planc.runtime.data.prepared.wanted import MAX_BYTES_OF_BYTES
from planc.runtime.data.sources import stdlib_files
from planc.runtime.data.spec import DataSpec
from tests.data.conversing import save_tokenizer
from tests.launch.processes import LAUNCHER_VARIABLES, ROOT, Outcome, free_port, start
from tests.patience import WAIT_SECONDS, wait_until
from tests.plans import PLANS, write_plan

PLAN = """\
model {
  hf = "model"
}

mesh {
  dp_shard = 2
}

fsdp on dp_shard {
  "model.layers.*" -> unit
}

data {
  source = text("data/*.txt")
  tokenizer = bytes
  sequence_length = 64
  micro_batch = 1
  packing = isolate
  shuffle_seed = 5
}

optimizer {
  kind = adamw(lr = 1e-3)
}

checkpoint {
  save_every = 2 steps
}

train {
  steps = 2
  tokens_per_step = 128
}
"""
BPE = (("tokenizer = bytes", 'tokenizer = file("tokenizer")'),)
SPEC = DataSpec(TextSource(("data/*.txt",)), "bytes", 64, 5, "isolate")


def write_text(folder: Path, *, num_bytes: int) -> None:
    folder.mkdir()
    text = b"".join(path.read_bytes() for name, path in stdlib_files() if name.startswith("asyncio/"))
    total = number = 0
    while total <= num_bytes:
        (folder / f"{number:03}.txt").write_bytes(text)
        total, number = total + len(text), number + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plan of two ranks whose bytes are too many for memory."""
    folder = tmp_path / "own"
    folder.mkdir()
    write_text(folder / "data", num_bytes=MAX_BYTES_OF_BYTES)
    (folder / "model").mkdir()
    config = json.loads((PLANS / "models" / "tiny-llama" / "config.json").read_text(encoding="utf-8"))
    (folder / "model" / "config.json").write_text(json.dumps({**config, "vocab_size": 320}))
    write_plan(folder, text=PLAN)
    return folder


def environments(*own: Mapping[str, str]) -> list[dict[str, str]]:
    """Of each rank, with the entries of its own."""
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank), **one} for rank, one in enumerate(own)]


def two_ranks(folder: Path, *, run: Path, own: tuple[Mapping[str, str], Mapping[str, str]]) -> list[Outcome]:
    command = (sys.executable, "-m", "planc.run", str(folder / "x.plan"), "--run-dir", str(run))
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda one: start(*command, environment=one), environments(*own)))


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_one_rank_prepares_and_the_next_start_finds_it(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "prepared"
    own = {"PLANC_DATA": str(root), "LOCAL_WORLD_SIZE": "2"}
    first = two_ranks(folder, run=tmp_path / "first", own=(own, own))
    assert [one.code for one in first] == [0, 0], first
    assert "of training data once, into" in first[0].stdout
    (prepared,) = folders(root)
    before = {path: path.stat().st_mtime_ns for path in prepared.iterdir()}
    second = two_ranks(folder, run=tmp_path / "second", own=(own, own))
    assert [one.code for one in second] == [0, 0], second
    assert "tokenizing" not in second[0].stdout and "data: " in second[0].stdout
    assert {path: path.stat().st_mtime_ns for path in prepared.iterdir()} == before
    assert losses(tmp_path / "first") == losses(tmp_path / "second")
    manifest = json.loads((tmp_path / "first" / "checkpoints" / "step-2" / "manifest.json").read_text())
    expected = open_data(SPEC, base=folder, model_vocab_size=320)
    assert manifest["progress"]["data_fingerprint"] == expected.fingerprint


@pytest.mark.slow
def test_every_rank_ends_with_the_error_of_the_one_that_prepares(folder: Path, tmp_path: Path) -> None:
    (folder / "data" / "999.txt").write_bytes(b"text\xff")
    own = {"PLANC_DATA": str(tmp_path / "prepared"), "LOCAL_WORLD_SIZE": "2"}
    for outcome in two_ranks(folder, run=tmp_path / "run", own=(own, own)):
        assert outcome.code == 2, outcome
        assert "x.plan:14:3: " in outcome.stderr
        assert "data/999.txt is not UTF-8 at byte 4" in outcome.stderr
        assert "help: convert the file to UTF-8" in outcome.stderr
        assert "Traceback" not in outcome.stderr
    assert not folders(tmp_path / "prepared") and not unfinished(tmp_path / "prepared")


@pytest.mark.slow
def test_each_machine_prepares_its_own(folder: Path, tmp_path: Path) -> None:
    own = [{"PLANC_DATA": str(tmp_path / name), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} for name in "ab"]
    outcomes = two_ranks(folder, run=tmp_path / "run", own=(own[0], own[1]))
    assert [one.code for one in outcomes] == [0, 0], outcomes
    ((first,), (second,)) = (folders(tmp_path / name) for name in "ab")
    assert first.name == second.name


@pytest.mark.slow
def test_a_rank_that_does_not_see_what_was_prepared_ends_the_run(folder: Path, tmp_path: Path) -> None:
    own = [{"PLANC_DATA": str(tmp_path / name), "LOCAL_WORLD_SIZE": "2"} for name in "ab"]
    for outcome in two_ranks(folder, run=tmp_path / "run", own=(own[0], own[1])):
        assert outcome.code == 4, outcome
        assert "local rank 0 has prepared data that this rank does not find" in outcome.stderr


@pytest.mark.slow
def test_a_rank_that_waits_names_the_one_that_was_killed(folder: Path, tmp_path: Path) -> None:
    save_tokenizer(folder / "tokenizer")
    write_plan(folder, text=PLAN, edits=BPE)
    root = tmp_path / "prepared"
    own = {"PLANC_DATA": str(root), "LOCAL_WORLD_SIZE": "2"}
    command = (sys.executable, "-m", "planc.run", str(folder / "x.plan"), "--run-dir", str(tmp_path / "run"))
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    ranks = [
        subprocess.Popen(
            command,
            env={**inherited, **settings, **one},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for one in environments(own, own)
    ]
    wait_until(lambda: bool(unfinished(root)), "data under preparation")
    ranks[0].send_signal(signal.SIGKILL)
    _, errors = ranks[1].communicate(timeout=WAIT_SECONDS)
    ranks[0].communicate(timeout=WAIT_SECONDS)
    assert ranks[1].returncode == 6, errors
    assert "rank 0" in errors and "Traceback" not in errors
    assert not folders(root)
