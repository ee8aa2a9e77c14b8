"""Commands outside of sessions: the examples of every `--help`, and those in the prose of documents."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from planc.cli.main import COMMANDS
from planc.diagnostics.pages import pages
from tests.docs.pages import ROOT, inline_code, written_pages
from tests.docs.prepare import text
from tests.docs.sessions import run, workspace
from tests.docs.test_tour import WHOLE
from tests.patience import WAIT_SECONDS
from tests.plans import PLANS

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

SMALL = """\
model {
  hf = "plans/models/tiny-llama"
}

mesh {
  dp_shard = 1
}

tensor_parallel on tp {
  auto
}

data {
  source = text("data/*.txt")
  sequence_length = 64
  micro_batch = 1

  eval "held" {
    source = text("data/*.txt")
    every = 4 steps
    sequences = 4
  }
}

optimizer {
  kind = adamw(lr = 1e-3)
}

checkpoint {
  save_every = 1 steps
}

train {
  steps = 4
}
"""
"""`llama.plan` for what trains, in a folder with a run of it."""
STUDENT = SMALL.replace(
    "  steps = 4\n",
    '  steps = 4\n  loss = distillation(teacher = "teacher", logits = "stored", top_k = 4)\n',
)
"""`student.plan`, with an export of that run as its teacher."""

NOT_RUN = {
    "planc calibrate llama.plan runs/llama --gpu h100"
    ' --machine "cluster a, 8 x H100" -o cluster-a.json': "needs a run on GPUs",
    "planc new models/llama-3.1-8b": "asks at a terminal",
    "planc verify llama.plan --backend nccl": "needs CUDA devices",
    "srun --ntasks-per-node 1 planc doctor llama.plan --world-size 64": "needs a Slurm cluster",
    "planc inventory hf://org/name@0123456789abcdef0123456789abcdef01234567": "needs the network",
    "torchrun --nproc-per-node 4 -m planc.run plans/quickstart.plan": "run by .ci/run",
    "torchrun --nproc-per-node 4 -m planc eval runs/llama": "needs a run on 4 ranks",
    "planc eval exports/llama --plan llama.plan": "needs an export",
    'planc sample exports/llama "Once" --max-new-tokens 20 --output-format json': "needs an export",
    'planc sample runs/summaries "A long article, of which a summary is wanted."': "needs an encoder-decoder",
    "planc checkpoint push runs/llama": "needs the network",
}
"""Examples of `--help` that nothing runs here, and why."""

SHORTER = {
    "step-500": "step-4",
    "--nproc-per-node 8 -m planc teacher": "--nproc-per-node 2 -m planc teacher",
    "tune llama.plan --gpus 64 --gpu h100": "tune llama.plan --gpus 2 --gpu h100 --tokens-per-step 256",
    "--gpus 8 --gpu h100 --tokens-per-step 131072": "--gpus 2 --gpu h100 --tokens-per-step 8192",
    "models/llama-3.1-8b": "models/tiny-llama",
    "doctor llama.plan --run-dir /shared/": "doctor llama.plan --run-dir shared/",
    "planc.run plans/launch-one-process.plan": "planc.run plans/launch-one-process.plan --stop-after 1",
}
"""What is put in place of a part of an example: a step that the run has, a folder that it may write, a search
that is short."""

CONFIGS = {
    "llama3_8b.toml": "torchtitan/plain.toml",
    "zero3.json": "deepspeed/numbers_zero3.json",
    "arguments.json": "training-arguments/linear_ratio.json",
    "accelerate.yaml": "accelerate/full_shard.yaml",
    "recipe.yaml": "axolotl/local_file.yaml",
}
"""Configs that examples import."""
LORA = """\
base_model: org/base
datasets:
  - path: data/chats.jsonl
    type: chat_template
    field_messages: messages
adapter: lora
lora_r: 8
lora_alpha: 16
lora_target_linear: true
load_in_8bit: true
sequence_len: 256
micro_batch_size: 1
learning_rate: 1.0e-04
"""

ROWS = {
    "reviews.jsonl": '{"text": "fine", "label": "good"}\n{"text": "dull", "label": "bad"}\n',
    "pairs.jsonl": '{"query": "who?", "positive": "Ada"}\n' * 4,
    "rows.jsonl": '{"input": "a long text", "target": "a text"}\n' * 4,
}
CALIBRATION = """\
{
  "format_version": 3,
  "machine": "cluster a",
  "device": "h100",
  "date": "2026-11-22",
  "compute_scale": 1.5,
  "communication_scale": null,
  "launch_seconds": null
}
"""


def examples() -> list[tuple[str, str]]:
    """The name of a command, and each example of its help, without what stands in brackets behind it."""
    found = []
    for command in COMMANDS:
        epilog = str(command.module().EPILOG).replace("\\\n", " ")
        for line in epilog.splitlines():
            if re.match(r"  (planc|torchrun|python|srun|git|make) ", line):
                found.append((command.name, " ".join(re.sub(r" {2,}\(.*\)$", "", line).split())))
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two repositories with a `llama.plan`: the 8B model on 64 devices, and a small one that has been run."""
    return large(tmp_path_factory.mktemp("large")), small(tmp_path_factory.mktemp("small"))


