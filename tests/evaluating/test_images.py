"""Commands on a run with images: evaluations, texts and exports of its checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import planc
from planc.cli.main import main
from tests.dist.test_image_training import written


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    planc.run(written(folder, "qwen2_5_vl"), run_dir=folder / "run", quiet=True)
    return folder / "run"


def test_an_evaluation_of_a_checkpoint_is_that_of_the_run(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ((logged,),) = (found for line in lines if (found := json.loads(line).get("evaluations")))
    assert main(["eval", str(run_dir), "--output-format=json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["evaluations"]
    assert found["loss"] == pytest.approx(logged["loss"], rel=1e-12)


def test_other_data_has_images_too(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_dir.parent / "others.jsonl"
    assert main(["eval", str(run_dir), "--data", f'text("{rows}")']) == 2
    assert "the model is trained on images\nhelp: write `image_chat(...)`" in capsys.readouterr().err


def test_a_checkpoint_continues_a_text_without_an_image(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for arguments in ([str(run_dir)], [str(run_dir / "export/hf"), "--bytes"]):
        assert main(["sample", *arguments, "red", "--max-new-tokens=4", "--output-format=json"]) == 0
        texts.append(json.loads(capsys.readouterr().out)["continuation"])
    assert texts[0] == texts[1]


def test_an_export_of_a_checkpoint_is_that_of_the_run(run_dir: Path, tmp_path: Path) -> None:
    assert main(["checkpoint", "export", str(run_dir), "--hf", str(tmp_path / "hf")]) == 0
    other, own = (load_file(one / "model.safetensors") for one in (tmp_path / "hf", run_dir / "export/hf"))
    assert other.keys() == own.keys() and any(name.startswith("visual.") for name in own)
    assert all(torch.equal(other[name], own[name]) for name in own)
    settings = "preprocessor_config.json"
    assert (tmp_path / "hf" / settings).read_bytes() == (run_dir.parent / "model" / settings).read_bytes()


def test_text_alone_leaves_the_encoder_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same checkpoint, as a causal language model."""
    plan = written(tmp_path, "qwen2_5_vl")
    text = re.sub(r"task = .*", "task = causal_lm", plan.read_text(encoding="utf-8"))
    text = re.sub(r"image_chat\(.*\)", 'jsonl("rows.jsonl", field = "prompt")', text)
    plan.write_text(text, encoding="utf-8")
    planc.run(plan, run_dir=tmp_path / "run")
    assert "text alone does not use the image encoder" in capsys.readouterr().out
    own, export = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "run/export/hf"))
    encoder = [name for name in own if name.startswith("visual.")]
    assert encoder and all(torch.equal(export[name], own[name].double()) for name in encoder)
    assert not torch.equal(export["lm_head.weight"], own["lm_head.weight"].double())
