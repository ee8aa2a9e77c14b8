"""`planc eval`: the numbers of the run, on its mesh and on one rank, on its data and on other data."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from planc.cli.main import main
from tests.evaluating.plan import TEXT
from tests.launch.processes import start
from tests.plans import PLANS, encoder_plan, write_plan
from tests.python.test_torchrun import torchrun


def logged(run_dir: Path) -> dict[str, Any]:
    """The evaluations after the run's last step, by label."""
    line = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    return {one["label"]: one for one in line["evaluations"]}


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["eval", *map(str, arguments), "--output-format=json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["eval", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def by_hand(export: Path, text: bytes, *, length: int = 32) -> float:
    """The mean cross entropy of a text of bytes and its end, in sequences of a length."""
    model = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float64)
    tokens = torch.tensor([*text, 256])
    losses: list[float] = []
    for first in range(0, len(tokens) - length, length):
        part = tokens[first : first + length + 1]
        with torch.no_grad():
            logits = model(part[None, :-1]).logits[0]
        losses += torch.nn.functional.cross_entropy(logits, part[1:], reduction="none").tolist()
    return sum(losses) / len(losses)


def test_evaluations_are_bitwise_those_of_the_run_which_is_left_as_it_was(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, expected = digests(run_dir), logged(run_dir)
    document = evaluated(capsys, run_dir)
    assert document["step"] == 2 and document["checkpoint"].endswith("step-2")
    found = {one["label"]: one for one in document["evaluations"]}
    assert found.keys() == expected.keys() == {"held", "share"}
    for label, one in found.items():
        assert (one["loss"], one["labels"]) == (expected[label]["loss"], expected[label]["labels"])
        assert one["perplexity"] == pytest.approx(math.exp(one["loss"]))
    assert digests(run_dir) == before


def test_other_data_an_export_and_a_computation_by_hand_agree(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_dir.parent
    expected = by_hand(run_dir / "export" / "hf", (folder / "held.txt").read_bytes())
    for data in (folder / "held.txt", f'text("{folder}/held.txt")'):
        (found,) = evaluated(capsys, run_dir, "--data", data)["evaluations"]
        assert found["label"] == "data" and found["loss"] == pytest.approx(expected, abs=1e-5)
    of_export = evaluated(capsys, run_dir / "export" / "hf", "--plan", folder / "x.plan")
    assert of_export["step"] is None
    assert of_export["evaluations"][0]["loss"] == pytest.approx(expected, abs=1e-5)
    assert main(["eval", str(run_dir), "--data", str(folder / "held.txt")]) == 0
    assert f"{expected:.4f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "task", "source", "given", "message"),
    [
        (
            "bart-encoder-decoder",
            "seq2seq_lm\n  dropout = false",
            'mapped("rows.jsonl")',
            'text("x.txt")',
            "rows of --data have no classes, targets, pairs or images, and the model is an encoder-decoder\n"
            "help: write `mapped(...)`",
        ),
        (
            "bert",
            "masked_lm",
            'text("x.txt")',
            'labeled("rows.jsonl")',
            "rows of --data have classes, and the model is a language model\n"
            "help: name another source, such as `text(...)`",
        ),
    ],
)
def test_data_of_another_kind_of_model_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    task: str,
    source: str,
    given: str,
    message: str,
) -> None:
    text = encoder_plan(f"models/tiny-{model}", task=task, source=source)
    head = text[text.index("model {") : text.index("mesh {")]
    plan = write_plan(tmp_path, text=head + text[text.index("data {") :])
    weights = tmp_path / "hf"
    weights.mkdir()
    shutil.copy(PLANS / f"models/tiny-{model}/config.json", weights)
    (weights / "model.safetensors").touch()
    assert message in refused(capsys, weights, "--plan", plan, "--data", given)