def large(folder: Path) -> Path:
    workspace(folder)
    plan = (PLANS / "llama-3.1-8b.plan").read_text()
    plan = plan.replace('"models/', '"plans/models/').replace('"presets/', '"plans/presets/')
    plan = plan.partition("expect {")[0] + "hardware {\n  gpu = h100\n}\n"
    for name in ("llama.plan", "old.plan"):
        (folder / name).write_text(plan)
    (folder / "tour.plan").write_text(WHOLE)
    (folder / "new.plan").write_text(plan.replace("steps = 40_000", "steps = 40_000\n  log_every = 7 steps"))
    (folder / "plans" / "llama.plan").write_text((PLANS / "llama-3.1-8b.plan").read_text())
    quickstart = (PLANS / "quickstart.plan").read_text()
    (folder / "h100.json").write_text(CALIBRATION)
    (folder / "cluster-a.json").write_text(CALIBRATION)
    (folder / "quickstart.plan").write_text(quickstart.replace('"models/', '"plans/models/'))
    (folder / "pipeline.plan").write_text('extends "plans/launch-pp2-dp2.plan"\n')
    return repository(folder)


def small(folder: Path) -> Path:
    workspace(folder)
    text(folder / "data" / "text.txt")
    (folder / "llama.plan").write_text(SMALL)
    (folder / "cluster-a.json").write_text(CALIBRATION)
    printed, code = run("planc run llama.plan", folder)
    assert code == 0, printed
    (folder / "student.plan").write_text(STUDENT)
    printed, code = run("planc checkpoint export runs/llama --hf teacher", folder)
    assert code == 0, printed
    for name in ("a", "b", "x"):
        shutil.copytree(folder / "runs" / "llama", folder / "runs" / name)
    printed, code = run("planc checkpoint convert runs/llama --dcp exports/llama-dcp", folder)
    assert code == 0, printed
    shutil.move(folder / "exports", folder / "converted-before")
    (folder / "exports").mkdir()
    return repository(folder)


def repository(folder: Path) -> Path:
    """A git repository with the branches that examples name, and the folders that they write into."""
    identity = "-c user.name=x -c user.email=x@example.org"
    script = (
        "git init -q -b main . && printf 'plans/models\\nruns\\n' > .gitignore && git add -A"
        f" && git {identity} commit -qm x && git update-ref refs/remotes/origin/main HEAD"
        " && mkdir -p home/.zfunc home/.config/fish/completions"
        " home/.local/share/bash-completion/completions models"
        " && cp -r plans/models/llama-3.1-8b plans/models/tiny-llama models/"
    )
    subprocess.run(["bash", "-c", script], cwd=folder, check=True, capture_output=True, timeout=WAIT_SECONDS)
    for name, config in CONFIGS.items():
        shutil.copy(ROOT / "tests" / "import_configs" / "configs" / config, folder / name)
    (folder / "lora.yaml").write_text(LORA, encoding="utf-8")
    for name, rows in ROWS.items():
        (folder / name).write_text(rows, encoding="utf-8")
    return folder


_SMALL = ("--deep", "--data")


