"""What `planc launch` prints, and what it refuses to print."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from planc.cli.main import main
from planc.launchers.job import Job, LaunchError, Nodes, job_of
from planc.launchers.kubernetes import KubernetesOptions, kubernetes_manifest
from planc.launchers.slurm import SlurmOptions, slurm_script
from tests.launch.processes import ROOT, start
from tests.parity.cases import Case, make_workspace, plan_text
from tests.patience import WAIT_SECONDS

HERE = Path(__file__).parent
TWO_NODES = "plans/launch-two-nodes.plan"
ODD = 'a plan\'s "$HOME" $(touch x) `y` \\ é \N{ROCKET}.plan'
"""A file name that means something else to every shell, to YAML and to Kubernetes."""

SLURM = ("--form", "slurm", "--cpus-per-node", "16")
KUBERNETES = ("--form", "kubernetes", "--image", "registry/train:1", "--name", "tiny")
SAVING = ("plans/quickstart.plan", "--nodes", "2", "--set", "mesh.backend=gloo")
PAIRS = ("--set", "hardware.gpu=device(memory = 80 GiB, devices_per_node = 2)")
STORAGE = ("--volume", "shared:/shared", "--run-dir", "/shared/runs/tiny")


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name in ("TP_SIZE", "DP_SIZE", "CP_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def launch(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the command prints; the test fails where it refuses."""

    def run(*arguments: str) -> str:
        code = main(["launch", *arguments])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return run


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the command says where it cannot start a plan: nothing on stdout, exit code 2."""

    def run(*arguments: str) -> str:
        code = main(["launch", *arguments])
        captured = capsys.readouterr()
        assert (code, captured.out) == (2, "")
        return captured.err

    return run


def job(*run: str, num_nodes: int = 2) -> Job:
    return job_of("tiny", nodes=Nodes(num_nodes, 2), run=run)


def manifest_of(text: str) -> tuple[dict, dict]:  # type: ignore[type-arg]
    """The Service and the Job of a manifest."""
    service, indexed = yaml.safe_load_all(text)
    return service, indexed


def test_one_node_is_one_command(launch: Callable[..., str]) -> None:
    expected = (
        "torchrun --standalone --nproc-per-node 4 --shutdown-timeout 600 -m planc.run plans/quickstart.plan\n"
    )
    assert launch("plans/quickstart.plan", "--nodes", "1") == expected


def test_every_node_has_its_own_command(launch: Callable[..., str]) -> None:
    lines = launch(TWO_NODES, "--rdzv-endpoint", "node0:29503").splitlines()
    assert lines == [
        f"torchrun --nnodes 2 --node-rank {node} --nproc-per-node 2 --shutdown-timeout 600 "
        "--rdzv-endpoint node0:29503 "
        f"-m planc.run {TWO_NODES}"
        for node in (0, 1)
    ]


def test_settings_reach_every_rank_wherever_they_come_from(
    launch: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CP_SIZE", "1")
    settings = ("--set", "optimizer.kind=adamw(lr = 1e-3)", "--run-dir", "runs/my run")
    (line, _) = launch(TWO_NODES, "--rdzv-endpoint", "h:1", *settings).splitlines()
    expected = ["--set", "mesh.cp=1", "--set", "optimizer.kind=adamw(lr = 1e-3)", "--run-dir", "runs/my run"]
    assert shlex.split(line)[-6:] == expected


def test_nodes_are_those_of_the_devices_that_the_plan_names(launch: Callable[..., str]) -> None:
    lines = launch("plans/launch-fsdp4.plan", *PAIRS, "--rdzv-endpoint", "h:1").splitlines()
    assert len(lines) == 2
    assert all("--nnodes 2" in line and "--nproc-per-node 2" in line for line in lines)


def test_an_artifact_is_launched_as_its_plan(launch: Callable[..., str], tmp_path: Path) -> None:
    artifact = tmp_path / "two.json"
    assert main(["compile", TWO_NODES, "-o", str(artifact)]) == 0
    lines = launch(str(artifact), "--nodes", "2", "--rdzv-endpoint", "h:1").splitlines()
    assert [line.split()[-1] for line in lines] == [str(artifact)] * 2


def test_accelerate_has_the_same_ranks(launch: Callable[..., str]) -> None:
    lines = launch(TWO_NODES, "--form", "accelerate", "--rdzv-endpoint", "node0:29503").splitlines()
    assert lines == [
        "env TORCH_ELASTIC_SHUTDOWN_TIMEOUT=600 "
        f"accelerate launch --multi_gpu --num_processes 4 --num_machines 2 --machine_rank {node} "
        "--main_process_ip node0 --main_process_port 29503 --mixed_precision no --dynamo_backend no "
        f"-m planc.run {TWO_NODES}"
        for node in (0, 1)
    ]


def test_slurm_script_golden(launch: Callable[..., str], match_golden: Callable[[Path, str], None]) -> None:
    more = ("--gpu", "h100", "--sbatch", "time=24:00:00", "--sbatch", "partition=gpu", *STORAGE[2:])
    match_golden(HERE / "two-nodes.sbatch", launch(TWO_NODES, *SLURM, *more))


def test_kubernetes_manifest_golden(
    launch: Callable[..., str], match_golden: Callable[[Path, str], None]
) -> None:
    more = ("--gpu", "h100", "--cpus-per-node", "16", *STORAGE)
    match_golden(HERE / "two-nodes.yaml", launch(TWO_NODES, *KUBERNETES, *more))


def test_ranks_have_the_time_to_end_that_is_asked_for(launch: Callable[..., str]) -> None:
    asked = ("--grace-seconds", "77")
    meet = ("--rdzv-endpoint", "h:1")
    assert "--shutdown-timeout 77 " in launch("plans/quickstart.plan", "--nodes", "1", *asked)
    assert launch(TWO_NODES, *meet, *asked).count("--shutdown-timeout 77 ") == 2
    accelerate = launch(TWO_NODES, "--form", "accelerate", *meet, *asked)
    assert accelerate.startswith("env TORCH_ELASTIC_SHUTDOWN_TIMEOUT=77 ")
    script = launch(TWO_NODES, *SLURM, "--gpu", "h100", *asked)
    assert "#SBATCH --signal=TERM@107" in script
    assert "--shutdown-timeout 77 " in script
    own = launch(TWO_NODES, *SLURM, "--gpu", "h100", *asked, "--sbatch", "signal=TERM@5")
    assert own.count("--signal=") == 1
    _, indexed = manifest_of(launch(TWO_NODES, *KUBERNETES, *STORAGE, "--gpu", "h100", *asked))
    pod = indexed["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 107
    assert pod["containers"][0]["args"][6:8] == ["--shutdown-timeout", "77"]


@pytest.mark.slow
def test_nodes_of_an_elastic_plan_can_meet_on_a_machine_that_is_none_of_them(
    launch: Callable[..., str], refusal: Callable[..., str], tmp_path: Path
) -> None:
    plan = make_workspace(tmp_path / "workspace", ("llama",)) / "elastic.plan"
    text = plan_text(Case("x", "", {"dp_replicate": 2, "tp": 2}, micro_batch=1), saves=True)
    text = text.replace("mesh {", "mesh {\n  devices_per_node = 2\n", 1)
    plan.write_text(text + "\nelastic on dp_replicate {\n  sizes = [1]\n}\n", encoding="utf-8")
    meet = ("--rdzv-endpoint", "store0:29500", "--meet-elsewhere")
    *nodes, store = launch(str(plan), *meet).splitlines()
    assert store == "python -m planc.rendezvous store0:29500"
    assert all("--rdzv-conf is_host=0" in line for line in nodes)
    assert "needs an elastic plan" in refusal(TWO_NODES, *meet)


def test_a_store_that_anyone_can_reach_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "plans/quickstart.plan", "--nodes", "1"]) == 0
    assert "listens on all network interfaces" in capsys.readouterr().err


def test_processors_are_asked_for_no_devices(launch: Callable[..., str]) -> None:
    on_processors = ("--set", "mesh.backend=gloo")
    assert "gpu" not in launch(TWO_NODES, *SLURM, *on_processors)
    _, indexed = manifest_of(launch(TWO_NODES, *KUBERNETES, *STORAGE, *on_processors))
    (container,) = indexed["spec"]["template"]["spec"]["containers"]
    assert "resources" not in container


@pytest.mark.parametrize(
    ("arguments", "resource"),
    [
        (("--gpu", "mi300x"), "amd.com/gpu"),
        (("--gpu", "h100"), "nvidia.com/gpu"),
        (("--set", "mesh.backend=nccl", "--gpu-resource", "nvidia.com/mig-1g.5gb"), "nvidia.com/mig-1g.5gb"),
    ],
)
def test_a_pod_asks_for_the_devices_of_the_plan(
    arguments: tuple[str, ...], resource: str, launch: Callable[..., str]
) -> None:
    _, indexed = manifest_of(launch(TWO_NODES, *KUBERNETES, *STORAGE, *arguments))
    (container,) = indexed["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {resource: 2}}


def test_pods_find_the_first_one_by_its_name(launch: Callable[..., str]) -> None:
    service, indexed = manifest_of(launch(TWO_NODES, *KUBERNETES, *STORAGE, "--gpu", "h100"))
    spec = indexed["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": indexed["metadata"]["name"]}
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    (container,) = spec["template"]["spec"]["containers"]
    words = container["args"]
    assert words[words.index("--rdzv-endpoint") + 1] == "tiny-0.tiny:29500"
    assert words[words.index("--node-rank") + 1] == "$(JOB_COMPLETION_INDEX)"


def test_a_script_of_any_names_parses() -> None:
    text = slurm_script(job(ODD), SlurmOptions(4), uses_devices=True)
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_hands_torchrun_the_words_as_they_are(tmp_path: Path) -> None:
    """Under stand-ins for Slurm's commands: srun starts a task for each node and tells it its number."""
    tools = {
        "scontrol": "#!/bin/bash\necho first-node\necho second-node\n",
        "srun": '#!/bin/bash\nshift 2\nfor node in 0 1; do SLURM_NODEID=$node "$@"; done\n',
        "torchrun": "#!/bin/bash\nprintf '%s\\n' \"$@\"\n",
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script = slurm_script(job(ODD, "--set", "a=b c"), SlurmOptions(4), uses_devices=True)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NODELIST": "unread",
    }
    done = start("bash", "-c", script, environment=environment)
    assert (done.code, done.stderr) == (0, "")
    ranks = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint", "first-node:23456"]
    ranks += ["--shutdown-timeout", "600"]
    module = ["-m", "planc.run", ODD, "--set", "a=b c"]
    assert done.stdout.splitlines() == [
        *("--node-rank", "0", *ranks, *module),
        *("--node-rank", "1", *ranks, *module),
    ]


