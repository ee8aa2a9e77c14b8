"""`--resolved`: a valid plan of the same meaning, with nothing unsaid."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.graph.graph import plan_hash
from planc.plan.keys import keys
from planc.show.resolved import resolved_text
from planc.source import SourceFile
from tests.plans import FULL, TINY, canonical_plans, checked, write_plan


def _resolved(found: Checked, base: Path) -> tuple[str, Checked]:
    assert found.bound is not None
    text = resolved_text(found.bound)
    again = check_source(SourceFile("resolved.plan", text), base=base)
    assert again.ok, (text, again.diagnostics)
    return text, again


def _same_meaning(one: Checked, other: Checked) -> bool:
    assert one.graph is not None and other.graph is not None
    return plan_hash(one.graph) == plan_hash(other.graph)


def _expected(found: Checked) -> list[tuple[str, str, float]]:
    assert found.plan is not None
    return [(one.subject, one.operator, one.value) for one in found.plan.expectations]


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_canonical_plan_means_the_same(path: Path) -> None:
    found = checked(path)
    text, again = _resolved(found, path.parent)
    assert _same_meaning(found, again)
    assert again.bound is not None
    assert resolved_text(again.bound) == text


VARIANTS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "full": (FULL, ()),
    "auto": (TINY, ()),
    "auto with a rule that agrees": (TINY, (("  auto\n", '  auto\n  "lm_head" -> colwise_gather_output\n'),)),
    "expected sizes": (
        TINY,
        (("mesh {", "expect {\n  peak_memory < 73 GiB\n  fsdp_bytes_per_step < 1.5e9 KB\n}\nmesh {"),),
    ),
    "override": (
        TINY,
        (("  auto\n", '  auto\n  override "lm_head" -> colwise(output = Replicate())\n'),),
    ),
    "rules that agree": (
        TINY,
        (("-> unit", '-> unit\n  "model.layers.0" -> unit(reshard_after_forward = true)'),),
    ),
    "every variant": (
        TINY,
        (
            ('text("data/*.txt")', 'jsonl("a.jsonl", "b.jsonl", field = "body")'),
            ("micro_batch = 1", 'micro_batch = 1\n  tokenizer = file("t.json", end_of_document = "</s>")'),
            ("lr = 1e-3)", "lr = 1e-3)\n  schedule = linear(warmup = 20_000 steps)"),
            ("steps = 10", "steps = 30_000"),
            ("tp = 2", "tp = 2\n  timeout = 90 s\n  devices_per_node = 8"),
            ("train {", "checkpoint {\n}\n\ntrain {"),
        ),
    ),
    "an export": (TINY, (("train {", 'checkpoint {\n  export "hf" { dtype = float16 }\n}\n\ntrain {'),)),
    "an export with defaults": (TINY, (("train {", 'checkpoint {\n  export "hf" { }\n}\n\ntrain {'),)),
    "sizes that are expected": (
        TINY,
        (
            (
                "train {",
                "expect {\n  peak_memory < 64 GB\n  tp_bytes_per_step <= 1.5 GiB\n"
                "  cp_bytes_per_step < 12345 B\n  world_size == 4\n}\n\ntrain {",
            ),
        ),
    ),
    "one device": (TINY, (("= 2\n", "= 1\n"),)),
}


@pytest.mark.parametrize(("text", "edits"), VARIANTS.values(), ids=VARIANTS)
def test_every_construct_means_the_same(
    tmp_path: Path, text: str, edits: tuple[tuple[str, str], ...]
) -> None:
    found = checked(write_plan(tmp_path, text=text, edits=edits))
    again = _resolved(found, tmp_path)[1]
    assert _same_meaning(found, again)
    assert _expected(found) == _expected(again)


def test_settings_are_written_in(tmp_path: Path) -> None:
    found = checked(write_plan(tmp_path, text=TINY), "size=4", "mesh.tp=1")
    text, again = _resolved(found, tmp_path)
    assert _same_meaning(found, again)
    assert "dp_shard = 4" in text
    assert "param " not in text


def test_every_key_of_every_block_is_there(tmp_path: Path) -> None:
    found = checked(write_plan(tmp_path))
    _, again = _resolved(found, tmp_path)
    assert again.plan is not None
    for plan_field in fields(again.plan):
        record = getattr(again.plan, plan_field.name)
        if hasattr(type(record), "__dataclass_fields__"):
            for spec_field in keys(type(record)):
                steps = again.plan.origins[f"{plan_field.name}.{spec_field.name}"]
                assert steps[0].kind == "written", spec_field.name


def test_what_auto_became_is_shown(tmp_path: Path) -> None:
    text, _ = _resolved(checked(write_plan(tmp_path, text=TINY)), tmp_path)
    assert '  # auto: "model.layers.{0..3}.mlp.down_proj" -> rowwise\n' in text


def test_what_pads_is_said(tmp_path: Path) -> None:
    padded, _ = _resolved(checked(write_plan(tmp_path, text=TINY), "data.packing=none"), tmp_path)
    packed, _ = _resolved(checked(write_plan(tmp_path, text=TINY)), tmp_path)
    said = "  # padding: the token that ends a document\n"
    assert said in padded
    assert said not in packed
