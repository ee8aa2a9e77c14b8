"""The kernels of attention as views print them, and the warning of what they hold for pairs of tokens."""

from __future__ import annotations

import json

import pytest

from planc.api import Checked, check_source
from planc.devices.attention_kernels import MATH_ROWS, AttentionUse
from planc.diff.resources import compare_resources
from planc.diff.side import Side
from planc.show.estimate import estimate_data, estimate_text
from planc.show.overview import overview
from planc.source import SourceFile
from tests.plans import PLANS

PLAN = """model {
  hf = "models/llama-3.2-1b"
}
data {
  source = python_stdlib()
  tokenizer = bytes
  sequence_length = 8192
  micro_batch = 1
}
optimizer {
  kind = adamw(lr = 1e-3)
}
train {
  steps = 10
}
"""
LAYERS, HEADS, LENGTH = 16, 32, 8192
PAIRS = HEADS * LENGTH**2
FLOAT32 = 4
RECOMPUTED = 'activation_checkpoint { "model.layers.*" -> full }\n'
H200 = "hardware { gpu = h200 }\n"


def checked(text: str, *settings: str) -> Checked:
    sources = [SourceFile(f"--set[{number}]", setting) for number, setting in enumerate(settings)]
    return check_source(SourceFile("x.plan", text), base=PLANS, settings=sources)


def uses(text: str, *settings: str) -> tuple[AttentionUse, ...]:
    draft = checked(text, *settings).draft
    assert draft is not None
    return draft.estimate.attention


def line(text: str, *settings: str) -> str:
    found = checked(text, *settings)
    assert found.bound is not None and found.draft is not None
    return dict(overview(found.bound, found.draft.graph, found.draft.estimate))["attention"]


def warnings(text: str, *settings: str) -> list[tuple[str, str]]:
    found = checked(text, *settings).diagnostics
    return [(one.primary.text, one.help) for one in found if one.code.code == "P814"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (("model.dtype=bfloat16",), "on cuda: flash"),
        ((), "on cuda: memory-efficient (flash takes no float32)"),
        (("mesh.backend=gloo",), "on cpu: flash"),
        (
            ("model.dtype=float64",),
            "on cuda: math (flash takes no float64, memory-efficient takes no float64; "
            "1.00 GiB for pairs of tokens)",
        ),
        (
            ("model.attention=eager", "data.sequence_length=1024"),
            "on cuda: eager (the model's own code; 2.00 GiB for pairs of tokens)",
        ),
    ],
)
def test_show_names_the_kernel_and_why_no_better_one_runs(settings: tuple[str, ...], expected: str) -> None:
    assert line(PLAN, *settings) == expected


def test_layers_that_differ_are_named() -> None:
    gemma = PLAN.replace("llama-3.2-1b", "gemma-3-1b")
    found = line(gemma, "model.dtype=bfloat16").split("; ")
    assert found[0].startswith("on cuda: memory-efficient in model.layers.{0..4,")
    assert "flash takes no mask" in found[0]
    assert found[-1] == "flash in model.layers.{5,11,17,23}.self_attn"


def test_heads_that_no_flash_kernel_takes_are_the_reason() -> None:
    latent = PLAN.replace("llama-3.2-1b", "deepseek-v2-lite")
    assert "flash takes no values of 128 for keys of 192" in line(latent, "model.dtype=bfloat16")


def test_eager_attention_keeps_the_scores_of_all_layers() -> None:
    (use,) = uses(PLAN, "model.attention=eager")
    assert use.kernel is None and len(use.modules) == LAYERS
    assert use.pair_bytes == LAYERS * PAIRS * FLOAT32


def test_eager_attention_that_is_recomputed_keeps_the_scores_of_one_layer() -> None:
    (use,) = uses(PLAN + RECOMPUTED, "model.attention=eager")
    assert use.pair_bytes == PAIRS * FLOAT32


@pytest.mark.parametrize(("text", "num_masks"), [(PLAN, LAYERS), (PLAN + RECOMPUTED, 1)])
def test_each_compiled_layer_keeps_a_mask_of_documents(text: str, num_masks: int) -> None:
    """As `check --deep` rehearses it: 222 MiB estimated, 224 rehearsed with four layers of tiny-llama."""
    compiled = text + 'compile { "model.layers.*" -> region }\n'
    (use,) = uses(compiled, "model.dtype=bfloat16", "data.packing=isolate")
    assert use.pair_bytes == num_masks * LENGTH**2 * 2


def test_the_warning_names_bytes_and_share_and_the_nearest_change() -> None:
    expected = (
        "eager attention holds 128 GiB for pairs of tokens, 92 % of h200",
        "set model.attention = sdpa, which leaves 0 B",
    )
    assert warnings(PLAN + H200, "model.attention=eager") == [expected]


def test_without_a_device_the_warning_compares_with_the_peak() -> None:
    ((text, _),) = warnings(PLAN, "model.attention=eager")
    assert text.endswith("% of the peak")


def test_a_tenth_of_the_device_is_no_warning() -> None:
    """Of one layer 8 GiB, of 139.72."""
    assert warnings(PLAN + RECOMPUTED + H200, "model.attention=eager") == []


def test_short_sequences_are_no_warning() -> None:
    assert warnings(PLAN, "model.attention=eager", "data.sequence_length=512") == []


def test_products_and_a_softmax_hold_scores_of_some_queries_and_no_warning() -> None:
    """Weights and their gradients in float64."""
    (use,) = uses(PLAN, "model.dtype=float64")
    assert use.pair_bytes == 2 * HEADS * MATH_ROWS * LENGTH * 2 * FLOAT32
    assert warnings(PLAN, "model.dtype=float64") == []


def test_a_soft_cap_is_a_reason_and_its_slope_is_held_too() -> None:
    gemma = PLAN.replace("llama-3.2-1b", "tiny-gemma2").replace("8192", "512")
    windowed, full = uses(gemma, "model.dtype=bfloat16")
    assert full.reasons == ("flash takes no soft cap", "memory-efficient takes no soft cap")
    assert full.pair_bytes == 3 * 8 * MATH_ROWS * 512 * FLOAT32
    keys = MATH_ROWS + 127
    assert windowed.pair_bytes == 3 * 8 * MATH_ROWS * keys * FLOAT32 + MATH_ROWS * keys * 2


def test_the_estimate_has_a_row_and_data_for_each_kernel() -> None:
    draft = checked(PLAN).draft
    assert draft is not None
    assert "ATTENTION\n  model.layers.{0..15}.self_attn  memory-efficient  float32 64" in estimate_text(
        draft.estimate
    )
    (row,) = json.loads(json.dumps(estimate_data(draft.estimate)))["attention"]
    assert (row["kernel"], row["reasons"], row["pair_bytes"]) == (
        "memory-efficient",
        ["flash takes no float32"],
        0,
    )


def test_a_diff_has_a_change_of_kernels() -> None:
    before, after = (checked(PLAN, f"model.dtype={dtype}") for dtype in ("float32", "bfloat16"))
    sides = (Side("x", one.draft.graph, one.inventory) for one in (before, after) if one.draft)
    (change,) = (one for one in compare_resources(*sides) if one.name == "attention")
    assert (change.old, change.new) == ("memory-efficient", "flash")
