"""Classifiers of texts and of words: rows and model have the same classes; what was not shown is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from variants import Check

from planc.data_sources.kinds import LabeledSource
from planc.graph.ops import BuildClassifier, ComputeLoss, OpenLabeledData
from planc.inventory.codec import dumps, loads
from tests.plans import TINY, encoder_plan

TASK = "sequence_classification(labels = 3)"
PLAN = encoder_plan("tiny-bert-classifier", task=TASK, source='labeled("data/*.txt")')
UNSHOWN = {
    "packed": ("sequence_length", "packing = whole\n  sequence_length", "each sequence holds one text"),
    "unlabeled": ('labeled("data/*.txt")', 'text("data/*.txt")', "its rows have no classes"),
    "other classes": (TASK, "sequence_classification(labels = 2)", "config.json has 3"),
    "regression": (TASK, "sequence_classification(labels = 1)", "one class is a regression"),
    "eager": (TASK, f"{TASK}\n  attention = eager", "would see padding"),
    "compiled": ("data {", 'compile {\n  "bert.encoder.layer.*" -> region\n}\ndata {', "compiled encoder"),
    "preferences": ("train {", "train {\n  loss = dpo(beta = 0.1)", "pairs of answers"),
}


def test_what_was_shown_is_accepted(check: Check) -> None:
    checked = check(PLAN)
    assert checked.diagnostics == ()
    assert checked.graph is not None
    assert "data.open_labeled" in [op.name for op in checked.graph.setup]
    (attention,) = (op for op in checked.graph.setup if op.name == "attention.attach")
    assert (attention.kind, attention.isolates) == ("bidirectional", True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", UNSHOWN)
def test_what_was_not_shown_is_refused(kind: str, check: Check) -> None:
    old, new, text = UNSHOWN[kind]
    assert old in PLAN
    found = [one for one in check(PLAN.replace(old, new)).diagnostics if one.code.code == "P775"]
    assert any(text in one.primary.text for one in found)


def test_an_evaluation_on_the_rows_that_are_trained_on_is_warned_of(check: Check) -> None:
    held = 'eval "held" {\n    every = 5 steps\n    source = labeled("data/a.txt")\n  }\n  sequence_length'
    found = check(PLAN.replace("sequence_length", held, 1)).diagnostics
    assert "P734" in [one.code.code for one in found]


def test_a_sequence_stays_whole(check: Check) -> None:
    rules = '  "bert.encoder.layer.*.output.dense" -> rowwise(output = Shard(1))\n'
    found = check(PLAN.replace("  auto(solve)\n", rules)).diagnostics
    assert any("one rank of tp" in one.primary.text for one in found if one.code.code == "P775")


def test_models_are_given_the_types_that_they_tell_apart(check: Check) -> None:
    graph = check(PLAN.replace('("data/*.txt")', '("data/*.txt", pair = "second")')).graph
    assert graph is not None
    (data,) = (op for op in graph.setup if isinstance(op, OpenLabeledData))
    assert data.token_types == 2 and isinstance(data.source, LabeledSource) and data.source.pair == "second"


ROWS_OF_WORDS = 'labeled("data/*.txt", field = "tokens", label = "ner_tags")'
WORDS = encoder_plan(
    "tiny-bert",
    task="token_classification(labels = 3)\n  dropout = false",
    source=ROWS_OF_WORDS,
)


def test_words_have_classes_of_their_own(check: Check) -> None:
    graph = check(WORDS).graph
    assert graph is not None
    (data,) = (op for op in graph.setup if isinstance(op, OpenLabeledData))
    assert data.by_word and isinstance(data.source, LabeledSource) and data.source.by_word
    (build,) = (op for op in graph.setup if isinstance(op, BuildClassifier))
    assert build.architecture == "BertForTokenClassification"
    assert not any(op.by_sequence for op in graph.ops() if isinstance(op, ComputeLoss))


UNSHOWN_OF_WORDS = {
    "unlabeled": (ROWS_OF_WORDS, 'text("data/*.txt")', "its rows have no classes"),
    "regression": ("labels = 3", "labels = 1", "one class is nothing to learn"),
    "pairs": (ROWS_OF_WORDS, f'{ROWS_OF_WORDS[:-1]}, pair = "other")', "a pair of texts has one class"),
    "sequence": (
        "auto(solve)",
        '"bert.encoder.layer.*.output.dense" -> rowwise(output = Shard(1))',
        "no run",
    ),
}


@pytest.mark.parametrize("kind", UNSHOWN_OF_WORDS)
def test_of_words_too_what_was_not_shown_is_refused(kind: str, check: Check) -> None:
    old, new, text = UNSHOWN_OF_WORDS[kind]
    assert old in WORDS
    problems = [one for one in check(WORDS.replace(old, new)).diagnostics if one.code.code == "P775"]
    assert any(text in one.primary.text for one in problems)


def test_a_classifier_of_texts_is_none_of_words(check: Check) -> None:
    """Its head has the name of a head of words, and other weights."""
    (problem,) = check(WORDS.replace("models/tiny-bert", "models/tiny-bert-classifier")).diagnostics
    assert problem.code.code == "P216"
    assert "config.json names BertForSequenceClassification" in problem.primary.text


def test_language_models_have_no_classes(check: Check) -> None:
    (found,) = check(TINY.replace('text("data/*.txt")', 'labeled("data/*.txt")')).diagnostics
    assert (found.code.code, found.primary.text) == ("P775", "a language model has no classes to learn")


def test_the_help_names_the_task_of_the_class(check: Check) -> None:
    (found,) = check(PLAN.replace(f"  task = {TASK}\n", "")).diagnostics
    assert (found.code.code, found.help) == ("P216", f"write `task = {TASK}` in `model`")


@pytest.mark.parametrize("kind", ["regression", "multi_label_classification"])
def test_other_problems_are_refused_by_name(kind: str, check: Check, plan_base: Path) -> None:
    folder = plan_base / kind
    folder.mkdir()
    config = json.loads((plan_base / "models/tiny-bert-classifier/config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"problem_type": kind}), encoding="utf-8")
    (found,) = check(PLAN.replace("models/tiny-bert-classifier", kind)).diagnostics
    assert (found.code.code, kind in found.primary.text) == ("P216", True)


def test_the_help_on_dropped_weights_leads_to_a_plan(check: Check, plan_base: Path) -> None:
    """Eager attention, which other plans may have instead, is refused for an encoder."""
    folder = plan_base / "dropped"
    folder.mkdir()
    config = json.loads((plan_base / "models/tiny-bert-classifier/config.json").read_text(encoding="utf-8"))
    dropped = {"attention_probs_dropout_prob": 0.1}
    (folder / "config.json").write_text(json.dumps(config | dropped), encoding="utf-8")
    text = PLAN.replace("models/tiny-bert-classifier", "dropped")
    (found,) = check(text).diagnostics
    assert found.code.code == "P724" and found.help is not None
    assert found.help.startswith("set `attention_probs_dropout_prob` to 0 in config.json, or")
    assert check(text.replace(TASK, f"{TASK}\n  dropout = false")).graph is not None


def test_the_help_on_other_attention_is_not_what_the_task_refuses(check: Check, plan_base: Path) -> None:
    """Attention such as ModernBERT's needs `attention = eager`, and P775 rejects that for padded texts."""
    inventory = loads((plan_base / "models/tiny-bert-classifier/inventory.json").read_bytes())
    attentions = tuple(replace(one, extras=(*one.extras, "position_bias")) for one in inventory.attentions)
    folder = plan_base / "models" / "other-attention"
    folder.mkdir()
    (folder / "inventory.json").write_text(dumps(replace(inventory, attentions=attentions)))
    (problem,) = check(PLAN.replace("tiny-bert-classifier", "other-attention")).diagnostics
    assert problem.code.code == "P708" and problem.help is not None
    assert problem.help.startswith("use an encoder without it") and "P775" in problem.help


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ('["negative", "neutral", "positive"]', None),
        ('["negative", "positive"]', "3 classes, and 2 `names`"),
        ('["bad", "plain", "good"]', "the model's config.json has other names of classes"),
    ],
)
def test_names_of_classes_are_those_of_the_model(names: str, found: str | None, check: Check) -> None:
    text = PLAN.replace("(labels = 3)", f"(labels = 3, names = {names})")
    assert text != PLAN
    diagnostics = check(text).diagnostics
    assert [one.primary.text for one in diagnostics if one.code.code == "P775"] == ([found] if found else [])


