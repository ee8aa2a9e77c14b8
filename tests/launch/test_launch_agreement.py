"""All ranks agree on what decides a run beside its plan: files, versions, environment, settings."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import planc
from tests.data.conversing import TALK, save_talks, save_tokenizer
from tests.launch.processes import Outcome, free_port, start
from tests.plans import PLANS, write_plan

OPENED = str(Path(__file__).parent / "opened_run.py")
HOST = socket.gethostname()
PLAN = """\
model {
  hf = "model"
  weights = pretrained
}

mesh {
  dp_shard = 2
}

fsdp on dp_shard {
  "model.layers.*" -> unit
}

data {
  source = chat("data/*.jsonl")
  packing = attend
  tokenizer = file("tokenizer", end_of_document = "<|endoftext|>")
  sequence_length = 16
  micro_batch = 1
  eval "held_out" { source = text("held_out/*.txt"), every = 1 steps }
  eval "records" { source = hf_dataset("records.jsonl"), every = 1 steps }
}

optimizer {
  kind = adamw(lr = 1e-3)
}

checkpoint {
  save_every = 1 steps
}

train {
  steps = 1
  tokens_per_step = 32
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that a run may read beside its plan."""
    folder = tmp_path_factory.mktemp("agreement") / "own"
    for name in ("data", "held_out", "model"):
        (folder / name).mkdir(parents=True)
    save_talks(folder / "data" / "a.jsonl", *[TALK] * 6)
    (folder / "held_out" / "a.txt").write_text("Nothing of this is trained on. " * 3)
    (folder / "records.jsonl").write_text("\n".join([json.dumps({"text": "A record of its own."})] * 4))
    save_tokenizer(folder / "tokenizer", has_config=False)
    config = json.loads((PLANS / "models" / "tiny-llama" / "config.json").read_text(encoding="utf-8"))
    (folder / "model" / "config.json").write_text(json.dumps({**config, "vocab_size": 320}))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model"))
    model.to(torch.float32).save_pretrained(folder / "model")
    write_plan(folder, text=PLAN)
    return folder


def two_ranks(*folders: Path, run_folder: Path, of_rank_1: dict[str, str] | None = None) -> list[Outcome]:
    """How two ranks end that were started in folders of their own, the second with more environment."""
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def start_rank(rank: int) -> Outcome:
        environment = {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        environment |= (of_rank_1 or {}) if rank else {}
        command = (sys.executable, "-m", "planc.run", str(folders[rank] / "x.plan"))
        return start(*command, "--run-dir", str(run_folder), environment=environment)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(start_rank, range(2)))


def test_one_byte_of_one_ranks_data_ends_the_run_before_its_first_step(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    path = other / "held_out" / "a.txt"
    path.write_bytes(path.read_bytes().replace(b"trained", b"Trained", 1))
    for outcome in two_ranks(folder, other, run_folder=tmp_path / "run"):
        assert outcome.code == 2
        files = [one / "held_out" / "a.txt" for one in (other, folder)]
        ours, theirs = (hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in files)
        wanted = f"is sha256 {ours} on rank 1 ({HOST}), and sha256 {theirs} on the other rank"
        assert f"x.plan:20:21: ranks differ: `held_out/a.txt` {wanted}\nhelp: " in outcome.stderr
        assert "Traceback" not in outcome.stderr
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 2)
    assert [one["rank"] for one in status["differing"]] == [1]
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_versions_environment_and_settings_are_compared(folder: Path, tmp_path: Path) -> None:
    shim = tmp_path / "shim"
    (shim / "pyarrow-1.2.3.dist-info").mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: pyarrow\nVersion: 1.2.3\n"
    (shim / "pyarrow-1.2.3.dist-info" / "METADATA").write_text(metadata)
    more = {
        "NVIDIA_TF32_OVERRIDE": "1",
        "OMP_NUM_THREADS": "2",
        "ATEN_CPU_CAPABILITY": "default",
        "PYTHONPATH": os.pathsep.join((str(shim), str(Path(planc.__file__).parents[1]))),
    }
    for outcome in two_ranks(folder, folder, run_folder=tmp_path / "run", of_rank_1=more):
        assert outcome.code == 2
        here = f"on rank 1 ({HOST}), and "
        for wanted in (
            f"pyarrow is 1.2.3 {here}",
            f"`NVIDIA_TF32_OVERRIDE` is 1 {here}unset on the other rank",
            f"the number of threads is 2 {here}1 on the other rank",
            f"the CPU capability is DEFAULT {here}",
        ):
            assert wanted in outcome.stderr, outcome.stderr
        assert "the same environment" in outcome.stderr
    assert not (tmp_path / "run").exists()


LEADS_TO_THE_GRAPH = ("model/config.json", "model/inventory.json", "x.plan")
"""What compiling reads: ranks compare the graph that comes of it."""
ELSEWHERE = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib")
"""The system's own."""


def test_every_file_that_a_run_opens_before_step_1_is_agreed_on(folder: Path, tmp_path: Path) -> None:
    """But for code, which versions and planc's own digest speak for, and what the system has of its own."""
    opened = tmp_path / "opened.json"
    cache = tmp_path / "cache"
    environment = {"OPENED": str(opened), "PLANC_CACHE": str(cache), "HF_HOME": str(cache)}
    outcome = start(
        *(sys.executable, OPENED, str(folder / "x.plan"), "--set", "mesh.dp_shard=1"),
        *("--run-dir", str(tmp_path / "run")),
        environment=environment,
    )
    assert outcome.code == 0, outcome.stderr
    found = json.loads(opened.read_text())
    digests = {value for _, _, value in found["entries"]}
    names = {name for kind, name, _ in found["entries"] if kind in ("text", "weights")}
    folders = [sysconfig.get_path("stdlib"), *(one for one in sys.path if one.endswith("-packages"))]
    installed = {Path(one).resolve() for one in folders}
    roots = (*installed, Path(planc.__file__).parents[1], tmp_path / "run", cache, *map(Path, ELSEWHERE))
    unexplained = [
        path
        for path in map(Path, found["opened"])
        if path.is_file()
        and not any(path.is_relative_to(root) for root in roots)
        and path not in [(folder / name).resolve() for name in LEADS_TO_THE_GRAPH]
        and hashlib.sha256(path.read_bytes()).hexdigest() not in digests
        and not any(str(path).endswith(f"/{name}") for name in names)
    ]
    assert unexplained == []
    # The test sees what it is to see.
    seen = {Path(path).name for path in found["opened"]}
    assert {"a.jsonl", "a.txt", "tokenizer.json", "chat_template.jinja", "model.safetensors"} <= seen
