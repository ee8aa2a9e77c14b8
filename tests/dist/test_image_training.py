"""Conversations with images train on every mesh as a loop by hand: losses, gradients, evaluations, exports.

The loop shares no code with planc: it builds the whole by transformers, which puts images among tokens and
numbers them itself, gives it each row alone, without padding, and scales images by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForImageTextToText, Qwen2VLImageProcessorPil

from planc.verify.ranks import Record
from tests.dist.adapters_by_hand import MERGED, WEIGHTS, adapt, blocks
from tests.dist.task_plan import MESHES, gradients_of, plan_text
from tests.dist.test_adapter_start import PREFIX, write_peft
from tests.dist.test_classifier_training import (
    ByHand,
    assert_equal,
    assert_resumed_on_another_mesh,
    batches,
    trained,
    write_model,
)

END, TOKEN = 256, 260
HEIGHT, WIDTH, NUM_TOKENS = 16, 24, 6
Row = tuple[int, str, str]
"""The number of an image, a prompt and its completion."""
ROWS: tuple[Row, ...] = (
    (0, "hue?", "red"),
    (1, "a?", "blue"),
    (2, "", "b"),
    (3, "is it", "no"),
    (4, "4", "567"),
    (0, "z", "zzz"),
    (5, "hi", "mesh"),
)
OTHERS: tuple[Row, ...] = ((1, "a", "tp"), (6, "b?", "a"), (2, "rank", "sum"))
SIZES = ((16, 24), (20, 20), (9, 40), (64, 8), (16, 24), (33, 17), (24, 16))
"""Height and width of each image: most are scaled."""

_TEXT = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
_TOKENS = {
    "image_token_id": TOKEN,
    "video_token_id": 261,
    "vision_start_token_id": 262,
    "vision_end_token_id": 263,
}
_VISION = {"depth": 3, "num_heads": 2, "patch_size": 4}


# The dtype of a config, which is that of published files, is not the plan's.
_DTYPE = {"dtype": "bfloat16"}


def config(kind: str, architecture: str, vision: dict[str, Any], **text: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": kind,
        "text_config": {"model_type": f"{kind}_text", **_TEXT, "rope_parameters": _ROPE, **text},
        "vision_config": {**_VISION, **vision},
        "tie_word_embeddings": False,
        **_TOKENS,
        **_DTYPE,
    }


_HIDDEN = {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64}
MODELS = {
    "qwen2_vl": config(
        "qwen2_vl", "Qwen2VLForConditionalGeneration", {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    ),
    "qwen2_5_vl": config(
        "qwen2_5_vl",
        "Qwen2_5_VLForConditionalGeneration",
        {**_HIDDEN, "window_size": 8, "fullatt_block_indexes": [1]},
    ),
    "qwen3_vl": config(
        "qwen3_vl",
        "Qwen3VLForConditionalGeneration",
        {**_HIDDEN, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16},
        head_dim=16,
        rope_parameters={**_ROPE, "mrope_interleaved": True},
    ),
}


def write_images(folder: Path) -> None:
    """Images in which no two pixels are alike by chance."""
    for number, (height, width) in enumerate(SIZES):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


def written(folder: Path, model: str) -> Path:
    write_images(folder)
    for file, rows in (("rows", ROWS), ("others", OTHERS)):
        lines = [
            json.dumps({"image": f"{number}.png", "prompt": prompt, "completion": completion})
            for number, prompt, completion in rows
        ]
        (folder / f"{file}.jsonl").write_text("\n".join(lines), encoding="ascii")
    write_model(folder / "model", MODELS[model])
    Qwen2VLImageProcessorPil(patch_size=4).save_pretrained(folder / "model")
    source, other = (f'image_chat("{file}.jsonl", template = none)' for file in ("rows", "others"))
    path = folder / "a.plan"
    text = plan_text(
        task=f"image_text_to_text(height = {HEIGHT}, width = {WIDTH})",
        layers="model.language_model.layers.*",
        source=source,
        other=other,
    )
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=MODELS)
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp(request.param), request.param)


def loss_of(model: Any, rows: Sequence[Row], folder: Path) -> tuple[Tensor, int]:
    """The mean over the tokens of all completions, and their number."""
    processor = Qwen2VLImageProcessorPil(patch_size=4)
    total, number = torch.zeros((), dtype=torch.float64), 0
    for image, prompt, completion in rows:
        scaled = Image.open(folder / f"{image}.png").resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        seen = processor(images=[scaled], do_resize=False, return_tensors="pt")
        seen["pixel_values"] = seen["pixel_values"].float().double()
        answer = [*completion.encode(), END]
        ids = torch.tensor([[TOKEN] * NUM_TOKENS + [*prompt.encode()] + answer])
        is_image = (ids == TOKEN).int()
        logits = model(input_ids=ids, mm_token_type_ids=is_image, **seen).logits[0, -len(answer) - 1 : -1]
        # The class's own loss rounds logits to float32.
        total = total + F.cross_entropy(logits, torch.tensor(answer), reduction="sum")
        number += len(answer)
    return total / number, number


def is_encoder(name: str) -> bool:
    return name.startswith("model.visual.")


def by_hand(plan: Path, prepare: Callable[[Any], object] = id) -> ByHand:
    model: Any = AutoModelForImageTextToText.from_pretrained(plan.parent / "model", dtype=torch.float64)
    model.model.visual.requires_grad_(False)
    prepare(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = ByHand(model=model)
    optimizer = torch.optim.AdamW(trained, lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    for step in batches(ROWS):
        loss, number = loss_of(model, step, plan.parent)
        loss.backward()  # type: ignore[no-untyped-call]
        found.gradients = found.gradients or gradients_of(model)
        found.norms.append(torch.nn.utils.clip_grad_norm_(trained, 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
        found.num_labels.append(number)
        found.losses.append(loss.item())
    named = dict(model.named_parameters())
    found.final = {name: one.detach().clone() for name, one in named.items() if not is_encoder(name)}
    with torch.no_grad():
        loss, _ = loss_of(model.eval(), OTHERS, plan.parent)
    found.evaluated = loss.item(), 0.0
    return found


def assert_as_by_hand(record: Record, expected: ByHand) -> None:
    assert [one.labels for one in record.metrics] == expected.num_labels
    assert len(set(expected.num_labels)) > 1
    assert [one.loss for one in record.metrics] == pytest.approx(expected.losses, rel=1e-12)
    assert [one.grad_norm for one in record.metrics] == pytest.approx(expected.norms, rel=1e-12)
    assert_equal(record.gradients, expected.gradients, limit=1e-12)
    assert_equal(record.final, expected.final, limit=1e-9)
    (evaluation,) = record.metrics[-1].evaluations
    assert evaluation.loss == pytest.approx(expected.evaluated[0], rel=1e-12)


QUICK = {("qwen2_5_vl", "dp2 tp2")}


@pytest.mark.parametrize(
    "model, mesh",
    [
        pytest.param(model, mesh, marks=() if (model, mesh) in QUICK else pytest.mark.slow)
        for model in MODELS
        for mesh in MESHES
    ],
)
def test_every_mesh_trains_as_a_loop_by_hand(model: str, mesh: str, tmp_path: Path) -> None:
    plan = written(tmp_path, model)
    record, expected = trained(plan, *MESHES[mesh], run_folder=tmp_path / "run")[0], by_hand(plan)
    assert_as_by_hand(record, expected)
    exported: Any = AutoModelForImageTextToText.from_pretrained(
        tmp_path / "run/export/hf", dtype=torch.float64
    )
    whole = dict(exported.named_parameters())
    encoder = {name: one for name, one in expected.model.named_parameters() if is_encoder(name)}
    assert encoder
    assert_equal(whole, {**encoder, **expected.final}, limit=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_adapters_train_as_a_loop_by_hand(plan: Path, tmp_path: Path, mesh: str) -> None:
    text, other = plan.read_text(encoding="utf-8"), plan.with_name("adapted.plan")
    layers = ("q_proj", "v_proj", "o_proj")
    adapters: dict[str, Tensor] = {}
    prepare = partial(adapt, layers=layers, apart=())
    expected = by_hand(plan, prepare=lambda model: adapters.update(prepare(model)))
    write_peft(plan.parent / "adapters", {f"{PREFIX}{name}": one for name, one in adapters.items()})
    other.write_text(text.replace('export "hf" {', MERGED) + blocks(layers, apart=()), encoding="utf-8")
    assert_as_by_hand(trained(other, *MESHES[mesh], run_folder=tmp_path)[0], expected)
    saved = load_file(tmp_path / "export/adapter" / WEIGHTS)
    names = {name.removeprefix(PREFIX): value for name, value in saved.items()}
    assert_equal(names, {name: expected.final[name] for name in expected.gradients}, limit=1e-9)
    merged: Any = AutoModelForImageTextToText.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    with torch.no_grad():
        loss, _ = loss_of(merged.eval(), OTHERS, plan.parent)
    assert loss.item() == pytest.approx(expected.evaluated[0], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("rotate", ["ring", "allgather", "ulysses"])
def test_context_parallelism_trains_as_a_loop_by_hand(plan: Path, tmp_path: Path, rotate: str) -> None:
    """Each rank has a part of each image."""
    text, other = plan.read_text(encoding="utf-8"), plan.with_name(f"{rotate}.plan")
    block = f"\ncontext_parallel on cp {{\n  rotate = {rotate}\n}}\n"
    other.write_text(text.replace("on dp_shard {", "on dp_shard, cp {") + block, encoding="utf-8")
    assert_as_by_hand(trained(other, "mesh.cp=2", run_folder=tmp_path)[0], by_hand(plan))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_layers_may_be_recomputed(plan: Path, tmp_path: Path, mode: str) -> None:
    text, other = plan.read_text(encoding="utf-8"), plan.with_name(f"{mode}.plan")
    block = f'\nactivation_checkpoint {{\n  "model.language_model.layers.*" -> {mode}\n}}\n'
    other.write_text(text + block, encoding="utf-8")
    assert_as_by_hand(trained(other, "mesh.tp=2", run_folder=tmp_path)[0], by_hand(plan))


@pytest.mark.slow
def test_replicas_train_as_a_loop_by_hand(plan: Path, tmp_path: Path) -> None:
    settings = ("mesh.dp_replicate=2", "fsdp.replicate_on=dp_replicate")
    assert_as_by_hand(trained(plan, *settings, run_folder=tmp_path)[0], by_hand(plan))


@pytest.mark.slow
def test_a_run_resumes_on_another_mesh(plan: Path, tmp_path: Path) -> None:
    assert_resumed_on_another_mesh(plan, tmp_path, by_hand(plan))


def test_no_run_resumes_with_another_encoder(tmp_path: Path) -> None:
    """No checkpoint has it: exports would have one that the language model was not trained with."""
    plan = written(tmp_path, "qwen2_5_vl")
    trained(plan, run_folder=tmp_path / "run", stop_after=2)
    weights, name = tmp_path / "model/model.safetensors", "visual.merger.mlp.2.bias"
    tensors = load_file(weights)
    # Ranks may still have mapped the file into memory.
    weights.unlink()
    save_file({**tensors, name: tensors[name] + 1}, weights)
    with pytest.raises(Exception, match="different data: images, their encoder, text"):
        trained(plan, run_folder=tmp_path / "run")
