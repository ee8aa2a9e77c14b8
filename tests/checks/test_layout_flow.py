"""The layout flow finds each planted fault once, and nothing in plans that are right."""

from __future__ import annotations

import pytest
from by_code import codes
from variants import Check

from tests.plans import FULL

EMBEDDING = '  "model.embed_tokens" -> embedding_rowwise(output = Shard(1))\n'
NORMS = '  "model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel\n'
GATES = '  "model.layers.*.{self_attn,mlp}" -> prepare_input(input = Shard(1), desired = Replicate())\n'
HEADS = '  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise\n'
OUT = '  "model.layers.*.self_attn.o_proj" -> rowwise(output = Shard(1))\n'
UP = '  "model.layers.*.mlp.{gate,up}_proj" -> colwise\n'
DOWN = '  "model.layers.*.mlp.down_proj" -> rowwise(output = Shard(1))\n'
NORM = '  "model.norm" -> sequence_parallel\n'
HEAD = '  "lm_head" -> colwise(input = Shard(1), output = Shard(-1))\n'
RULES = EMBEDDING + NORMS + GATES + HEADS + OUT + UP + DOWN + NORM + HEAD
MLP_DOWN = '  "model.layers.*.mlp.down_proj" ->'
DIVIDED = "(output = Shard(1))"
QK_NORMS = '  "model.layers.*.self_attn.{q,k}_norm" -> '


def with_rules(rules: str, *, model: str = "tiny-llama") -> str:
    """The full plan with other tensor-parallel rules, and perhaps another model."""
    assert RULES in FULL
    return FULL.replace(RULES, rules).replace("models/tiny-llama", f"models/{model}")


def edited(old: str, new: str) -> str:
    """The full plan's rules with one change."""
    assert old in RULES
    return RULES.replace(old, new)


@pytest.mark.parametrize("model", ["tiny-llama", "llama-3.1-8b", "llama-3.1-405b", "qwen3-8b"])
def test_models_own_plan_is_clean(model: str, check: Check) -> None:
    assert codes(check(with_rules("  auto\n", model=model))) == []


GOOD = {
    "sequence parallel": RULES,
    "gathered in each of the MLP's projections": edited(
        GATES, GATES.replace("{self_attn,mlp}", "self_attn")
    ).replace(UP, UP.replace("-> colwise\n", "-> colwise(input = Shard(1))\n")),
    "whole sequences": HEADS + OUT.replace(DIVIDED, "") + UP + DOWN.replace(DIVIDED, ""),
    "attention alone": HEADS + OUT.replace(DIVIDED, ""),
    "rowwise that divides its input": '  "model.layers.*.mlp.down_proj" -> rowwise_split_input\n',
    "colwise that gathers": '  "model.layers.*.mlp.{gate,up}_proj" -> colwise_gather_output\n',
    "replicated by name": edited(HEAD, '  "lm_head" -> colwise(input = Shard(1), output = Replicate())\n'),
}


@pytest.mark.parametrize("rules", GOOD.values(), ids=GOOD.keys())
def test_good_rules_are_clean(rules: str, check: Check) -> None:
    assert codes(check(with_rules(rules))) == []


