"""Hidden tokens follow from a sequence's place alone, and special tokens are never among them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planc.data_sources.kinds import TextSource
from planc.runtime.data.errors import DataError
from planc.runtime.data.evaluation import EvaluationSet
from planc.runtime.data.loader import BatchLoader, BatchSource
from planc.runtime.data.masking import masks_of
from planc.runtime.data.open import OpenData, open_data
from planc.runtime.data.packing import IGNORED_LABEL
from planc.runtime.data.spec import DataSpec, Masking
from planc.runtime.data.tokenizers import ByteTokenizer
from planc.verify.losses import masked
from tests.data.conversing import save_tokenizer

MASKING = Masking(probability=0.3, mask_replace=0.5, random_replace=0.25)
LENGTH = 16


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> OpenData:
    folder = tmp_path_factory.mktemp("masking")
    (folder / "a.txt").write_text(" ".join(map(str, range(150))), encoding="ascii")
    (folder / "b.txt").write_text("short", encoding="ascii")
    return open_data(spec(), base=folder, model_vocab_size=264)


def spec() -> DataSpec:
    return DataSpec(TextSource(("*.txt",)), "bytes", LENGTH, shuffle_seed=7, masking=MASKING)


def rows(
    data: OpenData, *, dp_size: int, micro_batch: int, steps: int = 6, start: int = 0
) -> list[tuple[bytes, bytes]]:
    """The inputs and labels of all ranks, in the order of samples."""
    found = []
    for rank in range(dp_size):
        source = BatchSource(data.dataset, data.order, 8, micro_batch, dp_size, rank, masks=data.masks)
        loader = BatchLoader(source)
        loader.load_state(start)
        for step in range(steps):
            for micro, batch in enumerate(loader.next_step()):
                places = source.places_at(start + 8 * step, micro_step=micro)
                pairs = zip(places, batch.inputs, batch.labels, strict=True)
                found += [(place, own.tobytes(), labels.tobytes()) for place, own, labels in pairs]
    return [row[1:] for row in sorted(found)]


def test_no_mesh_and_no_resume_changes_a_mask(data: OpenData) -> None:
    whole = rows(data, dp_size=1, micro_batch=8)
    assert rows(data, dp_size=4, micro_batch=1) == rows(data, dp_size=2, micro_batch=4) == whole
    assert rows(data, dp_size=2, micro_batch=2, steps=2, start=32) == whole[32:]
    # Six steps are more than an epoch: a sequence that comes again has other masks.
    assert len(set(whole)) == len(whole)


def test_masks_are_those_of_a_definition_token_by_token(data: OpenData) -> None:
    assert data.masks is not None
    tokens = np.array([*range(250, 258), *range(LENGTH - 8)])
    for place in range(40):
        inputs, labels = data.masks.hide(tokens, place)
        assert (inputs.tolist(), labels.tolist()) == masked(tokens.tolist(), MASKING, seed=7, place=place)


def test_shares_are_those_of_the_plan_and_special_tokens_stay() -> None:
    masks = masks_of(MASKING, ByteTokenizer(), seed=1, model_vocab_size=300)
    tokens = np.full(100_000, 65)
    tokens[::10] = 256
    inputs, labels = masks.hide(tokens, 0)
    is_chosen = labels != IGNORED_LABEL
    assert not is_chosen[::10].any() and (inputs[::10] == 256).all()
    assert (labels[is_chosen] == 65).all() and (inputs[~is_chosen] == tokens[~is_chosen]).all()
    assert is_chosen.sum() / 90_000 == pytest.approx(0.3, abs=0.01)
    became = inputs[is_chosen]
    assert (became == masks.mask_id).mean() == pytest.approx(0.5, abs=0.01)
    assert ((became != masks.mask_id) & (became != 65)).mean() == pytest.approx(0.25, abs=0.01)
    assert became.max() == masks.mask_id == 257


def test_an_evaluation_has_the_same_masks_in_every_run(data: OpenData) -> None:
    assert data.masks is not None
    masks = data.masks.for_evaluation()
    others = replace(data.masks, seed=99).for_evaluation()
    sets = [EvaluationSet(data.dataset, 5, 2, masks=one) for one in (masks, others)]
    one, other = ([*held.micro_batches(dp_size=1, dp_rank=0)] for held in sets)
    assert all(np.array_equal(a.labels, b.labels) for a, b in zip(one, other, strict=True))
    assert sets[0].num_target_tokens == sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in one)
    training = data.masks.hide(data.dataset[0][0], 0)[1]
    assert not np.array_equal(one[0].labels[0], training)


def test_a_mask_is_in_the_fingerprint(data: OpenData, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 100, encoding="ascii")
    prints = {
        open_data(replace(spec(), masking=one), base=tmp_path, model_vocab_size=264).fingerprint
        for one in (None, MASKING, replace(MASKING, probability=0.2))
    }
    assert len(prints) == 3


def test_a_mask_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(DataError, match="the mask token is id 257, but the model has 257"):
        masks_of(MASKING, ByteTokenizer(), seed=0, model_vocab_size=257)


@pytest.mark.parametrize("mask", ["</s>", None])
def test_the_mask_token_is_the_tokenizers_own(mask: str | None, tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "tokenizer", template=None)
    if mask is not None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "mask_token": mask}), encoding="utf-8")
    (tmp_path / "a.txt").write_text("Où est le café ? " * 20, encoding="utf-8")
    wanted = replace(spec(), tokenizer="tokenizer", end_of_document="<|endoftext|>")
    if mask is None:
        with pytest.raises(DataError, match="tokenizer has no mask token"):
            open_data(wanted, base=tmp_path, model_vocab_size=320)
        return
    masks = open_data(wanted, base=tmp_path, model_vocab_size=320).masks
    assert masks is not None
    ids = {
        one["content"]: one["id"]
        for one in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    }
    assert masks.mask_id == ids[mask]
    assert not {*ids.values()} & {*masks.replacements.tolist()}
