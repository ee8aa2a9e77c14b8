"""Models whose files hold more than plain weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from planc.api import NO_MODEL, check_source
from planc.source import SourceFile
from tests.plans import PLANS

PLAN = """\
model {{
  hf = "model"
  weights = {weights}
}}
data {{
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 4
}}
optimizer {{
  kind = adamw(lr = 1e-3)
}}
train {{
  steps = 10
}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a quantized model, whose inventory is known."""
    path = tmp_path / "model"
    shutil.copytree(PLANS / "models" / "tiny-llama", path)
    config = json.loads((path / "config.json").read_text()) | {"quantization_config": {"bits": 4}}
    (path / "config.json").write_text(json.dumps(config))
    (path / "inventory.json").unlink(missing_ok=True)
    return tmp_path


def test_quantized_weights_are_refused_by_a_check(folder: Path) -> None:
    checked = check_source(SourceFile("p.plan", PLAN.format(weights="pretrained")), base=folder)
    (found,) = [one for one in checked.diagnostics if one.code is NO_MODEL]
    assert "are quantized" in found.primary.text
    assert checked.graph is None


def test_a_quantized_model_may_be_trained_from_the_start(folder: Path) -> None:
    checked = check_source(SourceFile("p.plan", PLAN.format(weights="random")), base=folder)
    assert NO_MODEL not in [one.code for one in checked.diagnostics]


def test_an_adapter_in_the_folder_is_refused_by_a_check_of_pretrained_weights(folder: Path) -> None:
    (folder / "model" / "config.json").write_bytes(
        (PLANS / "models" / "tiny-llama" / "config.json").read_bytes()
    )
    (folder / "model" / "adapter_config.json").write_text("{}")
    checked = check_source(SourceFile("p.plan", PLAN.format(weights="pretrained")), base=folder)
    (found,) = [one for one in checked.diagnostics if one.code is NO_MODEL]
    assert "has an adapter" in found.primary.text