FAULTS = {
    "no rule for the final norm": (edited(NORM, ""), "P408", '"model.norm" -> sequence_parallel'),
    "no rule for the layers' norms": (
        edited(NORMS, ""),
        "P408",
        '"model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel',
    ),
    "no rule for any norm": (edited(NORMS, "").replace(NORM, ""), "P408", "sequence_parallel"),
    "norm kept whole by a rule": (edited(NORM, '  "model.norm" -> replicate\n'), "P408", "sequence_parallel"),
    "gathered in the attention's projections": (
        edited(GATES, GATES.replace("{self_attn,mlp}", "mlp")).replace(
            HEADS, HEADS.replace("-> colwise\n", "-> colwise(input = Shard(1))\n")
        ),
        "P460",
        '"model.layers.*.self_attn" -> prepare_input(input = Shard(1), desired = Replicate())',
    ),
    "no rule for down_proj": (
        edited(DOWN, ""),
        "P406",
        '"model.layers.*.mlp.down_proj" -> rowwise(output = Shard(1))',
    ),
    "no rule for o_proj": (
        edited(OUT, ""),
        "P406",
        '"model.layers.*.self_attn.o_proj" -> rowwise(output = Shard(1))',
    ),
    "colwise after colwise": (
        edited(DOWN, '  "model.layers.*.mlp.down_proj" -> colwise\n'),
        "P406",
        "rowwise(output = Shard(1))",
    ),
    "o_proj colwise": (
        edited(OUT, '  "model.layers.*.self_attn.o_proj" -> colwise\n'),
        "P406",
        "rowwise(output = Shard(1))",
    ),
    "no rule for gate and up": (edited(UP, ""), "P407", '"model.layers.*.mlp.{gate,up}_proj" -> colwise'),
    "no rule for q, k and v": (
        edited(HEADS, ""),
        "P407",
        '"model.layers.*.self_attn.{q,k,v}_proj" -> colwise',
    ),
    "no rule for up": (
        edited("{gate,up}_proj", "gate_proj"),
        "P415",
        '"model.layers.*.mlp.up_proj" -> colwise',
    ),
    "no rule for gate": (
        edited("{gate,up}_proj", "up_proj"),
        "P415",
        '"model.layers.*.mlp.gate_proj" -> colwise',
    ),
    "no rule for v": (edited("{q,k,v}", "{q,k}"), "P411", '"model.layers.*.self_attn.v_proj" -> colwise'),
    "no rule for k and v": (
        edited("{q,k,v}", "q"),
        "P411",
        '"model.layers.*.self_attn.{k,v}_proj" -> colwise',
    ),
    "no gather before the projections": (
        edited(GATES, ""),
        "P415",
        '"model.layers.*.{self_attn,mlp}" -> prepare_input(input = Shard(1), desired = Replicate())',
    ),
    "gather of a whole sequence": (
        edited("prepare_input(input = Shard(1)", "prepare_input(input = Replicate()"),
        "P415",
        "input = Shard(1)",
    ),
    "embedding leaves whole sequences": (
        edited("embedding_rowwise(output = Shard(1))", "embedding_rowwise"),
        "P415",
        "output = Shard(1)",
    ),
    "no rule for the embedding": (
        edited(EMBEDDING, ""),
        "P415",
        '"model.embed_tokens" -> embedding_rowwise(output = Shard(1))',
    ),
    "o_proj leaves whole sequences": (edited(OUT, OUT.replace(DIVIDED, "")), "P415", "output"),
    "down_proj leaves whole sequences": (
        edited(DOWN, DOWN.replace(DIVIDED, "")),
        "P415",
        "output",
    ),
    "head takes whole sequences": (
        edited("colwise(input = Shard(1), ", "colwise("),
        "P415",
        "input = Shard(1)",
    ),
    "no rule for the head": (
        edited(HEAD, ""),
        "P415",
        '"lm_head" -> colwise(input = Shard(1), output = Shard(-1))',
    ),
    "queries leave parts of the sequence": (
        edited(HEADS, HEADS.replace("colwise", "colwise(output = Shard(1))")),
        "P481",
        "leave out `output`",
    ),
    "sequence parallel norm in whole sequences": (
        HEADS + OUT.replace(DIVIDED, "") + NORM,
        "P415",
        "leave this rule out",
    ),
    "norm on a sequence with the style for heads": (
        edited(NORM, '  "model.norm" -> replicated_with_grad_allreduce\n'),
        "P415",
        '"model.norm" -> sequence_parallel',
    ),
    "a layer with parameters prepared": (
        edited(UP + DOWN, f"{MLP_DOWN} prepare_input(input = Replicate(), desired = Shard(1))\n"),
        "P405",
        "leave this rule out",
    ),
    "head leaves its features under another name": (edited("Shard(-1)", "Shard(2)"), "P410", "Shard(-1)"),
    "head leaves parts of the sequence": (
        edited("output = Shard(-1)", "output = Shard(1)"),
        "P410",
        "Replicate()",
    ),
}


@pytest.mark.parametrize(("rules", "code", "remedy"), FAULTS.values(), ids=FAULTS.keys())
def test_fault_is_found_once_with_its_remedy(rules: str, code: str, remedy: str, check: Check) -> None:
    checked = check(with_rules(rules))
    assert codes(checked) == [code]
    assert remedy in (checked.diagnostics[0].help or "")


@pytest.mark.parametrize("rules", [rules for rules, _, _ in FAULTS.values()], ids=FAULTS.keys())
def test_fault_over_one_rank_is_none(rules: str, check: Check) -> None:
    text = with_rules(rules).replace("  world_size == 4\n", "")
    assert codes(check(text, settings=("mesh.tp=1",))) == []


def test_two_faults_give_two_findings(check: Check) -> None:
    assert codes(check(with_rules(edited(NORM, "").replace(DOWN, "")))) == ["P408", "P406"]


def test_finding_counts_the_modules(check: Check) -> None:
    checked = check(with_rules(edited(DOWN, "")))
    assert (
        "4 modules are affected, starting with `model.layers.0.mlp.down_proj`" in checked.diagnostics[0].notes
    )


QK_STYLES = {
    "replicated_with_grad_allreduce": [],
    "sequence_parallel(sequence_dim = 2)": [],
    "sequence_parallel": ["P415"],
    "replicate": ["P414"],
}


@pytest.mark.parametrize(("style", "found"), QK_STYLES.items(), ids=QK_STYLES.keys())
def test_query_and_key_norms_need_their_gradients_summed(style: str, found: list[str], check: Check) -> None:
    assert codes(check(with_rules(f"{RULES}{QK_NORMS}{style}\n", model="qwen3-8b"))) == found


def test_query_and_key_norms_without_a_rule_are_one_finding(check: Check) -> None:
    checked = check(with_rules(RULES, model="qwen3-8b"))
    assert codes(checked) == ["P414"]
    assert checked.diagnostics[0].help == f"add `{QK_NORMS.strip()} replicated_with_grad_allreduce`"


def test_norm_over_all_heads_cannot_run_on_divided_ones(check: Check) -> None:
    rules = f"{RULES}{QK_NORMS}replicated_with_grad_allreduce\n"
    assert codes(check(with_rules(rules, model="tiny-llama-wide-norms"))) == ["P415"]


def test_norm_over_all_heads_runs_on_gathered_ones(check: Check) -> None:
    rules = '  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise_gather_output\n'
    assert codes(check(with_rules(rules, model="tiny-llama-wide-norms"))) == []
