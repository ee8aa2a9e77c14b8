"""Runs on several nodes, started by the commands that `planc launch` prints. The nodes are one machine's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launch.processes import Outcome, free_port, start
from tests.parity.cases import TP2_REPLICATE2, Case, make_workspace, plan_text
from tests.parity.reference import train_reference, write_weights
from tests.patience import WAIT_SECONDS

TWO_RANKS = Case("DP2", "", {"dp_shard": 2}, weights="pretrained")
BIN = Path(sys.executable).parent
"""Where torchrun and accelerate are, of which the printed commands are words."""

needs_accelerate = pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("nodes") / "workspace", ("llama",))
    write_weights(folder / "llama")
    (folder / "two.plan").write_text(plan_text(TWO_RANKS), encoding="utf-8")
    (folder / "four.plan").write_text(
        plan_text(Case("TP2·DP2", "", TP2_REPLICATE2, weights="pretrained")), encoding="utf-8"
    )
    return folder


def commands(plan: Path, *options: str) -> list[str]:
    """What `planc launch` prints for a plan."""
    done = start(sys.executable, "-m", "planc", "launch", str(plan), *options)
    assert done.code == 0, done.stderr
    return done.stdout.splitlines()


def together(*lines: str) -> list[Outcome]:
    """Each line in a shell of its own, all at once."""
    environment = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    with ThreadPoolExecutor(len(lines)) as threads:
        return list(threads.map(lambda line: start("bash", "-c", line, environment=environment), lines))


def require_equal(run: Path, *, workspace: Path, num_steps: int = 6) -> None:
    """Every step of a run has the loss and the gradient norm of one process in plain PyTorch."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    reference = train_reference("llama", workspace=workspace)
    assert [line["loss"] for line in lines] == pytest.approx(reference.losses[:num_steps], rel=1e-5)
    assert [line["grad_norm"] for line in lines] == pytest.approx(reference.grad_norms[:num_steps], rel=1e-5)


@pytest.mark.slow
def test_two_jobs_of_two_nodes_run_side_by_side(workspace: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "first", tmp_path / "second"]
    lines = [
        line
        for run in runs
        for line in commands(
            workspace / "two.plan",
            *("--nodes", "2", "--rdzv-endpoint", f"localhost:{free_port()}", "--run-dir", str(run)),
        )
    ]
    assert len(lines) == 4
    outcomes = together(*lines)
    for outcome in outcomes:
        assert outcome.code == 0, outcome.stderr
    for first, second in (outcomes[:2], outcomes[2:]):
        assert "mesh       dp_shard=2  (2 ranks, cpu, gloo)" in first.stdout
        assert "model: LlamaForCausalLM, " in first.stdout
        assert second.stdout == "", "rank 0 speaks for all"
    for run in runs:
        require_equal(run, workspace=workspace)


@pytest.mark.slow
def test_two_nodes_of_two_ranks_train_as_one_process(workspace: Path, tmp_path: Path) -> None:
    endpoint = ("--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    plan = workspace / "four.plan"
    lines = commands(plan, "--nodes", "2", *endpoint, "--run-dir", str(tmp_path / "run"))
    for outcome in together(*lines):
        assert outcome.code == 0, outcome.stderr
    require_equal(tmp_path / "run", workspace=workspace)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them, and no other network: 10.77.0.1 and 10.77.0.2."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces take root and iproute2")
    names = (f"planc-a-{os.getpid()}", f"planc-b-{os.getpid()}")
    cable = ("link", "add", "cable0", "netns", names[0], "type", "veth", "peer", "cable0", "netns", names[1])
    try:
        for name in names:
            if not _ip("netns", "add", name):
                pytest.skip("this machine lets nobody make network namespaces")
        assert _ip(*cable)
        for number, name in enumerate(names, 1):
            assert _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "cable0")
            assert _ip("-n", name, "link", "set", "cable0", "up")
            assert _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            _ip("netns", "del", name)


def _ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True, timeout=WAIT_SECONDS).returncode == 0


@pytest.mark.slow
def test_two_hosts_with_networks_of_their_own_train_as_one_process(
    workspace: Path, tmp_path: Path, hosts: tuple[str, str]
) -> None:
    lines = commands(
        workspace / "two.plan",
        *("--nodes", "2", "--rdzv-endpoint", "10.77.0.1:29500", "--run-dir", str(tmp_path / "run")),
    )
    # A host's name does not lead to this cable, which is what gloo would go by.
    there = [
        f"GLOO_SOCKET_IFNAME=cable0 ip netns exec {host} {line}"
        for host, line in zip(hosts, lines, strict=True)
    ]
    for outcome in together(*there):
        assert outcome.code == 0, outcome.stderr
    require_equal(tmp_path / "run", workspace=workspace)


@needs_accelerate
@pytest.mark.slow
def test_accelerate_trains_as_torchrun_does(workspace: Path, tmp_path: Path) -> None:
    options = ("--form", "accelerate", "--nodes", "1", "--run-dir", str(tmp_path / "run"))
    (line,) = commands(workspace / "two.plan", *options)
    (outcome,) = together(line)
    assert outcome.code == 0, outcome.stderr
    require_equal(tmp_path / "run", workspace=workspace)


@needs_accelerate
def test_accelerate_that_starts_one_process_is_no_run_of_one_rank(workspace: Path) -> None:
    plan = workspace / "two.plan"
    (outcome,) = together(f"accelerate launch --cpu --num_processes 2 -m planc.run {plan}")
    assert outcome.code == 1, "accelerate's own code"
    assert "returned non-zero exit status 2" in outcome.stderr
    assert "error[P301]" in outcome.stderr
    assert "dp_shard = 2 needs 2 ranks; the world size is 1" in outcome.stderr
    assert f"start it with: torchrun --standalone --nproc-per-node 2 -m planc.run {plan}" in outcome.stderr
    assert "step " not in outcome.stdout
