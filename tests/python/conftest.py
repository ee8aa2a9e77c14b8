"""A plan that trains in a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plans import write_plan

TEXT = """\
model {
  hf = "models/tiny-llama"
  weights = random
  seed = 0
  dtype = float32
}

data {
  source = text("*.txt")
  tokenizer = bytes
  sequence_length = 32
  micro_batch = 2
  shuffle_seed = 1
}

optimizer {
  kind = adamw(lr = 1e-3)
  schedule = constant
}

train {
  steps = 6
  tokens_per_step = 128
}

checkpoint {
  save_every = 100 steps
  save_last = true
}
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text("".join(f"{number} words, and more. " for number in range(400)))
    return write_plan(tmp_path, text=TEXT)