def test_a_manifest_holds_the_words_as_they_are() -> None:
    _, indexed = manifest_of(kubernetes_manifest(job(ODD), KubernetesOptions("image")))
    (container,) = indexed["spec"]["template"]["spec"]["containers"]
    # Kubernetes reads $$ as $, and so never fills in $(...).
    assert container["args"][-1].replace("$$", "$") == ODD
    assert "$(touch" not in container["args"][-1].replace("$$", "")


def test_words_that_no_text_can_hold_are_refused() -> None:
    for word in ("a\nb", "a\x7fb", os.fsdecode(b"a\xffb")):
        with pytest.raises(LaunchError, match="unprintable characters"):
            job(word)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plans/quickstart.plan",), "per node is unknown (4 ranks in total)\nhelp: pass --nodes N"),
        (
            ("plans/quickstart.plan", "--nodes", "3"),
            "4 ranks do not fill 3 nodes evenly [P305]\nhelp: use 2 or 4 nodes",
        ),
        ((TWO_NODES,), "2 nodes need a rendezvous endpoint\nhelp: pass --rdzv-endpoint HOST:PORT"),
        ((TWO_NODES, "--nodes", "4"), "4 ranks on nodes with 2 devices need 2 nodes, not 4 [P305]"),
        (
            ("plans/launch-fsdp4.plan", *PAIRS, "--nodes", "1"),
            "1 node with 4 ranks each, but `hardware.gpu` has 2 devices per node",
        ),
        ((TWO_NODES, "--form", "slurm"), "pass --cpus-per-node N"),
        ((TWO_NODES, *SLURM), "does not set whether it runs on devices or CPUs"),
        (
            (TWO_NODES, *SLURM, "--set", "mesh.backend=gloo", "--sbatch", "a b=c"),
            "does not have the form NAME=VALUE",
        ),
        ((TWO_NODES, *SLURM, "--set", "mesh.backend=gloo", "--sbatch", "nodes=3"), "is set from the plan"),
        ((TWO_NODES, *SLURM, "--gpu", "h100", "--name", "a b"), "`a b` is not a valid name for a Slurm job"),
        ((TWO_NODES, *SLURM, "--image", "x"), "--image needs --form kubernetes"),
        ((TWO_NODES, *SLURM, "--rdzv-endpoint", "h:1"), "needs --form torchrun or accelerate"),
        ((TWO_NODES, "--form", "kubernetes"), "pass --image IMAGE"),
        ((*SAVING, *KUBERNETES), "a pod's disk is lost with the pod\nhelp: pass --volume CLAIM:/PATH"),
        ((*SAVING, *KUBERNETES, *STORAGE[:2]), "is not below /shared, which all pods share"),
        (
            (TWO_NODES, *KUBERNETES, *STORAGE, "--set", "mesh.backend=nccl"),
            "so the Kubernetes resource is unknown\nhelp: pass --gpu-resource nvidia.com/gpu",
        ),
        (
            (TWO_NODES, *KUBERNETES[:4], *STORAGE, "--gpu", "h100", "--name", "Llama-3.1"),
            "not a valid name for a Kubernetes Service: it must start with a letter, and have at most 61 "
            "lower-case letters, digits and hyphens\nhelp: pass --name llama-3-1\n",
        ),
        (("plans/launch-one-process.plan", "--form", "accelerate", "--nodes", "1"), "sets no rank"),
    ],
)  # fmt: skip
def test_what_the_plan_leaves_open_is_asked_for(
    arguments: tuple[str, ...], message: str, refusal: Callable[..., str]
) -> None:
    assert message in refusal(*arguments)


@pytest.mark.parametrize(
    "endpoint", ["host", "host:", ":1", "host:0", "host:65536", "a b:1", "host:٢", "$x:1"]
)
def test_an_endpoint_that_is_none_is_refused(endpoint: str, refusal: Callable[..., str]) -> None:
    assert "is not HOST:PORT" in refusal(TWO_NODES, "--rdzv-endpoint", endpoint)


def test_a_plan_with_errors_has_no_launch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", TWO_NODES, "--set", "mesh.devices_per_node=3"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error[P305]" in captured.err


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys\n"
        "from planc.cli.main import main\n"
        f"code = main(['launch', {TWO_NODES!r}, '--rdzv-endpoint', 'h:1'])\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'yaml'} & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    done = start(sys.executable, "-c", program)
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
