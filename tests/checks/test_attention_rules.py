"""Attention that is the model's own: when `attention = eager` is asked for, and what it does not bear."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from variants import MODELS, Check, tiny_llama

from planc.api import Checked
from planc.inventory.codec import dumps, loads
from tests.plans import TINY, encoder_plan

CATALOGUE = Path(__file__).parents[1] / "catalogue"
EAGER = ("model.attention=eager",)
CP = TINY.replace("tp = 2", "cp = 2").replace("fsdp on dp_shard", "fsdp on dp_shard, cp")
CP = CP.replace(
    "tensor_parallel on tp {\n  auto\n}",
    'context_parallel on cp {\n  rotate = ROTATE\n  ["input_ids", "labels", "position_ids"] -> Shard(1)\n}',
)
WHOLE = TINY.replace("  tp = 2\n", "").replace("tensor_parallel on tp {\n  auto\n}\n", "")


def codes(checked: Checked) -> set[str]:
    return {diagnostic.code.code for diagnostic in checked.diagnostics}


@pytest.fixture(scope="module")
def own(plan_base: Path) -> str:
    """The name of a model with attention in code of its own."""
    tiny = tiny_llama()
    names = tuple(attention.fqn for attention in tiny.attentions)
    folder = plan_base / "models" / "tiny-llama-own"
    folder.mkdir()
    (folder / "inventory.json").write_text(dumps(replace(tiny, attentions=(), own_attentions=names)))
    return "models/tiny-llama-own"


def tiny_with(extra: str, base: Path) -> str:
    """The name of a model whose attentions use a feature more."""
    tiny = tiny_llama()
    folder = base / "models" / f"tiny-llama-{extra}"
    folder.mkdir()
    attentions = tuple(replace(one, extras=(extra,)) for one in tiny.attentions)
    (folder / "inventory.json").write_text(dumps(replace(tiny, attentions=attentions)))
    return f"models/{folder.name}"


def test_attention_of_the_models_own_asks_for_eager(own: str, check: Check) -> None:
    (found,) = check(WHOLE.replace("models/tiny-llama", own)).diagnostics
    assert found.code.code == "P708"
    assert "computes attention in its own code" in found.primary.text
    assert "write `attention = eager`" in found.help


def test_several_attentions_use_a_feature_and_one_uses_it(check: Check, plan_base: Path) -> None:
    model = plan_base / "models" / "tiny-bart-encoder-decoder"
    inventory = loads((model / "inventory.json").read_bytes())
    folder = plan_base / "models" / "tiny-bart-with-bias"
    folder.mkdir()
    for names, text in (
        (("self_attn", "encoder_attn"), "`model.decoder.layers.*.{self,encoder}_attn` use `position_bias`"),
        (("self_attn",), "`model.decoder.layers.*.self_attn` uses `position_bias`"),
    ):
        ends = tuple(f".{name}" for name in names)
        attentions = tuple(
            replace(each, extras=(*each.extras, "position_bias"))
            if each.fqn.startswith("model.decoder") and each.fqn.endswith(ends)
            else each
            for each in inventory.attentions
        )
        (folder / "inventory.json").write_text(dumps(replace(inventory, attentions=attentions)))
        plan = encoder_plan(
            "tiny-bart-with-bias", task="seq2seq_lm\n  dropout = false", source='mapped("data/*.txt")'
        ).replace('"bert.encoder.layer.*"', '"model.{encoder,decoder}.layers.*"')
        (problem,) = check(plan).diagnostics
        assert (problem.code.code, problem.primary.text) == ("P708", text)


def test_eager_runs_attention_of_the_models_own(own: str, check: Check) -> None:
    assert codes(check(WHOLE.replace("models/tiny-llama", own), settings=EAGER)) == set()


def test_heads_of_attention_of_the_models_own_cannot_be_divided(own: str, check: Check) -> None:
    assert codes(check(TINY.replace("models/tiny-llama", own), settings=EAGER)) == {"P418"}


def test_capped_scores_are_computed_with_every_attention(check: Check) -> None:
    text = WHOLE.replace("models/tiny-llama", "models/tiny-gemma2")
    for settings in (), EAGER:
        assert codes(check(text, settings=settings)) == set()


def test_sinks_are_computed_with_every_attention(check: Check, plan_base: Path) -> None:
    sinks = tiny_with("s_aux", plan_base)
    for settings in (), EAGER:
        assert codes(check(WHOLE.replace("models/tiny-llama", sinks), settings=settings)) == set()


def test_sinks_beside_sharded_heads_are_sharded_by_the_rule_that_a_help_writes(
    check: Check, plan_base: Path
) -> None:
    copytree(CATALOGUE / "models" / "tiny-gpt-oss", plan_base / "models" / "tiny-gpt-oss")
    text = (CATALOGUE / "wild" / "gpt-oss-sinks.plan").read_text(encoding="utf-8")
    (found,) = check(text).diagnostics
    assert found.help == 'shard it with the heads: write `"model.layers.*.self_attn" -> local_params`'
    rule = '"model.layers.*.self_attn" -> local_params'
    assert (
        codes(check(text.replace("tensor_parallel on tp {", f"tensor_parallel on tp {{\n  {rule}"))) == set()
    )


def test_keys_that_are_not_those_of_the_tokens_are_not(check: Check, plan_base: Path) -> None:
    compressed = tiny_with("compressed_keys", plan_base)
    (found,) = check(WHOLE.replace("models/tiny-llama", compressed)).diagnostics
    assert "`compressed_keys`, keys that are not those of its tokens" in found.primary.text


def test_eager_lowers_to_no_attention_of_planc(check: Check) -> None:
    graph = check(TINY, settings=EAGER).graph
    assert graph is not None
    assert [op.kind for op in graph.setup if op.op == "attention.attach"] == ["eager"]


def test_eager_takes_no_part_of_a_sequence_over_cp(check: Check) -> None:
    assert codes(check(CP.replace("ROTATE", "allgather"), settings=EAGER)) == {"P609"}


def test_eager_takes_no_part_of_a_sequence_over_tp(check: Check) -> None:
    rules = '"model.embed_tokens" -> embedding_rowwise(output = Shard(1))'
    text = TINY.replace("  auto\n", f"  auto\n  override {rules}\n")
    assert "P609" in codes(check(text, settings=EAGER))


def test_eager_does_not_keep_documents_apart(check: Check) -> None:
    assert codes(check(TINY, settings=(*EAGER, "data.packing=isolate"))) == {"P609"}


def test_eager_is_divided_over_tp_by_heads(check: Check) -> None:
    assert codes(check(TINY, settings=EAGER)) == set()


@pytest.mark.parametrize("rotate", ["ring", "allgather", "ulysses"])
def test_every_rotation_takes_windows(rotate: str, check: Check) -> None:
    balance = "load_balancer = none" if rotate == "ulysses" else "load_balancer = headtail"
    text = CP.replace("ROTATE", f"{rotate}\n  {balance}").replace("models/tiny-llama", "models/tiny-mistral")
    assert codes(check(text, settings=("data.sequence_length=256",))) == set()


def test_a_convolution_beside_attention_is_recurrent_under_cp(plan_base: Path, check: Check) -> None:
    tiny = tiny_llama()
    convolved = tuple(
        replace(module, class_name="Conv1d") if module.fqn.endswith(".o_proj") else module
        for module in tiny.modules
    )
    folder = plan_base / "models" / "tiny-llama-convolved"
    folder.mkdir()
    (folder / "inventory.json").write_text(dumps(replace(tiny, modules=convolved)))
    text = CP.replace("ROTATE", "allgather").replace("models/tiny-llama", "models/tiny-llama-convolved")
    (found,) = check(text).diagnostics
    assert found.code.code == "P605"
    assert "`model.layers.0.self_attn.o_proj` mixes neighboring tokens" in found.primary.text


def test_a_statistic_in_an_attention_is_left_to_rules_about_heads(plan_base: Path, check: Check) -> None:
    tiny = loads((MODELS / "tiny-llama" / "inventory.json").read_bytes())
    folder = plan_base / "models" / "tiny-llama-reduced"
    folder.mkdir()
    reduced = ("model.layers.0.self_attn.k_proj",)
    (folder / "inventory.json").write_text(dumps(replace(tiny, reduced=reduced)))
    assert codes(check(TINY.replace("models/tiny-llama", "models/tiny-llama-reduced"))) == set()
