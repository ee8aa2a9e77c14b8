"""Whether losses of the old and the new plan can be compared bit for bit, and what keeps them from it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from planc.api import check_source
from planc.diagnostics import Code, Diagnostic
from planc.diagnostics.pages import page
from planc.diff.codes import CODES
from planc.diff.differ import diff
from planc.diff.difference import Change, PlanDiff
from planc.diff.machine import render_diff_json
from planc.diff.side import Side, side_of
from planc.diff.text import render_markdown, render_text
from planc.source import SourceFile
from tests.plans import FULL, PLANS

CONTEXT = """\
context_parallel on cp {
  rotate = ring
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}

data {"""

TEXT = (
    FULL.partition("expect {")[0]
    .replace("data {", CONTEXT)
    .replace("dp_shard = 2", "dp_shard = 2\n  cp = 2")
    .replace("replicate_on = dp_replicate", "replicate_on = dp_replicate\n  reduce_dtype = float32")
)
"""A plan with every kind of sum over ranks."""


def side(*edits: tuple[str, str], text: str = TEXT) -> Side:
    for old, new in edits:
        assert old in text, f"nothing to edit: {old}"
        text = text.replace(old, new)
    found = side_of(check_source(SourceFile("x.plan", text), base=PLANS), name="x.plan")
    assert found is not None
    return found


def notes(found: PlanDiff) -> list[Diagnostic]:
    """What is said of the change itself, not of the new plan."""
    return [one for one in found.diagnostics if one.code in CODES]


def change(found: PlanDiff) -> Change | None:
    return next((change for change in found.changes if change.name == "reduction order"), None)


@pytest.mark.parametrize(
    ("edit", "causes"),
    [
        (("\n  tp = 2", "\n  tp = 4"), "mesh.tp"),
        (("\n  tp = 2", "\n  tp = 1"), "mesh.tp"),
        (("\n  cp = 2", "\n  cp = 1"), "mesh.cp"),
        (("  dp_shard = 2", "  dp_replicate = 2"), "mesh.dp_replicate, mesh.dp_shard"),
        (("dp_shard = 2", "dp_shard = 1"), "mesh.dp_shard, gradient_accumulation"),
        (("fsdp on dp_shard, cp {", "fsdp on dp_shard {"), "fsdp"),
        (("reduce_dtype = float32", "reduce_dtype = bfloat16"), "fsdp.reduce_dtype"),
        (('"model.layers.*" -> unit', '"model.layers.{0..1}" -> unit'), "FSDP units"),
        (("rotate = ring", "rotate = allgather"), "context_parallel"),
        (("rotate = ring", "load_balancer = none"), "context_parallel"),
        (("output = Shard(-1)", "output = Replicate()"), "tensor_parallel, loss over tp"),
        (
            ('"model.layers.*.mlp.down_proj" -> rowwise(output = Shard(1))', '"**.down_proj" -> replicate'),
            "tensor_parallel",
        ),
        (("micro_batch = 4", "micro_batch = 2"), "data.micro_batch, gradient_accumulation"),
        (("tokens_per_step = 4096", "tokens_per_step = 8192"), "gradient_accumulation"),
    ],
)
def test_what_alters_the_order_of_sums_is_named(edit: tuple[str, str], causes: str) -> None:
    found = change(diff(side(), side(edit)))
    assert found is not None
    assert found.note == f"not bitwise comparable: {causes}"


@pytest.mark.parametrize(
    "edit",
    [
        ("reshard_after_forward = true", "reshard_after_forward = false"),
        ('"model.layers.*" -> none', '"model.layers.*" -> full'),
        ("weight_decay = 0.1", "weight_decay = 0.2"),
        ("steps = 60", "steps = 70"),
        ("save_every = 30 steps", "save_every = 20 steps"),
    ],
)
def test_what_leaves_sums_alone_is_not_said_to_alter_them(edit: tuple[str, str]) -> None:
    assert change(diff(side(), side(edit))) is None


def test_the_note_is_in_every_form_and_counted() -> None:
    found = diff(side(), side(("rotate = ring", "rotate = allgather")))
    text = render_text(found, colour=False)
    assert "  ~ reduction order  not bitwise comparable: context_parallel  [P804 note]\n" in text
    assert text.endswith(" unchanged. 1 note.\n")
    assert "| `~` | reduction order | not bitwise comparable: context\\_parallel | \\[P804 note\\] |" in (
        render_markdown(found)
    )
    (note,) = json.loads(render_diff_json(found))["diagnostics"]
    assert (note["code"], note["severity"]) == ("P804", "note")


def test_the_note_stands_where_the_new_plan_alters_the_order() -> None:
    (note,) = notes(diff(side(), side(("reduce_dtype = float32", "reduce_dtype = bfloat16"))))
    line = TEXT.splitlines()[note.primary.span.line - 1]
    assert line == "  reduce_dtype = float32"


def test_the_note_of_a_compiled_plan_stands_at_its_mesh() -> None:
    old, new = side(), side(("\n  tp = 2", "\n  tp = 4"))
    (note,) = notes(diff(replace(old, plan=None), replace(new, plan=None)))
    assert TEXT.splitlines()[note.primary.span.line - 1] == "mesh {"


EXAMPLE = re.compile(r"^```plan (old|alters|keeps)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.code)
def test_page_shows_a_change_with_the_note_and_one_without(code: Code) -> None:
    text = page(code.code)
    sides = {kind: side(text=example) for kind, example in EXAMPLE.findall(text or "")}
    assert notes(diff(sides["old"], sides["keeps"])) == []
    assert [one.code for one in notes(diff(sides["old"], sides["alters"]))] == [code]
