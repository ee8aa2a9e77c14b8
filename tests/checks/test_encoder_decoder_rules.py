"""Encoder-decoders: rows, task and class belong together; what was not shown is refused."""

from __future__ import annotations

import pytest
from variants import Check

from planc.graph.ops import AttachAttention, OpenMappedData
from tests.plans import TINY, encoder_plan

MODEL, SOURCE = "tiny-bart-encoder-decoder", 'mapped("data/*.txt")'
PLAN = encoder_plan(MODEL, task="seq2seq_lm\n  dropout = false", source=SOURCE).replace(
    '"bert.encoder.layer.*"', '"model.{encoder,decoder}.layers.*"'
)
UNSHOWN = {
    "texts": (SOURCE, 'text("data/*.txt")', "P775", "its rows have no targets"),
    "classes": (SOURCE, 'labeled("data/*.txt")', "P775", "its rows have no targets"),
    "packed": (f"source = {SOURCE}", f"source = {SOURCE}\n  packing = whole", "P775", "holds one input"),
    "compiled": (
        "data {",
        'compile {\n  "model.decoder.layers.*" -> region\n}\ndata {',
        "P775",
        "no encoder-decoder has been compared",
    ),
    "sequence parallel": (
        "auto(solve)",
        "auto(sequence_parallel = true)",
        "P413",
        "",
    ),
    "parts of positions": (
        "  auto(solve)\n",
        '  "model.decoder.embed_positions" -> embedding_colwise\n',
        "P775",
        "`model.decoder.embed_positions` holds no tokens",
    ),
    "another loss": ("train {", "train {\n  loss = contrastive(group = 2)", "P775", "no encoder-decoder"),
    "masked": ("seq2seq_lm", "masked_lm", "P216", "is an encoder-decoder, and the plan trains a masked"),
    "causal": ("  task = seq2seq_lm\n", "", "P216", "is an encoder-decoder, and the plan trains a causal"),
    "a decoder": (MODEL, "tiny-llama", "P216", "is a causal language model, and the plan trains an encoder"),
}


WITHOUT_TP = PLAN.replace("tensor_parallel on tp {\n  auto(solve)\n}\n\n", "")
REFUSED_ONCE = {
    "cp": WITHOUT_TP.replace("  tp = 2", "  cp = 2"),
    "cp with its block": WITHOUT_TP.replace("  tp = 2\n}", "  cp = 2\n}\n\ncontext_parallel on cp {\n}"),
    "pp": WITHOUT_TP.replace("  tp = 2", "  pp = 2"),
    "pp with its block": WITHOUT_TP.replace("  tp = 2\n}", "  pp = 2\n}\n\npipeline on pp {\n}"),
    "compile without rules": PLAN.replace("data {", "compile {\n}\n\ndata {"),
    "isolated": PLAN.replace(f"source = {SOURCE}", f"source = {SOURCE}\n  packing = isolate"),
    "preference loss": PLAN.replace("train {", "train {\n  loss = dpo(beta = 0.1)"),
    "pairs": PLAN.replace(SOURCE, 'pairs("data/*.txt")'),
    "conversations": PLAN.replace(SOURCE, 'chat("data/*.txt")'),
}
"""Plans with one setting that the task refuses, which other rules would advise to complete."""


@pytest.mark.parametrize("kind", REFUSED_ONCE)
def test_nothing_is_advised_that_the_task_refuses(kind: str, check: Check) -> None:
    text = REFUSED_ONCE[kind]
    assert text not in (PLAN, WITHOUT_TP)
    assert [problem.code.code for problem in check(text).diagnostics] == ["P775"]


def test_a_masked_model_has_no_answers_to_compare(check: Check) -> None:
    plan = encoder_plan("tiny-bert", task="masked_lm", source='text("data/*.txt")')
    (problem,) = check(plan.replace("train {", "train {\n  loss = dpo(beta = 0.1)")).diagnostics
    assert (problem.code.code, problem.primary.text.partition(",")[0]) == ("P775", "it compares answers")


@pytest.mark.parametrize("text", [PLAN, TINY], ids=["tied head", "own head"])
def test_what_is_advised_to_train_can_be_trained(text: str, check: Check) -> None:
    frozen = text.replace("data {", 'freeze {\n  "**" -> frozen\n}\n\ndata {')
    (problem,) = check(frozen).diagnostics
    assert problem.code.code == "P760" and problem.help is not None
    rule = problem.help.split("`")[1]
    assert check(frozen.replace("-> frozen\n", f"-> frozen\n  {rule}\n")).diagnostics == ()


def test_what_was_shown_is_accepted(check: Check) -> None:
    checked = check(PLAN)
    assert checked.diagnostics == () and checked.graph is not None
    (opened,) = (op for op in checked.graph.setup if isinstance(op, OpenMappedData))
    assert (opened.packing, opened.padding_id, opened.start_id) == ("none", 1, 2)
    (attention,) = (op for op in checked.graph.setup if isinstance(op, AttachAttention))
    assert (attention.kind, attention.isolates) == ("encoder_decoder", True)


@pytest.mark.parametrize("kind", UNSHOWN)
def test_what_was_not_shown_is_refused(kind: str, check: Check) -> None:
    old, new, code, text = UNSHOWN[kind]
    assert old in PLAN
    problems = check(PLAN.replace(old, new)).diagnostics
    assert any(one.code.code == code and text in one.primary.text for one in problems), problems


def test_a_causal_model_has_no_targets(check: Check) -> None:
    (problem,) = check(TINY.replace('text("data/*.txt")', SOURCE)).diagnostics
    assert problem.code.code == "P775" and problem.help is not None
    assert problem.help.startswith("write `task = seq2seq_lm`")


@pytest.mark.parametrize("mesh", ["cp = 2", "pp = 2"])
def test_meshes_that_were_not_compared_are_refused(mesh: str, check: Check) -> None:
    problems = check(PLAN.replace("  tp = 2", f"  {mesh}")).diagnostics
    assert any(one.code.code == "P775" and "compared" in one.primary.text for one in problems), problems
