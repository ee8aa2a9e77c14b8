"""Settings that a preference loss is computed with, and those that it is not, each with its reason."""

from __future__ import annotations

import pytest
from variants import Check

from planc.diagnostics import Severity

PLAN = """\
model { hf = "models/tiny-llama" }
mesh { MESH }
data {
  source = pairs("pairs.jsonl", template = none)
  sequence_length = 32
  micro_batch = 4
  DATA
}
optimizer { kind = adamw(lr = 1e-3) }
train {
  steps = 4
  loss = dpo(LOSS)
  TRAIN
}
BLOCKS
"""
CONTEXT = (
    'context_parallel on cp { rotate = ring; ["input_ids", "labels", "position_ids"] -> Shard(1) }; '
    'fsdp on cp { "model.layers.*" -> unit }'
)
HELD_OUT = 'eval "held" { source = SOURCE; every = 2 steps }'
ACCEPTED = {
    "an evaluation": {"DATA": HELD_OUT.replace("SOURCE", 'pairs("held.jsonl", template = none)')},
    "a share": {"DATA": 'eval "held" { share = 10 %; every = 2 steps; sequences = 4 }'},
    "cp": {"MESH": "cp = 2", "BLOCKS": CONTEXT},
    "pp": {"MESH": "pp = 2", "BLOCKS": "pipeline on pp { schedule = gpipe }"},
    "tp": {"MESH": "tp = 2", "BLOCKS": "tensor_parallel on tp { auto }"},
    "whole replicas": {"MESH": "dp_replicate = 2"},
    "recomputation": {"BLOCKS": 'activation_checkpoint { "model.layers.*" -> full }'},
    "compile": {"BLOCKS": 'compile { "model.layers.*" -> region }'},
    "adapters": {
        "BLOCKS": 'adapter { kind = lora(rank = 2, alpha = 4); "model.layers.*.self_attn.q_proj" -> adapted }'
    },
    "averages": {"TRAIN": "ema_decay = 0.9"},
    "chunks": {"TRAIN": "loss_chunks = 2"},
    "bad rows": {"DATA": "skip_bad = 1"},
    "a reference": {"LOSS": 'reference = "models/tiny-llama"'},
    "a reference on other machines": {"LOSS": 'reference = "runs/first/export/hf"'},
}
REFUSED = {
    "packing": ({"DATA": "packing = whole"}, "P758", "each sequence holds one text of a pair"),
    "half a pair": (
        {"DATA": 'eval "held" { share = 10 %; every = 2 steps; sequences = 3 }'},
        "P758",
        "a sequence",
    ),
    "an evaluation of texts": (
        {"DATA": HELD_OUT.replace("SOURCE", 'text("a.txt")')},
        "P757",
        "which is of pairs",
    ),
    "a reference of another architecture": (
        {"LOSS": 'reference = "models/tiny-mistral"'},
        "P759",
        "its `model_type` is mistral",
    ),
    "a reference next to adapters": (
        {"LOSS": 'reference = "models/absent"', **ACCEPTED["adapters"]},
        "P759",
        "of other weights",
    ),
    "a compiled loss": (
        {"BLOCKS": 'compile { loss = true; "model.layers.*" -> region }'},
        "P816",
        "plain cross entropy alone",
    ),
}


def written(parts: dict[str, str]) -> str:
    text = PLAN
    defaults = {"MESH": "tp = 1", "LOSS": "beta = 0.1", "DATA": "", "TRAIN": "", "BLOCKS": ""}
    for name, default in defaults.items():
        text = text.replace(name, parts.get(name, default))
    return text.replace(";", "\n")


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_preference_loss_is_computed_with(name: str, check: Check) -> None:
    checked = check(written(ACCEPTED[name]))
    assert [found.code.code for found in checked.diagnostics if found.severity is Severity.ERROR] == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_preference_loss_is_refused_with(name: str, check: Check) -> None:
    parts, code, reason = REFUSED[name]
    (found,) = (found for found in check(written(parts)).diagnostics if found.severity is Severity.ERROR)
    assert (found.code.code, reason in found.primary.text) == (code, True)
