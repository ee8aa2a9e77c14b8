"""Conversations with images: an image's tokens stand in the place of one, and no other row has its pixels."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from planc.data_sources.kinds import ImageChatSource
from planc.data_view.look import look
from planc.data_view.parts import Part
from planc.data_view.shown import shown_row
from planc.runtime.data.errors import DataError
from planc.runtime.data.loader import BatchSource, micro_batch_of, step_batches
from planc.runtime.data.open import OpenData, open_data, open_prepared
from planc.runtime.data.padded import ImageDataset
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec, HeldOut, Images
from planc.vocab import ImageShape
from tests.data.conversing import TEMPLATE, save_tokenizer
from tests.data.images import PATCH, save_image, save_rows, save_settings

END, TOKEN, LENGTH = 256, 300, 24
SHAPE = ImageShape(height=16, width=24, patch=PATCH, merge=2, frames=2)
ROWS: list[dict[str, Any]] = [
    {"image": f"{number}.png", "prompt": "what?", "completion": f"it is {number}"} for number in range(6)
]
PART = {"type": "image"}
TEXT = {"type": "text", "text": "what?"}
ANSWER = {"role": "assistant", "content": "red"}


def spec(
    *, template: str = "none", tokenizer: str = "bytes", token: int = TOKEN, **settings: Any
) -> DataSpec:
    source = ImageChatSource(("rows.jsonl",), template=template)
    settings = {"packing": "none", "images": Images("model", token, SHAPE), **settings}
    return DataSpec(source, tokenizer, settings.pop("length", LENGTH), shuffle_seed=3, **settings)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for number in range(len(ROWS)):
        save_image(tmp_path / f"{number}.png", seed=number)
    save_settings(tmp_path / "model")
    return tmp_path


def opened(base: Path, *rows: dict[str, Any], **settings: Any) -> OpenData:
    save_rows(base / "rows.jsonl", *rows)
    return open_data(spec(**settings), base=base, model_vocab_size=1000)


def patches_by_hand(path: Path) -> np.ndarray:
    """[patches, values], by transformers alone."""
    scaled = Image.open(path).convert("RGB").resize((SHAPE.width, SHAPE.height), Image.Resampling.BICUBIC)
    processor = Qwen2VLImageProcessorPil(patch_size=PATCH)
    values: np.ndarray = processor(images=[scaled], do_resize=False, return_tensors="np")["pixel_values"]
    return values


def test_an_image_precedes_the_text_of_a_prompt(base: Path) -> None:
    data = opened(base, *ROWS)
    inputs, labels = data.dataset[2]
    assert inputs[:18].tolist() == [*(TOKEN,) * 6, *b"what?it is 2"[:12]]
    assert [label for label in labels if label >= 0] == [*b"it is 2", END]
    assert labels[:10].tolist() == [-100] * 10


def test_pixels_are_those_of_the_sequences_own_image(base: Path) -> None:
    data = opened(base, *ROWS)
    batch = micro_batch_of(data.dataset, np.array([4, 1]))
    assert batch.pixels is not None and batch.pixels.shape == (2, SHAPE.num_patches, SHAPE.values)
    for pixels, number in zip(batch.pixels, (4, 1), strict=True):
        assert np.array_equal(pixels, patches_by_hand(base / f"{number}.png"))


def test_a_step_divides_images_as_it_divides_sequences(base: Path) -> None:
    data = opened(base, *ROWS)
    source = BatchSource(data.dataset, data.order, global_batch=4, micro_batch=2, dp_size=1, dp_rank=0)
    for batch in step_batches(source, 0):
        assert batch.pixels is not None
        for pixels, number in zip(batch.pixels, batch.sample_ids, strict=True):
            assert np.array_equal(pixels, patches_by_hand(base / f"{number}.png"))


def test_images_stand_where_a_template_writes_one(base: Path) -> None:
    template = TEMPLATE.replace(
        "{{ message['content'] + '<|im_end|>\n' }}",
        "{% for part in message['content'] %}"
        "{{ '</s>' if part['type'] == 'image' else part['text'] }}"
        "{% endfor %}"
        "{{ '<|im_end|>\n' }}",
    )
    assert template != TEMPLATE
    save_tokenizer(base / "tokenizer", template=template)
    row = {"image": ["3.png"], "messages": [{"role": "user", "content": [PART, TEXT]}, ANSWER]}
    data = opened(base, row, template="auto", tokenizer="tokenizer", token=3, length=40)
    inputs, labels = data.dataset[0]
    places = np.flatnonzero(inputs == 3)
    assert len(places) == 6 and places.tolist() == [*range(places[0], places[0] + 6)] and places[0] > 0
    assert not np.isin(labels, [3]).any() and (labels >= 0).any()


def test_a_template_that_writes_another_token_is_refused(base: Path) -> None:
    """The model would see the image elsewhere than the row has it."""
    template = TEMPLATE.replace("message['content'] + '<|im_end|>\n'", "'</s><|im_end|>\n'")
    save_tokenizer(base / "tokenizer", template=template)
    row = {"image": "3.png", "messages": [{"role": "user", "content": [PART]}, ANSWER]}
    with pytest.raises(DataError, match=r"rows\.jsonl:1 has the token 2 [2-9] times"):
        opened(base, row, template="auto", tokenizer="tokenizer", token=2, length=40)
    with pytest.raises(DataError, match=r"rows\.jsonl:1 has the token 9 0 times, and an image is"):
        opened(base, row, template="auto", tokenizer="tokenizer", token=9, length=40)


@pytest.mark.parametrize("is_typed", [False, True])
def test_datasets_have_the_content_of_images(base: Path, is_typed: bool) -> None:
    from datasets import Dataset
    from datasets import Image as Feature

    rows = [
        {**row, "image": {"bytes": (base / row["image"]).read_bytes(), "path": row["image"]}} for row in ROWS
    ]
    table = Dataset.from_list(rows)
    if is_typed:
        table = table.cast_column("image", Feature(decode=False))
    table.to_parquet(base / "rows.parquet")
    source = ImageChatSource(("rows.parquet",), template="none")
    images = Images("model", TOKEN, SHAPE)
    given = DataSpec(source, "bytes", LENGTH, shuffle_seed=3, packing="none", images=images)
    stored, data = open_data(given, base=base, model_vocab_size=1000), opened(base, *ROWS)
    assert isinstance(stored.dataset, ImageDataset) and isinstance(data.dataset, ImageDataset)
    assert [stored.dataset.image(n) for n in range(6)] == [data.dataset.image(n) for n in range(6)]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "a", "completion": "b"}, 'rows.jsonl:2 has no image under "image"'),
    ({**ROWS[0], "image": 3}, '"image" of rows.jsonl:2 is not an image'),
    ({**ROWS[0], "image": ["0.png", "1.png"]}, '"image" of rows.jsonl:2 is not an image'),
    (
        {**ROWS[0], "image": "rows.jsonl"},
        "rows.jsonl of rows.jsonl:2 cannot be decoded: it has no format that Pillow knows",
    ),
    (
        {"image": "0.png", "messages": [{"role": "user", "content": [TEXT]}, ANSWER]},
        "the messages of rows.jsonl:2 have 0 images, and each row has 1",
    ),
    (
        {"image": "0.png", "messages": [{"role": "user", "content": [PART, PART]}, ANSWER]},
        "the messages of rows.jsonl:2 have 2 images, and each row has 1",
    ),
    (
        {"img": "0.png", **{key: ROWS[0][key] for key in ("prompt", "completion")}},
        'rows.jsonl:2 has no image under "image"',
    ),
    (
        {"image": "0.png", "messages": [{"role": "user", "content": [{**PART, "image": "0.png"}]}, ANSWER]},
        'the content of message 1 in "messages" of rows.jsonl:2 has an image with more than its place',
    ),
    ({**ROWS[0], "images": []}, 'rows.jsonl:2 has a key that planc does not read: "images"'),
]


@pytest.mark.parametrize("row, message", BAD)
def test_a_row_without_its_image_is_located(base: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        opened(base, ROWS[1], row)
    assert caught.value.message.startswith(message)


def test_a_file_that_ends_too_soon_is_found_before_it_is_trained_on(base: Path) -> None:
    content = (base / "0.png").read_bytes()
    (base / "0.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"0\.png of rows\.jsonl:1 cannot be decoded"):
        opened(base, *ROWS)
    data = opened(base, *ROWS, skip_bad=1)
    assert data.dataset.num_sequences == len(ROWS) - 1 and len(data.left_out) == 1
    assert isinstance(data.dataset, ImageDataset)
    assert data.dataset.image(0) == (base / "1.png").read_bytes()


def test_no_part_of_an_image_is_trained_on(base: Path) -> None:
    """An image that does not fit is left out with its row; a text that does not is shortened."""
    data = opened(base, {**ROWS[0], "prompt": "x" * 40}, *ROWS[1:], length=16)
    inputs, _ = data.dataset[0]
    assert (inputs == TOKEN).sum() == 6 and data.dataset.num_sequences == len(ROWS) - 1


def test_images_are_held_out_with_their_rows(base: Path) -> None:
    """Rows of the same words are held out each by itself."""
    rows = [{**ROWS[number], "completion": "red"} for number in range(len(ROWS))]

    def images(is_kept: bool) -> set[bytes]:
        dataset = opened(base, *rows, held_out=HeldOut("1/2", is_kept=is_kept)).dataset
        assert isinstance(dataset, ImageDataset)
        return {dataset.image(number) for number in range(dataset.num_sequences)}

    held, others = images(True), images(False)
    assert held and others and not held & others and len(held | others) == len(ROWS)


def test_prepared_files_have_the_same_images(base: Path) -> None:
    data, wanted = opened(base, *ROWS), want(spec(), base=base)
    assert not wanted.stays_in_memory
    stored = open_prepared(prepare(base / "prepared", wanted, name="rows"), wanted, model_vocab_size=1000)
    assert stored.fingerprint == data.fingerprint
    for number in range(len(ROWS)):
        own, other = data.dataset.pixels(number), stored.dataset.pixels(number)
        assert own is not None and other is not None and np.array_equal(own, other)


@pytest.mark.parametrize("what", ["image", "settings", "shape"])
def test_data_is_another_with_other_pixels(base: Path, what: str) -> None:
    before, settings = opened(base, *ROWS).fingerprint, {}
    if what == "image":
        save_image(base / "3.png", seed=9)
    elif what == "settings":
        save_settings(base / "model", image_mean=[0.5, 0.5, 0.5])
    else:
        settings["images"] = Images("model", TOKEN, ImageShape(24, 16, PATCH, 2, 2))
    assert opened(base, *ROWS, **settings).fingerprint != before


def test_settings_of_another_encoder_are_refused(base: Path) -> None:
    save_settings(base / "model", patch_size=14)
    with pytest.raises(DataError, match=r"model/preprocessor_config\.json has 14 for `patch_size`"):
        opened(base, *ROWS)
    (base / "model/preprocessor_config.json").unlink()
    with pytest.raises(DataError, match=r"model has no preprocessor_config\.json"):
        opened(base, *ROWS)


def test_images_are_turned_as_their_files_say(base: Path) -> None:
    image, turned = Image.open(base / "0.png"), io.BytesIO()
    exif = image.getexif()
    exif[0x0112] = 3  # by half a turn
    image.save(turned, format="PNG", exif=exif)
    (base / "1.png").write_bytes(turned.getvalue())
    image.rotate(180).save(base / "2.png")
    dataset = opened(base, *ROWS).dataset
    own, by_hand = dataset.pixels(1), dataset.pixels(2)
    assert own is not None and by_hand is not None and np.array_equal(own, by_hand)


def test_a_row_is_shown_with_its_image(base: Path) -> None:
    opened(base, *ROWS)
    part = Part("training", want(spec(), base=base), vocab_size=1000, span=None)
    (shown,) = shown_row(part, 3, tokenizer=part.wanted.tokenizer.load())
    assert shown.text.startswith("<image>what?it is 2") and shown.ids[:6] == [TOKEN] * 6
    assert shown.notes == ("image: scaled to 16 x 24 pixels, 6 tokens",)
    content = (base / "4.png").read_bytes()
    (base / "4.png").write_bytes(content[: len(content) // 2])
    (base / "5.png").unlink()
    truncated, absent = (fault.message for fault in look(part).faults)
    assert truncated.startswith("4.png of rows.jsonl:5 cannot be decoded: ")
    assert absent == "cannot open 5.png of rows.jsonl:6: No such file or directory"
