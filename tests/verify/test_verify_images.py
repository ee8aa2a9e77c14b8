"""`planc verify` trains on images as transformers' whole does: what seeing can get wrong shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_source
from planc.graph import ops
from planc.graph.op import Op
from planc.modeling.language_part import EncodedImages
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.runtime.torch.state import Images
from planc.source import SourceFile
from planc.verify.outcome import Item
from planc.verify.verify import verify
from tests.plans import PLANS, encoder_plan

PLAN = encoder_plan(
    "tiny-qwen2.5-vl",
    task="image_text_to_text(height = 16, width = 24)\n  weights = pretrained",
    source='image_chat("rows.jsonl", template = none)',
).replace('"bert.encoder.layer.*"', '"model.language_model.layers.*"')


def upside_down(state: State, op: Op, position: Position) -> None:
    """An image's tokens are in the opposite order."""
    if isinstance(op, ops.Forward):
        images = state[Images]
        state.put(replace(images, features=EncodedImages(images.features.tokens.flip(1))))


def columns_for_rows(state: State, op: Op, position: Position) -> None:
    """Height and width change places."""
    if isinstance(op, ops.Forward):
        images = state[Images]
        state.put(replace(images, position_ids=images.position_ids[[0, 2, 1]]))


def text_positions(state: State, op: Op, position: Position) -> None:
    """Tokens after an image are counted as if each of its tokens were one of text."""
    if isinstance(op, ops.Forward):
        images = state[Images]
        places = images.position_ids[0] * 0 + images.places.new_tensor(range(images.places.shape[1]))
        state.put(replace(images, position_ids=places.expand_as(images.position_ids)))


def unseen(state: State, op: Op, position: Position) -> None:
    """The model sees the token of images, and none of them."""
    if isinstance(op, ops.Forward):
        images = state[Images]
        state.put(replace(images, places=images.places * 0 - 1))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, upside_down, columns_for_rows, text_positions, unseen])
def test_what_seeing_can_get_wrong_shows(fault: object, tmp_path: Path) -> None:
    settings = [SourceFile("--set", "mesh.tp=1")]
    plan = check_source(SourceFile("case.plan", PLAN), base=PLANS, settings=settings)
    assert plan.bound is not None and plan.graph is not None, plan.diagnostics
    report = verify(plan.bound, plan.graph, base=PLANS, before_op=fault)  # type: ignore[arg-type]
    wrong = {verdict.item for verdict in report.verdicts if not verdict.ok}
    assert ({Item.LOSS, Item.GRADIENTS} <= wrong) is (fault is not None), wrong
