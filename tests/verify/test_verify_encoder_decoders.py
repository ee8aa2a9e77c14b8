"""`planc verify` trains encoder-decoders on inputs with targets: what decoding can get wrong shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from planc.api import check_source
from planc.graph import ops
from planc.graph.op import Op
from planc.runtime.interpreter import Position
from planc.runtime.torch.attention.documents import Documents
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.state import LocalBatch
from planc.source import SourceFile
from planc.verify.outcome import Item
from planc.verify.verify import verify
from tests.plans import PLANS, encoder_plan

PLAN = encoder_plan(
    "tiny-bart-encoder-decoder", task="seq2seq_lm\n  dropout = false", source='mapped("rows.jsonl")'
).replace('"bert.encoder.layer.*"', '"model.{encoder,decoder}.layers.*"')


def padding_seen(state: State, op: Op, position: Position) -> None:
    """Tokens see the padding of an input: it begins no second document."""
    if isinstance(op, ops.Forward):
        documents = state[Documents]
        assert documents.batch is not None
        places = documents.batch.places
        whole = torch.arange(places.shape[1]).expand(places.shape)
        documents.begin(whole.numpy(), on_device=whole)


def target_shown(state: State, op: Op, position: Position) -> None:
    """The decoder is given each token as its own label."""
    if isinstance(op, ops.Forward):
        batch = state[LocalBatch]
        state.put(replace(batch, decoder_input_ids=batch.labels.clamp(min=0)))


def another_start(state: State, op: Op, position: Position) -> None:
    """The decoder begins with another token."""
    if isinstance(op, ops.Forward):
        batch = state[LocalBatch]
        assert batch.decoder_input_ids is not None
        state.put(
            replace(batch, decoder_input_ids=batch.decoder_input_ids.index_fill(1, torch.tensor([0]), 7))
        )


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, padding_seen, target_shown, another_start])
def test_what_decoding_can_get_wrong_shows(fault: object, tmp_path: Path) -> None:
    settings = [SourceFile("--set", "mesh.tp=1")]
    plan = check_source(SourceFile("case.plan", PLAN), base=PLANS, settings=settings)
    assert plan.bound is not None and plan.graph is not None, plan.diagnostics
    report = verify(plan.bound, plan.graph, base=PLANS, before_op=fault)  # type: ignore[arg-type]
    wrong = {verdict.item for verdict in report.verdicts if not verdict.ok}
    assert ({Item.LOSS, Item.GRADIENTS} <= wrong) is (fault is not None), wrong
