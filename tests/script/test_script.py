"""Scripts of torch's own calls, beside runs of the same plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planc.cli.main import main
from planc.graph.graph import Graph
from planc.modeling.tensor_dtypes import default_dtype
from planc.plain_pytorch.emit import script
from planc.plain_pytorch.parts_file import copied
from planc.plain_pytorch.script import NotInScript, in_one_line, listed
from planc.runtime.torch.weights.weights import initialize
from tests.bench.shapes import Shape, compile_shape, make_workspace, plan_text
from tests.patience import WAIT_SECONDS

NUM_STEPS = 12
MODELS = Path(__file__).parents[2] / "plans" / "models"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("script"))


def graph_of(shape: Shape, workspace: Path) -> Graph:
    return compile_shape(shape, num_steps=NUM_STEPS, workspace=workspace)


def launched(*arguments: str | Path, num_ranks: int, folder: Path, sees_planc: bool) -> str:
    """What torchrun's ranks print, in a folder of their own."""
    root = str(Path(__file__).parents[2])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": root} if sees_planc else {})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape({"cp": 2}), id="cp 2"),
        pytest.param(Shape({"dp_replicate": 2}), id="dp_replicate 2", marks=pytest.mark.slow),
        pytest.param(Shape({"dp_shard": 2, "tp": 2}), id="dp_shard 2 tp 2", marks=pytest.mark.slow),
    ],
)
def test_a_script_computes_what_planc_runs(shape: Shape, workspace: Path) -> None:
    folder = workspace / shape.name.replace(" ", "")
    folder.mkdir()
    plan = workspace / f"{folder.name}.plan"
    plan.write_text(plan_text(shape, num_steps=NUM_STEPS))
    assert main(["compile", str(plan), "--script", "-o", str(folder / "train.py")]) == 0
    printed = launched("train.py", num_ranks=shape.world_size, folder=folder, sees_planc=False)
    launched(
        *("-m", "planc.run", plan, "--run-dir", folder / "run"),
        num_ranks=shape.world_size,
        folder=folder,
        sees_planc=True,
    )
    told = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    metrics = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    expected = [row for row in metrics if "loss" in row]
    assert [row["step"] for row in told] == list(range(1, NUM_STEPS + 1))
    # Sums of float32 may be rounded otherwise in another order; here it is the same one.
    for name in ("loss", "grad_norm", "learning_rate"):
        assert [row[name] for row in told] == pytest.approx([row[name] for row in expected], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_a_script_draws_the_bits_that_planc_draws(name: str, dtype: torch.dtype) -> None:
    config = AutoConfig.from_pretrained(MODELS / f"tiny-{name}", dtype=dtype)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    initialize(model, seed=5)
    parts: dict[str, Any] = {}
    exec(copied("drawn_parameters"), parts)
    with default_dtype(dtype):
        found = parts["drawn_parameters"](model, seed=5)
    assert all(torch.equal(found[name], parameter) for name, parameter in model.named_parameters())


def test_a_script_is_python_that_imports_no_planc(workspace: Path) -> None:
    text = script(graph_of(Shape({"dp_shard": 2, "tp": 2}), workspace), base=".", ties=())
    compile(text, "train.py", "exec")
    assert "import planc" not in text
    assert "from planc" not in text


def test_all_that_has_no_form_in_a_script_is_named_with_its_line(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = plan_text(Shape({}), num_steps=NUM_STEPS).replace("text(", "jsonl(")
    (workspace / "data.jsonl").write_text('{"text": "' + "word " * 2000 + '"}\n')
    plan = workspace / "saved.plan"
    plan.write_text(text.replace("text.txt", "data.jsonl") + "checkpoint {\n  save_every = 5 steps\n}\n")
    output = workspace / "saved.py"
    assert main(["compile", str(plan), "--script", "-o", str(output)]) == 2
    error = capsys.readouterr().err
    assert f"{plan}:{_line(plan, 'source')}:3: data.open: " in error
    assert f"{plan}:{_line(plan, 'checkpoint {')}:" in error
    assert "checkpoint.save: this op has no plain PyTorch form" in error
    assert not output.exists()


def _line(plan: Path, word: str) -> int:
    return next(number for number, line in enumerate(plan.read_text().splitlines(), 1) if word in line)


def test_parameters_that_are_one_have_no_form_in_a_script(workspace: Path) -> None:
    graph = graph_of(Shape({}), workspace)
    with pytest.raises(NotInScript, match="a and b are one parameter"):
        script(graph, base=".", ties=(("a", "b"),))


def test_names_of_layers_are_listed_together() -> None:
    names = ["head", "layers.0.x", "layers.1.x", "layers.2.x", "layers.1.y", "layers.3.y"]
    members = ", ".join(listed(names))
    assert members == '"head", *(f"layers.{n}.x" for n in range(0, 3)), *(f"layers.{n}.y" for n in (1, 3))'
    assert sorted(eval(f"[{members}]")) == sorted(names)


def test_names_of_a_model_are_no_code() -> None:
    names = ['a"b', '{x}.0.y"z', '{x}.1.y"z', "{x}.4.w"]
    listed_in_file = f"[{', '.join(listed(names))}]"
    assert eval(listed_in_file, {"x": "code"}) == names


def test_a_plans_file_name_is_no_code() -> None:
    assert in_one_line('a"""\nimport os\\') == "a''' import os/"
