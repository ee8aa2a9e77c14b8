"""Rules that planc finds for `auto`: as good as the models' own, the same for any depth, and refused aloud."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import Checked, check_plan
from planc.graph.graph import plan_hash
from planc.inventory.schema import Inventory
from planc.plan.auto import AutoRule
from planc.show.resolved import resolved_text
from planc.solve.solve import solve
from planc.styles import Boundary
from planc.styles.edges import FEATURES, SEQUENCE
from planc.vocab import Replicate
from tests.plans import PLANS, checked, write_plan

_PLAN = """\
model {{
  hf = "models/{model}"
}}
mesh {{
  tp = {tp}
}}
tensor_parallel on tp {{
{rules}
}}
data {{
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 4
}}
optimizer {{
  kind = adamw(lr = 1e-3)
}}
train {{
  steps = 10
}}
"""
OWN = ("tiny-llama", "qwen3-0.6b", "qwen3-30b-a3b", "gemma-3-1b", "phi-3-mini", "olmo-2-7b", "deepseek-v2-lite")
"""Models with a plan of their own, of different kinds: dense, head norms, experts, fused, latent attention."""


def plan_text(model: str, *rules: str, tp: int = 2) -> str:
    return _PLAN.format(model=model, tp=tp, rules="\n".join(f"  {rule}" for rule in rules))


def solved(folder: Path, model: str, *rules: str, tp: int = 2) -> Checked:
    return checked(write_plan(folder, text=plan_text(model, *(rules or ("auto(solve)",)), tp=tp)))


def rules_of(found: Checked) -> Mapping[str, tuple[str, Boundary]]:
    assert found.bound is not None
    return {one.pattern: (one.style, one.boundary) for one in found.bound.auto.rules}


def test_a_llama_gets_its_own_rules_and_sums_the_gradients_of_its_inputs_once(tmp_path: Path) -> None:
    found = {pattern: style for pattern, (style, _) in rules_of(solved(tmp_path, "tiny-llama")).items()}
    assert found == {
        "model.layers.*.{self_attn,mlp}": "prepare_input",
        "model.layers.*.self_attn.{q,k,v}_proj": "colwise",
        "model.layers.*.self_attn.o_proj": "rowwise",
        "model.layers.*.mlp.{gate,up}_proj": "colwise",
        "model.layers.*.mlp.down_proj": "rowwise",
        "model.embed_tokens": "embedding_colwise",
        "lm_head": "colwise",
    }


@pytest.mark.parametrize("model", OWN)
def test_found_rules_keep_no_more_whole_and_send_no_more_than_the_models_own(
    model: str, tmp_path: Path
) -> None:
    from planc.estimate.estimate import estimate
    from planc.vocab import MeshDim

    found, own = solved(tmp_path, model), solved(tmp_path, model, "auto")
    kept, sent = [], []
    for one in (found, own):
        assert one.graph is not None and one.inventory is not None
        result = estimate(one.graph, one.inventory)
        kept.append(result.num_local_parameters)
        sent.append(result.sent_bytes(each for each in result.collectives if MeshDim.TP in each.over))
    assert kept[0] <= kept[1]
    assert sent[0] <= sent[1] or kept[0] < kept[1]


def test_layers_of_one_kind_have_one_solution_whatever_their_number(tmp_path: Path) -> None:
    one, few = solved(tmp_path, "llama-3.1-405b"), solved(tmp_path, "llama-3.1-8b")
    assert rules_of(one) == rules_of(few)
    assert one.plan is not None and one.inventory is not None
    assert solve(one.plan, one.inventory).num_tried <= 10


def test_the_resolved_plan_has_the_rules_and_the_same_hash(tmp_path: Path) -> None:
    found = solved(tmp_path, "phi-3-mini")
    assert found.bound is not None and found.graph is not None
    text = resolved_text(found.bound)
    assert "auto" not in text
    again = checked(write_plan(tmp_path, name="resolved.plan", text=text))
    assert again.graph is not None
    assert plan_hash(again.graph) == plan_hash(found.graph)


def test_rules_of_the_plan_stay_and_the_others_fit_them(tmp_path: Path) -> None:
    mlp = '"model.layers.*.mlp.{gate,up}_proj" -> colwise_gather_output'
    found = rules_of(solved(tmp_path, "tiny-llama", "auto(solve)", mlp))
    assert [pattern for pattern in found if ".mlp." in pattern] == ["model.layers.*.mlp.down_proj"]
    assert found["model.layers.*.mlp.down_proj"][0] == "colwise_gather_output"


def test_heads_that_the_ranks_cannot_share_stay_whole_and_their_weights_do_not(tmp_path: Path) -> None:
    found = {pattern: style for pattern, (style, _) in rules_of(solved(tmp_path, "gemma-3-1b", tp=2)).items()}
    assert {style for pattern, style in found.items() if ".self_attn." in pattern and "norm" not in pattern} == {
        "colwise_gather_output"
    }


def test_sequence_parallelism_gathers_and_scatters_where_the_presets_do(tmp_path: Path) -> None:
    found = rules_of(solved(tmp_path, "tiny-llama", "auto(sequence_parallel = true)"))
    assert found["model.layers.*.{self_attn,mlp}"] == (
        "prepare_input",
        Boundary(input=SEQUENCE, desired=Replicate()),
    )
    assert found["model.layers.*.self_attn.o_proj"] == ("rowwise", Boundary(output=SEQUENCE))
    assert found["model.norm"] == ("sequence_parallel", Boundary())
    assert found["lm_head"] == ("colwise", Boundary(input=SEQUENCE, output=FEATURES))


def test_experts_are_redistributed_around_the_router(tmp_path: Path) -> None:
    found = rules_of(solved(tmp_path, "qwen3-30b-a3b", "auto(sequence_parallel = true)"))
    assert found["model.layers.*.mlp"] == (
        "prepare_input_output",
        Boundary(input=SEQUENCE, desired=Replicate(), output=SEQUENCE),
    )


def test_a_model_for_which_nothing_is_legal_names_the_finding(tmp_path: Path) -> None:
    text = plan_text("starcoderbase-1b", "auto(sequence_parallel = true)")
    inventory = solved(tmp_path, "starcoderbase-1b").inventory
    assert inventory is not None
    found = check_plan(write_plan(tmp_path, name="sp.plan", text=text))
    if not found.ok:
        assert [one.code.code for one in found.diagnostics] == ["P413"]
        assert found.diagnostics[0].notes


def test_a_rule_names_what_has_parameters(tmp_path: Path) -> None:
    found = solved(tmp_path, "tiny-llama")
    assert found.plan is not None and found.inventory is not None
    norm = "model.layers.0.input_layernorm"
    without: Inventory = replace(
        found.inventory,
        modules=tuple(
            replace(one, parameters=()) if one.fqn == norm else one for one in found.inventory.modules
        ),
    )
    from planc.plan.auto import Auto
    from planc.solve.solve import as_rules

    spec = found.plan.tensor_parallel
    assert spec is not None
    plan = replace(found.plan, tensor_parallel=replace(spec, auto=Auto(sequence_parallel=True)))
    patterns = [one.pattern for one in as_rules(solve(plan, without), without) if "norm" in one.pattern]
    assert all(norm not in _matched(one, without) for one in patterns)


def _matched(pattern: str, inventory: Inventory) -> tuple[str, ...]:
    from planc.plan.bind import parse_own
    from planc.source import NOWHERE

    return parse_own(pattern, NOWHERE).select(inventory.names())


def test_the_rules_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    path = write_plan(tmp_path, text=plan_text("qwen3-30b-a3b", "auto(solve)"))
    command = [sys.executable, "-m", "planc", "show", "--resolved", str(path)]
    texts = {
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(texts) == 1


def test_the_table_of_auto_says_why(tmp_path: Path) -> None:
    path = write_plan(tmp_path, text=plan_text("tiny-llama", "auto(solve)"))
    command = [sys.executable, "-m", "planc", "show", "--auto", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "next best" in text
    assert "q_proj, k_proj, v_proj colwise" in text


@pytest.mark.parametrize(
    ("written", "code"), [("auto(guess)", "P208"), ("auto(rules = 3)", "P207"), ("auto(sp = true)", "P209")]
)
def test_wrong_arguments_are_located(written: str, code: str, tmp_path: Path) -> None:
    found = check_plan(write_plan(tmp_path, text=plan_text("tiny-llama", written)))
    assert len(found.diagnostics) == 1
    assert found.diagnostics[0].primary.span.line == 8


def test_only_models_without_a_plan_are_solved_unless_asked() -> None:
    found = checked(PLANS / "launch-tp4.plan")
    assert found.bound is not None
    assert all(isinstance(one, AutoRule) for one in found.bound.auto.rules)