def test_names_made_up_by_transformers_are_none(check: Check, plan_base: Path) -> None:
    file = plan_base / "models/tiny-bert-classifier/config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["id2label"] = {str(number): f"LABEL_{number}" for number in range(3)}
    (plan_base / "made-up").mkdir()
    (plan_base / "made-up/config.json").write_text(json.dumps(config), encoding="utf-8")
    text = PLAN.replace("models/tiny-bert-classifier", "made-up")
    text = text.replace("(labels = 3)", '(labels = 3, names = ["bad", "plain", "good"])')
    assert "P775" not in {one.code.code for one in check(text).diagnostics}


def test_names_are_in_the_order_of_their_numbers(check: Check, plan_base: Path) -> None:
    """An export sorts the keys of config.json as text, so 10 is before 2."""
    file = plan_base / "models/tiny-bert-classifier/config.json"
    names = [f"class {number}" for number in range(12)]
    config = json.loads(file.read_text(encoding="utf-8"))
    config["id2label"] = {str(number): name for number, name in enumerate(names)}
    config["label2id"] = {name: number for number, name in enumerate(names)}
    (plan_base / "many").mkdir()
    text = json.dumps(config, sort_keys=True)
    (plan_base / "many/config.json").write_text(text, encoding="utf-8")
    for written, is_refused in ((names, False), (names[::-1], True)):
        task = f"(labels = 12, names = {json.dumps(written)})"
        plan = PLAN.replace("models/tiny-bert-classifier", "many").replace("(labels = 3)", task)
        assert ("P775" in {one.code.code for one in check(plan).diagnostics}) is is_refused
