"""What a model's initialisation leaves out, and what a decay group does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from by_code import of
from tokenizers import Tokenizer, models
from variants import Check, tiny_llama

from planc.api import check_source
from planc.diagnostics import Diagnostic
from planc.inventory.codec import dumps
from planc.inventory.load import save_inventory
from planc.source import SourceFile
from tests.models.architectures import architectures
from tests.models.tiny import tiny_config
from tests.plans import TINY

NORM = "**.*norm*"
LAYER_NORMS = "`model.layers.*.{input,post_attention}_layernorm`"


@pytest.fixture(scope="module")
def partly_set(plan_base: Path) -> str:
    """A model that leaves the weight of its last norm unset, and no buffer."""
    tiny = tiny_llama()
    modules = tuple(
        replace(module, unset=("weight",)) if module.fqn == "model.norm" else module
        for module in tiny.modules
    )
    folder = plan_base / "models" / "tiny-llama-partly-set"
    folder.mkdir()
    (folder / "inventory.json").write_text(dumps(replace(tiny, modules=modules)))
    return TINY.replace("models/tiny-llama", "models/tiny-llama-partly-set")


def test_an_unset_parameter_may_come_from_files(partly_set: str, check: Check) -> None:
    (found,) = of("P720", check(partly_set))
    assert "`model.norm.weight`" in found.primary.text
    assert "`weights = pretrained`" in found.help
    pretrained = partly_set.replace("model {", "model {\n  weights = pretrained")
    assert not of("P720", check(pretrained))


def test_an_unset_buffer_comes_from_no_file(check: Check) -> None:
    text = TINY.replace("models/tiny-llama", "models/tiny-apertus")
    (found,) = of("P720", check(text.replace("model {", "model {\n  weights = pretrained")))
    assert "act_fn.{beta,eps}`" in found.primary.text
    assert "pretrained" not in found.help


def test_fused_attention_drops_no_weights(check: Check) -> None:
    text = TINY.replace("models/tiny-llama", "models/tiny-gpt2")
    (found,) = of("P724", check(text))
    assert found.primary.text.startswith("`attn_pdrop` of its config.json is not 0, and fused attention")
    assert "`attention = eager`" in found.help
    assert "`dropout = false`" in found.help
    eager = check(text.replace("model {", "model {\n  attention = eager"))
    assert not of("P724", eager)
    quiet = check(text.replace("model {", "model {\n  dropout = false"))
    assert not of("P724", quiet)
    assert not of("P724", check(TINY))


def test_a_loss_beside_cross_entropy_is_not_left_out_in_silence(check: Check) -> None:
    text = TINY.replace("models/tiny-llama", "models/tiny-qwen3-moe-balanced")
    assert not of("P725", check(text))
    (found,) = of("P725", check(text.replace("optimizer {", "balance {\n  loss = none\n}\noptimizer {")))
    assert "`router_aux_loss_coef`" in found.notes[-1]


SWITCH = "balance {\n  loss = switch(coefficient = 0.1)\n}\noptimizer {"
STEP = SWITCH.replace("0.1", "0.1, over = step")
PIPELINE = "pipeline on pp {\n}\noptimizer {"
ADAPTER = """adapter {
  kind = lora(rank = 4, alpha = 4)
  "model.layers.*.self_attn.o_proj" -> adapted
}
mesh {"""
BIAS = "balance {\n  loss = bias(update = 1e-3)\n}\noptimizer {"


@pytest.mark.parametrize(
    ("model", "edits", "text"),
    [
        ("tiny-llama", (("optimizer {", SWITCH),), "no experts"),
        ("tiny-llama4", (("optimizer {", SWITCH),), "router of `model.layers.*.feed_forward.experts`"),
        (
            "tiny-inkling",
            (("optimizer {", SWITCH),),
            "`model.layers.*.mlp.gate` has rows for more than experts",
        ),
        (
            "tiny-qwen3-moe",
            (("optimizer {", STEP), ("steps = 10", "steps = 10\n  tokens_per_step = 256")),
            "a step has 2 micro-batches",
        ),
        (
            "tiny-qwen3-moe",
            (("optimizer {", SWITCH), ("mesh {", 'compile {\n  "model.layers.*" -> region\n}\nmesh {')),
            "`model.layers.*` contains experts and is compiled",
        ),
        (
            "tiny-qwen3-moe-balanced",
            (
                ("optimizer {", PIPELINE),
                ("  tp = 2\n", "  tp = 2\n  pp = 2\n"),
                ("steps = 10", "steps = 10\n  tokens_per_step = 512"),
            ),
            "`layers = pooled` needs the choices of all layers",
        ),
        ("tiny-qwen3-moe", (("optimizer {", BIAS),), "no router of this model has a bias"),
        (
            "tiny-deepseek-v3",
            (
                ("optimizer {", BIAS),
                ("mesh {", ADAPTER),
            ),
            "is a tensor of the base model",
        ),
    ],
)
def test_balance_that_would_not_be_exact_is_refused(
    model: str, edits: tuple[tuple[str, str], ...], text: str, check: Check
) -> None:
    plan = TINY.replace("models/tiny-llama", f"models/{model}")
    for old, new in edits:
        assert old in plan
        plan = plan.replace(old, new)
    assert [text in one.primary.text for one in of("P727", check(plan))] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zaya", "inkling_text"])
def test_routers_with_rows_for_more_than_experts_are_refused(name: str, tmp_path: Path) -> None:
    """Zaya's choose to skip a layer, too; Inkling's weigh shared experts."""
    (tmp_path / "model").mkdir()
    config = json.dumps(tiny_config(name, architectures()[name]))
    (tmp_path / "model" / "config.json").write_text(config, encoding="utf-8")
    save_inventory(tmp_path / "model")
    text = TINY.replace("models/tiny-llama", "model").replace("optimizer {", SWITCH)
    found = of("P727", check_source(SourceFile("x.plan", text), base=tmp_path))
    assert any("has rows for more than experts" in one.primary.text for one in found)


def test_biases_in_half_precision_are_not_moved(check: Check) -> None:
    """Most classes keep them in float32; an inventory states which do."""
    text = TINY.replace("models/tiny-llama", "models/tiny-deepseek-v3").replace("optimizer {", BIAS)
    narrow = text.replace("model {", "model {\n  dtype = bfloat16")
    assert not of("P727", check(narrow)) and not of("P725", check(narrow))


def test_a_whole_step_is_balanced_where_it_is_one_micro_batch(check: Check) -> None:
    plan = TINY.replace("models/tiny-llama", "models/tiny-qwen3-moe").replace("optimizer {", STEP)
    assert not of("P727", check(plan)) and not of("P725", check(plan))


@pytest.mark.parametrize("name", ["tiny-qwen3-moe", "tiny-deepseek-v3", "tiny-llama4", "tiny-inkling"])
def test_routers_that_nothing_balances_are_not_trained_in_silence(name: str, check: Check) -> None:
    """Whether a config.json enables a loss or not, and also if the model has a bias that nothing updates."""
    text = TINY.replace("models/tiny-llama", f"models/{name}")
    (found,) = of("P725", check(text))
    assert "which of 4 experts each token goes to" in found.primary.text
    *blocks, _ = found.help.split("`")[1::2]
    assert len(blocks) == (1 if name in ("tiny-llama4", "tiny-inkling") else 2)
    for block in blocks:
        mended = check(text.replace("optimizer {", f"{block}\noptimizer {{"))
        assert not of("P725", mended) and not of("P727", mended)


def test_pretrained_weights_are_not_trained_on_bytes(check: Check) -> None:
    pretrained = TINY.replace("model {", "model {\n  weights = pretrained")
    assert not of("P735", check(pretrained))  # a model of bytes
    large = pretrained.replace("models/tiny-llama", "models/llama-3.2-1b")
    (found,) = of("P735", check(large))
    assert "128256 ids" in found.primary.text
    assert not of("P735", check(large.replace("data {", 'data {\n  tokenizer = file("tokenizer.json")')))
    assert not of("P735", check(TINY.replace("models/tiny-llama", "models/llama-3.2-1b")))


def saved_words(folder: Path, *words: str) -> None:
    folder.mkdir()
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def test_pretrained_weights_are_not_trained_on_the_ids_of_another_tokenizer(
    check: Check, plan_base: Path
) -> None:
    """Tokens that are added to the model's own leave the others their ids."""
    own = [f"w{number}" for number in range(100)]
    saved_words(plan_base / "own", *own)
    for file in ("config.json", "inventory.json"):
        (plan_base / "own" / file).write_bytes((plan_base / "models" / "tiny-llama" / file).read_bytes())
    saved_words(plan_base / "more", *own, "new")
    saved_words(plan_base / "turned", *reversed(own))
    text = TINY.replace('"models/tiny-llama"', '"own"\n  weights = pretrained')
    texts = {
        name: text.replace("data {", f'data {{\n  tokenizer = file("{name}")')
        for name in ("own", "own/tokenizer.json", "more", "turned", "absent")
    }
    assert {name for name, text in texts.items() if of("P735", check(text))} == {"turned"}
    (found,) = of("P735", check(texts["turned"]))
    assert found.primary.text == "turned has the id of the model's own tokenizer for 0 of its 100 tokens"
    assert not of("P735", check(texts["turned"].replace("= pretrained", "= random")))


def decayed(*rules: str, decay: float = 0.1, check: Check) -> list[Diagnostic]:
    groups = "\n  ".join(rules)
    kind = f"adamw(lr = 1e-3, weight_decay = {decay})"
    text = TINY.replace("kind = adamw(lr = 1e-3)", f"kind = {kind}\n  {groups}")
    assert kind in text
    return of("P721", check(text))


def test_norms_beside_the_spared_ones_are_named(check: Check) -> None:
    (found,) = decayed('"model.norm" -> group(weight_decay = 0.0)', check=check)
    assert found.primary.text == f"{LAYER_NORMS} decay by 0.1"


@pytest.mark.parametrize(
    "rules",
    [
        (f'"{NORM}" -> group(weight_decay = 0.0)',),
        ('"**.embed_tokens" -> group(weight_decay = 0.0)',),
        ('"model.norm" -> group(weight_decay = 0.0)', '"model.layers.*.*norm" -> group(weight_decay = 0.05)'),
        ('"model.norm" -> group(weight_decay = 0.05)',),
    ],
    ids=["all norms", "no norm", "the others written", "none without decay"],
)
def test_groups_that_are_meant_say_nothing(rules: tuple[str, ...], check: Check) -> None:
    assert decayed(*rules, check=check) == []


def test_without_any_decay_nothing_is_left_out(check: Check) -> None:
    assert decayed('"model.norm" -> group(weight_decay = 0.0)', decay=0.0, check=check) == []
