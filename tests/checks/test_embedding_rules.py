"""Embedding models: pairs, loss and task belong together; what was not shown is refused."""

from __future__ import annotations

import pytest
from variants import Check

from planc.graph.ops import BuildEmbedder, ComputeContrastiveLoss, Evaluate, OpenMatchedData
from planc.vocab import Pooling
from tests.plans import TINY, encoder_plan

TASK, LOSS, SOURCE = "embedding(pooling = cls)", "loss = contrastive(group = 2)", 'matched("data/*.txt")'


def with_evaluation(source: str) -> str:
    return f'source = {SOURCE}\n\n  eval "held_out" {{\n    source = {source}\n    every = 2 steps\n  }}'


PLAN = (
    encoder_plan("tiny-bert", task=f"{TASK}\n  dropout = false", source=SOURCE)
    .replace('"bert.encoder', '"encoder')
    .replace("train {", f"train {{\n  {LOSS}")
    .replace("micro_batch = 1", "micro_batch = 4")
)
UNSHOWN = {
    "first token of a decoder": (
        'tiny-bert"',
        'tiny-llama"',
        "P775",
        "first token of a decoder sees no other",
    ),
    "no loss": (LOSS, "", "P775", "vectors of texts are compared with each other"),
    "preferences": (LOSS, "loss = dpo(beta = 0.1)", "P775", "vectors of texts are compared"),
    "texts": (SOURCE, 'text("data/*.txt")', "P775", "no two texts that belong together"),
    "a mixture": (
        f"source = {SOURCE}",
        f'source "a" {{\n    source = {SOURCE}\n  }}\n  source "b" {{\n    source = {SOURCE}\n  }}',
        "P775",
        "from the one `source`",
    ),
    "an evaluation of texts": (
        f"source = {SOURCE}",
        with_evaluation('text("a.txt")'),
        "P775",
        "no two texts that belong together",
    ),
    "eager": (TASK, f"{TASK}\n  attention = eager", "P775", "would see padding"),
    "compiled": (
        "data {",
        'compile {\n  "encoder.layer.*" -> region\n}\ndata {',
        "P775",
        "no compiled model",
    ),
    "half a group": ("group = 2", "group = 3", "P758", "a group of 3 pairs is 6 sequences"),
    "packed": (f"source = {SOURCE}", f"source = {SOURCE}\n  packing = whole", "P758", "one text of a pair"),
    "chunks": (LOSS, f"{LOSS}\n  loss_chunks = 2", "P726", "does not compute its logits"),
}


def test_what_was_shown_is_accepted(check: Check) -> None:
    checked = check(PLAN.replace(f"source = {SOURCE}", with_evaluation(SOURCE.replace("data", "held"))))
    assert checked.diagnostics == () and checked.graph is not None
    assert any(isinstance(op, OpenMatchedData) for op in checked.graph.setup)
    (build,) = (op for op in checked.graph.setup if isinstance(op, BuildEmbedder))
    assert build.architecture == "BertModel"
    evaluated = (part for op in checked.graph.step if isinstance(op, Evaluate) for part in op.body)
    losses = [op for op in (*checked.graph.ops(), *evaluated) if isinstance(op, ComputeContrastiveLoss)]
    assert [(op.pooling, op.temperature, op.group) for op in losses] == [(Pooling.CLS, 0.05, 2)] * 2
    (attention,) = (op for op in checked.graph.setup if op.name == "attention.attach")
    assert (attention.kind, attention.isolates) == ("bidirectional", True)  # type: ignore[attr-defined]


def test_bad_rows_may_be_left_out(check: Check) -> None:
    plan = PLAN.replace(f"source = {SOURCE}", f"source = {SOURCE}\n  skip_bad = 1")
    assert check(plan).diagnostics == ()


@pytest.mark.parametrize("kind", UNSHOWN)
def test_what_was_not_shown_is_refused(kind: str, check: Check) -> None:
    old, new, code, text = UNSHOWN[kind]
    assert old in PLAN
    problems = check(PLAN.replace(old, new)).diagnostics
    assert any(one.code.code == code and text in one.primary.text for one in problems), problems


def test_a_group_has_a_multiple_that_holds_it(check: Check) -> None:
    (problem,) = check(PLAN.replace("group = 2", "group = 3")).diagnostics
    assert problem.help == "write `micro_batch = 6`, or another `group`"


LAST = (
    PLAN.replace("tiny-bert", "tiny-llama").replace("encoder.layer.*", "layers.*").replace("= cls", "= last")
)


def test_the_model_may_have_any_head(check: Check) -> None:
    graph = check(LAST).graph
    assert graph is not None
    (build,) = (op for op in graph.setup if isinstance(op, BuildEmbedder))
    assert build.architecture == "LlamaModel"


@pytest.mark.parametrize(
    "old, new, text",
    [
        ('text("data/*.txt")', SOURCE, "a language model has no pairs to match"),
        ("train {", f"train {{\n  {LOSS}", "it compares vectors of texts"),
    ],
)
def test_language_models_have_no_vectors(old: str, new: str, text: str, check: Check) -> None:
    problems = check(TINY.replace(old, new)).diagnostics
    assert [(one.code.code, one.primary.text) for one in problems] == [("P775", text)]


@pytest.mark.parametrize(
    "model, code, help",
    [
        ("tiny-qwen3-moe", "P725", "freeze the routers"),
        ("tiny-qwen3-moe-balanced", "P775", "write `balance { loss = none }`"),
    ],
)
def test_routers_are_not_balanced(model: str, code: str, help: str, check: Check) -> None:
    (problem,) = check(LAST.replace("tiny-llama", model).replace("tp = 2", "tp = 1")).diagnostics
    assert problem.code.code == code and problem.help is not None and problem.help.startswith(help)