def is_small(name: str, command: str) -> bool:
    trains = name in (
        *("verify", "run", "runs", "sweep", "doctor", "checkpoint", "calibrate", "data"),
        *("eval", "sample", "teacher", "tune"),
    )
    return (
        trains
        or (name in ("diff", "report") and " runs" in command)
        or any(word in command for word in _SMALL)
    )


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(("name", "command"), examples(), ids=lambda text: text)
def test_an_example_of_help_runs(
    name: str, command: str, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if command in NOT_RUN:
        pytest.skip(NOT_RUN[command])
    folder = folders[is_small(name, command)]
    for part, other in SHORTER.items():
        command = command.replace(part, other)
    if "--planc converted" in command and not (folder / "exports" / "llama-dcp").exists():
        (folder / "exports" / "llama-dcp").symlink_to(folder / "converted-before" / "llama-dcp")
    monkeypatch.setenv("HOME", str(folder / "home"))
    printed, code = run(command, folder)
    assert code == 0, printed


def test_only_these_examples_do_not_run() -> None:
    commands = [command for _, command in examples()]
    assert [command for command in NOT_RUN if command not in commands] == []


FILLED = {
    "planc check --deep": "planc check --deep llama.plan",
    "planc check --data": "planc check --data llama.plan",
    "planc data show": "planc data show llama.plan",
    "planc data show PLAN --row N": "planc data show llama.plan --row 1",
    "planc estimate --gpu h100": "planc estimate llama.plan --gpu h100",
    "planc estimate --calibration FILE": "planc estimate llama.plan --gpu h100",
    "planc checkpoint push": "planc checkpoint push --help",
    "planc checkpoint convert": "planc checkpoint convert runs/llama --dcp plain",
    "planc checkpoint verify": "planc checkpoint verify runs/llama",
    "planc data prepare": "planc data prepare llama.plan",
    "planc data verify": "planc data verify llama.plan",
    "planc check --fix": "planc check --fix llama.plan",
    "planc check --fix --unsafe-fixes": "planc check --fix --unsafe-fixes llama.plan",
    "planc check plans/NAME.plan": "planc check plans/quickstart.plan",
    "planc show --layout": "planc show llama.plan --layout",
    "planc show PLAN --pipeline": "planc show pipeline.plan --pipeline",
    "planc show --resolved": "planc show llama.plan --resolved",
    "planc checkpoint export": "planc checkpoint export runs/llama --hf tuned",
    "planc inventory MODEL_DIR --save": "planc inventory models/tiny-llama --save",
    "planc inventory DIR --save": "planc inventory models/tiny-llama --save",
    "planc new --example NAME": "planc new --example gemma-2b",
    "planc new MODEL --for embedding --data pairs.jsonl": "planc new tiny-bert --yes --gpu cpu --gpus 1 "
    "--for embedding --data pairs.jsonl -o embedding.plan",
    "planc new MODEL --for seq2seq_lm --data rows.jsonl": "planc new tiny-bart-encoder-decoder --yes "
    "--gpu cpu --gpus 1 --for seq2seq_lm --data rows.jsonl -o summaries.plan",
    "planc new MODEL --for sequence_classification --data reviews.jsonl": "planc new tiny-bert --yes "
    "--gpu cpu --gpus 1 --for sequence_classification --data reviews.jsonl -o reviews.plan",
    "planc new MODEL --for image_text_to_text --data rows.jsonl": "planc new --help",
    "planc new MODEL --for preferences": "planc new --help",
    "planc new MODEL --for embedding": "planc new --help",
    "planc new MODEL --for masked_lm": "planc new --help",
    "planc diff RUN PLAN": "planc diff runs/llama llama.plan",
    "planc doctor PLAN --world-size 64": "planc doctor llama.plan --world-size 1",
    "planc report RUN -o FILE": "planc report runs/llama -o page.html",
    "planc report runs/lr -o lr.html": "planc report runs/llama -o lr.html",
    "planc tune PLAN --gpus 64 --gpu h100": "planc tune llama.plan --gpus 2 --gpu h100 --tokens-per-step 256",
    "planc checkpoint export RUN --hf DIR": "planc checkpoint export runs/llama --hf tuned-again",
}
"""Commands of the prose that leave out what they are given, as whole ones."""
PLACEHOLDERS = {"PLAN": "llama.plan", "RUN": "runs/llama", "FILE": "page.html", "MODEL": "models/tiny-llama"}


def prose_commands() -> list[str]:
    """Each command in the prose of documents and of the pages of codes; `planc check` alone is but a name."""
    explain, symptoms = (ROOT / "planc" / "diagnostics" / name for name in ("explain", "symptoms"))
    codes = (explain / f"{code}.md" for code in pages())
    documents = (*written_pages(), PLANS / "README.md", *codes, *symptoms.glob("*.md"))
    names = {f"planc {command.name}" for command in COMMANDS}
    inline = (code for page in documents for code in inline_code(page))
    found = {code for code in inline if code.startswith(("planc ", "make "))}
    return sorted(found - names)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("command", [one for one in prose_commands() if one.startswith("planc ")])
def test_a_command_of_the_prose_runs(command: str, folders: tuple[Path, Path]) -> None:
    folder = folders[is_small(command.split()[1], FILLED.get(command, command))]
    whole = FILLED.get(command) or " ".join(PLACEHOLDERS.get(word, word) for word in command.split())
    printed, code = run(whole, folder)
    assert code == 0, f"`{whole}`: {printed}"


@pytest.mark.parametrize("command", [one for one in prose_commands() if one.startswith("make ")])
def test_a_target_of_the_prose_exists(command: str) -> None:
    """What they do takes minutes to hours; .ci/run runs `make quickstart` and `make test`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(command.split()[1])}:", makefile, re.MULTILINE)