def test_what_can_not_be_evaluated_is_refused_with_its_reason(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no checkpoint found" in refused(capsys, tmp_path)
    assert "name it: --plan PLAN" in refused(capsys, run_dir, "--set", "mesh.tp=2")
    assert "has no plan" in refused(capsys, run_dir / "export" / "hf")
    assert "`jsnl` is not a source" in refused(capsys, run_dir, "--data", 'jsnl("x")')
    assert "--data:1:1: pattern" in refused(capsys, run_dir, "--data", "missing/*.txt")
    evaluations = TEXT[TEXT.index('\n  eval "held"') : TEXT.index("}\n\nopt")]
    without = write_plan(tmp_path, text=TEXT.replace(evaluations, ""))
    assert "no evaluation data" in refused(capsys, run_dir, "--plan", without)
    other = write_plan(tmp_path, name="other.plan", text=TEXT.replace("tiny-llama", "tiny-mistral"))
    for name in ("rows.jsonl", "held.txt"):
        shutil.copy(run_dir.parent / name, tmp_path)
    assert "another config.json" in refused(capsys, run_dir, "--plan", other)
    bad = write_plan(tmp_path, name="bad.plan", text=TEXT.replace("dtype", "dtyp"))
    assert "did you mean `dtype`?" in refused(capsys, run_dir, "--plan", bad)


def test_damage_ends_with_its_exit_code(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(run_dir / "checkpoints" / "step-2", tmp_path / "checkpoints" / "step-2")
    part = next(folder.glob("*.safetensors"))
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    assert main(["eval", str(folder), "--plan", str(run_dir.parent / "x.plan")]) == 7
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_of_any_mesh_is_evaluated_on_its_own_on_another_and_on_one_rank(
    run_dir: Path, tmp_path: Path
) -> None:
    for name in ("rows.jsonl", "held.txt"):
        shutil.copy(run_dir.parent / name, tmp_path)
    blocks = (
        'fsdp on dp_shard {\n  "model.layers.*" -> unit\n}\n\ntensor_parallel on tp {\n  auto\n}\n\n'
        "mesh {\n  dp_shard = 2\n  tp = 2\n}\n\ndata {"
    )
    plan = write_plan(tmp_path, text=TEXT.replace("data {", blocks, 1))
    folder = tmp_path / "run"
    done = torchrun("-m", "planc.run", str(plan), "--run-dir", str(folder), num_ranks=4)
    assert done.code == 0, done.stderr
    expected = logged(folder)
    evaluate = ("-m", "planc", "eval", str(folder), "--output-format=json")
    own = torchrun(*evaluate, num_ranks=4)
    other = torchrun(*evaluate, "--plan", str(plan), "--set", "mesh.dp_shard=1")
    alone = start(sys.executable, *evaluate)
    for outcome, tolerance in ((own, 0.0), (other, 1e-6), (alone, 1e-6)):
        assert outcome.code == 0, outcome.stderr
        for one in json.loads(outcome.stdout)["evaluations"]:
            assert one["loss"] == pytest.approx(expected[one["label"]]["loss"], rel=tolerance, abs=0)
    wrong = torchrun(*evaluate, num_ranks=2)
    assert wrong.code != 0 and wrong.stderr.count("start 4 or 1") >= 1


def test_averages_of_weights_are_evaluated_and_exported(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = run_dir.parent / "held.txt"
    assert main(["checkpoint", "export", str(run_dir), "--hf", str(tmp_path / "hf"), "--ema"]) == 0
    (trained,) = evaluated(capsys, run_dir, "--data", held)["evaluations"]
    (averaged,) = evaluated(capsys, run_dir, "--data", held, "--ema")["evaluations"]
    assert averaged["loss"] == pytest.approx(by_hand(tmp_path / "hf", held.read_bytes()), abs=1e-6)
    # The averages are behind the weights, whose loss falls.
    assert averaged["loss"] > trained["loss"] + 1e-3
    assert "leave out --ema" in refused(capsys, tmp_path / "hf", "--plan", run_dir.parent / "x.plan", "--ema")
