"""The layout of logits that leave a module around the head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.api import check_source
from planc.source import SourceFile
from tests.inventories import save_inventory
from tests.models.tiny import tiny_config

_PLAN = """\
model {{
  hf = "model"
  dtype = float32
}}
data {{
  source = text("corpus.txt")
  tokenizer = bytes
  sequence_length = 64
  micro_batch = 2
}}
optimizer {{
  kind = adamw(lr = 1e-3)
}}
train {{
  steps = 1
  tokens_per_step = 128
}}
mesh {{
  tp = 2
}}
tensor_parallel on tp {{
  {rules}
}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model whose `lm_head` returns what `lm_head.decoder` makes."""
    base = tmp_path_factory.mktemp("plans")
    (base / "model").mkdir()
    config = tiny_config("data2vec-text", "Data2VecTextForCausalLM")
    (base / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_inventory(base / "model")
    return base


def codes(folder: Path, output: str, *, around: str = "") -> set[str]:
    rules = f'"lm_head.decoder" -> rowwise_split_input(output = {output})\n{around}'
    checked = check_source(SourceFile("head.plan", _PLAN.format(rules=rules)), base=folder)
    return {diagnostic.code.code for diagnostic in checked.diagnostics}


def test_logits_divided_by_tokens_are_no_logits_of_the_loss_either(folder: Path) -> None:
    assert "P410" in codes(folder, "Shard(1)")
    assert "P410" not in codes(folder, "Replicate()")


def test_the_module_around_may_lay_them_out_again(folder: Path) -> None:
    around = '"lm_head" -> prepare_output(output = Shard(1), desired = Replicate())'
    assert "P410" not in codes(folder, "Shard(1)", around=around)
