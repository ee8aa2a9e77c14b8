"""Images: rows, task and class belong together; what was not shown is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from variants import Check

from planc.api import check_source
from planc.graph.ops import Accumulate, EncodeImages, LoadImageEncoder, OpenImageData
from planc.source import SourceFile
from planc.vocab import ImageShape
from tests.data.images import save_settings
from tests.plans import PLANS, TINY, encoder_plan

MODEL, SOURCE = "tiny-qwen2.5-vl", 'image_chat("data/*.txt", template = none)'
TASK = "image_text_to_text(height = 16, width = 24)"
PLAN = encoder_plan(MODEL, task=f"{TASK}\n  weights = pretrained", source=SOURCE).replace(
    '"bert.encoder.layer.*"', '"model.language_model.layers.*"'
)
UNSHOWN = {
    "texts": (SOURCE, 'text("data/*.txt")', "P775", "its rows have no images"),
    "conversations": ("image_chat", "chat", "P775", "its rows have no images"),
    "packed": (f"source = {SOURCE}", f"source = {SOURCE}\n  packing = whole", "P775", "holds one image"),
    "compiled": (
        "data {",
        'compile {\n  "model.language_model.layers.*" -> region\n}\ndata {',
        "P775",
        "no model that sees images has been compared",
    ),
    "another loss": ("train {", "train {\n  loss = dpo()", "P775", "no model that sees images"),
    "a height between tokens": ("height = 16", "height = 20", "P775", "20 pixels are not a multiple of 8"),
    "no room": ("height = 16, width = 24", "height = 512, width = 512", "P775", "takes 4_096 tokens"),
    "masked": (TASK, "masked_lm", "P216", "is a causal language model, and the plan trains a masked"),
    "text alone": (f"\n  task = {TASK}", "", "P775", "a causal language model sees no images"),
    "another model": (MODEL, "tiny-llama", "P216", "and the plan trains a model that sees images"),
    "drawn weights": (
        "weights = pretrained",
        "weights = random",
        "P775",
        "is not trained, and its weights are",
    ),
    "stages": ("  tp = 2", "  pp = 2", "P775", "no stage of such a model has been compared"),
}


def test_what_was_shown_is_accepted(check: Check) -> None:
    checked = check(PLAN)
    assert checked.diagnostics == () and checked.graph is not None
    (opened,) = (op for op in checked.graph.setup if isinstance(op, OpenImageData))
    shape = ImageShape(height=16, width=24, patch=4, merge=2, frames=2)
    assert (opened.packing, opened.token, opened.shape) == ("none", 260, shape)
    (loads,) = (op for op in checked.graph.setup if isinstance(op, LoadImageEncoder))
    (loop,) = (op for op in checked.graph.step if isinstance(op, Accumulate))
    (encodes,) = (op for op in loop.body if isinstance(op, EncodeImages))
    assert loads.path == opened.path and (encodes.token, encodes.shape) == (260, shape)


@pytest.mark.parametrize("kind", UNSHOWN)
def test_what_was_not_shown_is_refused(kind: str, check: Check) -> None:
    old, new, code, text = UNSHOWN[kind]
    assert old in PLAN
    problems = check(PLAN.replace(old, new)).diagnostics
    assert any(one.code.code == code and text in one.primary.text for one in problems), problems


def test_the_language_part_trains_on_text_alone(check: Check) -> None:
    """With all that causal models have: stages, sequence parallelism, packing."""
    plan = TINY.replace("tiny-llama", MODEL).replace('"model.layers.*"', '"model.language_model.layers.*"')
    checked = check(plan.replace("  auto\n", "  auto(solve)\n"))
    assert checked.diagnostics == () and checked.graph is not None
    assert not any(isinstance(op, LoadImageEncoder | OpenImageData) for op in checked.graph.setup)


def test_rows_with_images_are_of_another_task(check: Check) -> None:
    problems = check(TINY.replace('text("data/*.txt")', SOURCE)).diagnostics
    assert [(one.code.code, one.help) for one in problems] == [
        ("P775", "write `task = image_text_to_text()` in `model`, or `chat(...)` here")
    ]


def test_settings_of_pixels_are_those_of_the_encoder(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PLANS / "models" / MODEL, tmp_path / "models" / MODEL))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("{}", encoding="utf-8")

    def texts() -> list[str]:
        checked = check_source(SourceFile("case.plan", PLAN), base=tmp_path)
        return [one.primary.text for one in checked.diagnostics if one.code.code == "P775"]

    # On a machine without weights nothing is known.
    assert texts() == []
    (folder / "model.safetensors").write_bytes(b"")
    assert texts() == [f"`{MODEL}` has no preprocessor_config.json, by which images are read"]
    save_settings(folder, merge_size=4)
    assert texts() == ["its preprocessor_config.json has 4 for `merge_size`, and its config.json 2"]
    save_settings(folder)
    assert texts() == []
