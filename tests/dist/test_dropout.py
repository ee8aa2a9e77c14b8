"""A model with dropout in its config.json, in a plan that takes it as 0."""

from __future__ import annotations

import torch
from torch import nn

from planc.api import check_source
from planc.graph.ops import BuildModel
from planc.runtime.torch.weights.build import meta_model
from planc.runtime.torch.weights.weights import initialize
from planc.source import SourceFile
from tests.plans import PLANS

TEXT = """\
model {
  hf = "models/tiny-gpt2"
  dropout = false
}
data {
  source = python_stdlib()
  sequence_length = 64
  micro_batch = 2
}
optimizer { kind = adamw(lr = 1e-3) }
train { steps = 4 }
"""


def build() -> BuildModel:
    checked = check_source(SourceFile("dropout.plan", TEXT), base=PLANS)
    assert checked.graph is not None, checked.diagnostics
    return next(op for op in checked.graph.setup if isinstance(op, BuildModel))


def test_nothing_is_dropped_in_training() -> None:
    op = build()
    assert {"resid_pdrop", "embd_pdrop", "attn_pdrop"} <= set(op.zeroed)
    model = meta_model(op, base=PLANS)
    assert model.training
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.0}


def test_two_forwards_in_training_are_one() -> None:
    model = meta_model(build(), base=PLANS).to_empty(device="cpu")
    initialize(model, seed=3)
    tokens = torch.arange(32).reshape(2, 16)
    assert torch.equal(model(input_ids=tokens).logits, model(input_ids=tokens).logits)
