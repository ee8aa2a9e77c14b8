"""`task = masked_lm`: the class must be such a model's, and what was not shown is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from variants import Check

from tests.data.conversing import save_tokenizer
from tests.plans import encoder_plan

PLAN = encoder_plan("tiny-bert", task="masked_lm", source="python_stdlib()")
CONTEXT = 'context_parallel on cp {\n  ["input_ids", "labels", "position_ids"] -> Shard(1)\n}\n\ndata'
UNSHOWN = {
    "isolated": ("sequence_length", "packing = isolate\n  sequence_length", "isolate needs attention"),
    "padded": ("sequence_length", "packing = none\n  sequence_length", "none needs attention"),
    "conversations": ("python_stdlib()", 'chat("talks.jsonl", template = none)', "which tokens are labels"),
    "shares": ("masked_lm\n", "masked_lm(mask_replace = 0.9, random_replace = 0.2)\n", "0.9 + 0.2"),
}


def test_what_was_shown_is_accepted(check: Check) -> None:
    checked = check(PLAN)
    assert checked.diagnostics == ()
    assert checked.graph is not None
    names = [op.name for op in checked.graph.setup]
    assert "data.open_masked" in names and "data.open" not in names
    (attention,) = (op for op in checked.graph.setup if op.name == "attention.attach")
    assert attention.kind == "bidirectional"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", UNSHOWN)
def test_what_was_not_shown_is_refused(kind: str, check: Check) -> None:
    old, new, text = UNSHOWN[kind]
    assert old in PLAN
    found = [one for one in check(PLAN.replace(old, new)).diagnostics if one.code.code == "P775"]
    assert any(text in one.primary.text for one in found)


@pytest.mark.parametrize("mesh_dim", ["cp", "pp"])
def test_sequences_and_layers_stay_whole(mesh_dim: str, check: Check) -> None:
    text = PLAN.replace("  tp = 2", f"  {mesh_dim} = 2").replace(
        "tensor_parallel on tp {\n  auto(solve)\n}\n", ""
    )
    text = text.replace("data {", CONTEXT + " {") if mesh_dim == "cp" else text + "\npipeline on pp {\n}\n"
    text = text.replace("on dp_shard", "on dp_shard, cp") if mesh_dim == "cp" else text
    found = [one.primary.span for one in check(text).diagnostics if one.code.code == "P775"]
    line = next(number for number, one in enumerate(text.splitlines(), 1) if one == f"  {mesh_dim} = 2")
    assert [span.line for span in found] == [line]


@pytest.mark.parametrize("task, other", [("masked_lm", "tiny-llama"), ("causal_lm", "tiny-bert")])
def test_the_help_names_the_task_of_the_class(task: str, other: str, check: Check) -> None:
    text = PLAN.replace("tiny-bert", other).replace("task = masked_lm", f"task = {task}")
    (found,) = check(text).diagnostics
    meant = "causal_lm" if task == "masked_lm" else "masked_lm"
    assert (found.code.code, found.help) == ("P216", f"write `task = {meant}` in `model`")


@pytest.mark.parametrize("token, is_refused", [("</s>", True), ("[MASK]", False)])
def test_a_tokenizer_names_its_mask(token: str, is_refused: bool, check: Check, plan_base: Path) -> None:
    folder = save_tokenizer(plan_base / f"tokenizer-{is_refused}", template=None)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace("<|im_end|>", token), encoding="utf-8")
    text = PLAN.replace("sequence_length", f'tokenizer = file("{folder.name}")\n  sequence_length', 1)
    codes = [one.code.code for one in check(text).diagnostics]
    assert ("P775" in codes) is is_refused


def test_the_models_own_attention_is_accepted(check: Check) -> None:
    assert check(PLAN, settings=("model.attention=eager",)).diagnostics == ()
