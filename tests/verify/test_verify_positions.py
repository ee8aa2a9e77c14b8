"""Models whose positions begin behind padding's own stay such models when they are made small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from planc.api import Checked, check_source
from planc.source import SourceFile
from planc.verify.shrink import shrink
from planc.verify.verify import verify
from planc.vocab import DType
from tests.positions.sizes import sizes_of

PLAN = """\
model {
  hf = "model"
}
mesh {
  cp = 2
}
fsdp on dp_shard, cp {
  "*.encoder.layer.*" -> unit
}
context_parallel on cp {
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}
data {
  source = python_stdlib()
  sequence_length = 512
  micro_batch = 2
  packing = isolate
}
optimizer {
  kind = adamw(lr = 1e-3)
}
train {
  steps = 10
}
"""


def checked(folder: Path, *, model_type: str) -> Checked:
    """Over the whole of a model's positions: 514, of which two come before the first."""
    config = AutoConfig.for_model(model_type, **sizes_of(model_type) | {"max_position_embeddings": 514})
    config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    config.save_pretrained(folder / "model")
    found = check_source(SourceFile("case.plan", PLAN), base=folder)
    assert found.graph is not None, [str(one) for one in found.diagnostics]
    return found


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("model_type", ["camembert", "roberta", "xlm-roberta"])
def test_padding_keeps_its_id_where_positions_begin_behind_it(model_type: str, tmp_path: Path) -> None:
    plan = checked(tmp_path, model_type=model_type)
    assert plan.bound is not None and plan.graph is not None
    shrink(plan.bound, plan.graph, base=tmp_path, folder=tmp_path / "small", dtype=DType.FLOAT32)
    small = json.loads((tmp_path / "small/model/config.json").read_text(encoding="utf-8"))
    assert (small["pad_token_id"], small["max_position_embeddings"]) == (1, 66)


def test_positions_behind_the_padding_verify_over_cp(tmp_path: Path) -> None:
    plan = checked(tmp_path, model_type="roberta")
    assert plan.bound is not None and plan.graph is not None
    report = verify(plan.bound, plan.graph, base=tmp_path)
    assert report.ok, report.verdicts
