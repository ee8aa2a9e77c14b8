"""The closed form of embedding models against the rehearsal: hidden states have gradients, and no logits."""

from __future__ import annotations

import pytest

from tests.estimate.against_rehearsal import compare_text

PLAN = """\
model {{
  hf = "models/llama-3.2-1b"
  task = embedding(pooling = {pooling})
}}

mesh {{
  dp_shard = 8
}}

fsdp on dp_shard {{
  "layers.*" -> unit
{dtypes}}}

activation_checkpoint {{
  "layers.*" -> full
}}

data {{
  source = matched("data/*.jsonl")
  sequence_length = {length}
  micro_batch = {rows}
}}

optimizer {{
  kind = adamw(lr = 1e-5)
}}

train {{
  steps = 10
  loss = contrastive(group = {group})
}}
"""
NARROW = "  param_dtype = bfloat16\n  reduce_dtype = float32\n"
LIMIT = 0.02
CASES = {
    "mean, bfloat16": {"pooling": "mean", "length": 512, "rows": 64, "group": 32, "dtypes": NARROW},
    "last, large groups": {"pooling": "last", "length": 64, "rows": 512, "group": 256, "dtypes": NARROW},
    "mean, float32": {"pooling": "mean", "length": 512, "rows": 64, "group": 32, "dtypes": ""},
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_near_the_rehearsal(case: str) -> None:
    compared = compare_text(case, PLAN.format(**CASES[case]))
    assert abs(compared.held_error) <= LIMIT
