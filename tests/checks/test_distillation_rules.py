"""Settings that distillation is computed with, and teachers that it refuses, each with its reason."""

from __future__ import annotations

import json

import pytest
from variants import Check

from planc.api import Checked
from planc.diagnostics import Diagnostic, Severity
from planc.estimate.estimate import estimate
from planc.show.estimate import memory_text
from planc.show.overview import essence

PLAN = """\
model { hf = "models/tiny-llama"; MODEL }
mesh { MESH }
data {
  source = SOURCE
  sequence_length = 32
  micro_batch = 4
  DATA
}
optimizer { kind = adamw(lr = 1e-3) }
train {
  steps = 4
  loss = distillation(teacher = "TEACHER", logits = "stored", LOSS)
  TRAIN
}
BLOCKS
"""
DEFAULTS = {
    **dict.fromkeys(("MODEL", "DATA", "TRAIN", "BLOCKS"), ""),
    "SOURCE": 'text("data/*.txt")',
    "MESH": "tp = 1",
    "TEACHER": "models/tiny-mistral",
    "LOSS": "top_k = 8",
}
ADAPTER = 'adapter { kind = lora(rank = 2, alpha = 4); "model.layers.*.self_attn.q_proj" -> adapted }'
CONTEXT = (
    'context_parallel on cp { rotate = ring; ["input_ids", "labels", "position_ids"] -> Shard(1) }; '
    'fsdp on cp { "model.layers.*" -> unit }'
)
ACCEPTED = {
    "another architecture": {},
    "all logits": {"LOSS": "top_k = 260"},
    "chunks": {"TRAIN": "loss_chunks = 2"},
    "an evaluation": {"DATA": 'eval "held" { share = 10 %; every = 2 steps }'},
    "packing": {"DATA": "packing = isolate"},
    "cp": {"MESH": "cp = 2", "BLOCKS": CONTEXT},
    "pp": {"MESH": "pp = 2", "BLOCKS": "pipeline on pp { schedule = gpipe }"},
    "tp": {"MESH": "tp = 2", "BLOCKS": "tensor_parallel on tp { auto }"},
    "adapters": {"BLOCKS": ADAPTER},
    "a teacher on other machines": {"TEACHER": "runs/first/export/hf"},
}
REFUSED = {
    "another vocabulary": (
        {"TEACHER": "models/tiny-llama-small-vocabulary"},
        "P762",
        "its vocab_size is 100, and the model's is 260",
    ),
    "more tokens than there are": ({"LOSS": "top_k = 261"}, "P762", "`top_k` is 261"),
    "pairs": ({"SOURCE": 'pairs("pairs.jsonl", template = none)'}, "P757", "of tokens, not of pairs"),
    "a compiled loss": (
        {"BLOCKS": 'compile { loss = true; "model.layers.*" -> region }'},
        "P816",
        "plain cross entropy alone",
    ),
    "no share": ({"LOSS": "weight = 0.0"}, "P206", ""),
}


def written(parts: dict[str, str]) -> str:
    text = PLAN
    for name, default in DEFAULTS.items():
        text = text.replace(name, parts.get(name, default))
    return text.replace(";", "\n")


def errors_of(checked: Checked) -> list[Diagnostic]:
    return [finding for finding in checked.diagnostics if finding.severity is Severity.ERROR]


@pytest.mark.parametrize("name", ACCEPTED)
def test_distillation_is_computed_with(name: str, check: Check) -> None:
    assert errors_of(check(written(ACCEPTED[name]))) == []


@pytest.mark.parametrize("name", REFUSED)
def test_distillation_is_refused_with(name: str, check: Check) -> None:
    parts, code, reason = REFUSED[name]
    errors = errors_of(check(written(parts)))
    assert [(error.code.code, reason in error.primary.text) for error in errors] == [(code, True)]


def tokenizer(*tokens: str) -> str:
    ids = {token: number for number, token in enumerate(tokens)}
    return json.dumps({"model": {"type": "BPE", "vocab": ids, "merges": []}, "added_tokens": []})


@pytest.mark.parametrize(
    ("own", "teachers", "reason"),
    [
        ('file("own.json")', ("a", "b"), ""),
        ('file("own.json")', ("b", "a"), 'token "a" is id 1, and the plan\'s is id 0'),
        ('file("own.json")', ("a", "b", "c"), 'token "c" is id 2, and the plan\'s is absent'),
        ("bytes", ("a", "b"), "it has a tokenizer.json, and the data is bytes"),
    ],
)
def test_both_models_have_the_same_ids(
    own: str, teachers: tuple[str, ...], reason: str, check: Check
) -> None:
    files = {
        "own.json": tokenizer("a", "b"),
        "teacher/config.json": '{"vocab_size": 260}',
        "teacher/tokenizer.json": tokenizer(*teachers),
    }
    text = written({"TEACHER": "teacher", "DATA": f"tokenizer = {own}", "LOSS": "top_k = 2"})
    errors = errors_of(check(text, files=files))
    assert [error.code.code for error in errors] == ["P762"] * bool(reason)
    assert all(reason in error.primary.text for error in errors)


def test_a_masked_language_model_has_no_teacher(check: Check) -> None:
    text = written({"MODEL": "task = masked_lm"}).replace("tiny-llama", "tiny-bert")
    (error,) = errors_of(check(text.replace("tiny-mistral", "tiny-bert")))
    assert (error.code.code, "labels are hidden tokens" in error.primary.text) == ("P762", True)


def test_estimates_show_what_is_stored_of_a_sequence(check: Check) -> None:
    """32 positions of 8 tokens, of 8 bytes each."""
    checked = check(written({}))
    assert checked.bound is not None and checked.graph is not None and checked.inventory is not None
    estimated = estimate(checked.graph, checked.inventory)
    assert "have 2.00 KiB on disk for each sequence" in memory_text(estimated)
    shown = dict(essence(checked.bound, checked.graph, estimated))
    assert shown["teacher"] == "top 8 of models/tiny-mistral, 2.00 KiB on disk for each sequence"
