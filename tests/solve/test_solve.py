"""Rules that planc finds for `auto`: as good as the models' own, the same for any depth, refused aloud."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import Checked, check_plan
from planc.diagnostics import Severity
from planc.estimate.estimate import estimate
from planc.graph.graph import plan_hash
from planc.plan.style_actions import StyleAction
from planc.show.resolved import resolved_text
from planc.solve.search import Solution
from planc.solve.solve import as_rules, solve
from planc.styles import BY_NAME, Boundary
from planc.styles.edges import FEATURES, SEQUENCE
from planc.vocab import MeshDim, Replicate
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
OWN = (
    "tiny-llama",
    "qwen3-0.6b",
    "qwen3-30b-a3b",
    "mixtral-8x7b-v0.1",
    "phi-3-mini-4k",
    "olmo-2-7b",
    "deepseek-v2-lite",
)
"""Models with a plan of their own: dense, head norms, experts, fused layers, latent attention."""


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


def test_126_layers_are_solved_in_seconds(tmp_path: Path) -> None:
    path = write_plan(tmp_path, text=plan_text("llama-3.1-405b", "auto(solve)"))
    began = time.process_time()
    assert check_plan(path).graph is not None
    assert time.process_time() - began < 2


@pytest.mark.parametrize("model", ["starcoderbase-1b", "tiny-mamba"])
def test_a_model_without_a_plan_of_its_own_gets_rules_by_auto(model: str, tmp_path: Path) -> None:
    found = solved(tmp_path, model, "auto")
    assert found.inventory is not None and found.inventory.tp_plan == ()
    assert rules_of(found)


def test_the_resolved_plan_has_the_rules_and_the_same_hash(tmp_path: Path) -> None:
    found = solved(tmp_path, "phi-3-mini-4k")
    assert found.bound is not None and found.graph is not None
    text = resolved_text(found.bound)
    assert "  auto" not in text
    again = checked(write_plan(tmp_path, name="resolved.plan", text=text))
    assert again.graph is not None
    assert plan_hash(again.graph) == plan_hash(found.graph)


def test_rules_of_the_plan_stay_and_the_others_fit_them(tmp_path: Path) -> None:
    mlp = '"model.layers.*.mlp.{gate,up}_proj" -> colwise_gather_output'
    found = rules_of(solved(tmp_path, "tiny-llama", "auto(solve)", mlp))
    assert [pattern for pattern in found if ".mlp." in pattern] == ["model.layers.*.mlp.down_proj"]
    assert found["model.layers.*.mlp.down_proj"][0] == "rowwise_split_input"


def test_one_head_of_keys_and_values_is_replicated(tmp_path: Path) -> None:
    rules = rules_of(solved(tmp_path, "gemma-3-1b")).items()
    found = {style for pattern, (style, _) in rules if ".self_attn." in pattern and "norm" not in pattern}
    assert found == {"colwise", "replicated_kv", "rowwise"}


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


def test_attention_of_the_models_own_keeps_tokens_whole_outside_of_the_layers(tmp_path: Path) -> None:
    text = plan_text("gemma-3-1b", "auto(sequence_parallel = true)")
    text = text.replace("model {", "model {\n  attention = eager", 1)
    found = rules_of(check_plan(write_plan(tmp_path, text=text)))
    assert found["model.embed_tokens"] == ("embedding_rowwise", Boundary())
    assert found["model.layers.0"] == ("prepare_input", Boundary(input=Replicate(), desired=SEQUENCE))
    assert found["model.layers.25"] == (
        "prepare_input_output",
        Boundary(input=SEQUENCE, desired=SEQUENCE, output=Replicate()),
    )
    assert found["model.layers.*.{self_attn,mlp}"][0] == "prepare_input"
    assert "model.norm" not in found
    assert found["lm_head"] == ("colwise", Boundary(output=FEATURES))


def test_norms_without_parameters_leave_attention_and_mlp_apart(tmp_path: Path) -> None:
    found = rules_of(solved(tmp_path, "tiny-nanochat", "auto(sequence_parallel = true)"))
    gathered = ("prepare_input", Boundary(input=SEQUENCE, desired=Replicate()))
    assert found["model.layers.*.{self_attn,mlp}"] == gathered


def test_no_legal_rules_name_the_finding_in_the_way(tmp_path: Path) -> None:
    text = plan_text("tiny-gemma3n", "auto(sequence_parallel = true)")
    findings = check_plan(write_plan(tmp_path, text=text)).diagnostics
    (found,) = (one for one in findings if one.code.code == "P413")
    assert found.notes[0].startswith("the last that were tried break P4")
    assert found.help == "leave out `sequence_parallel`"


@pytest.mark.parametrize("model", ["tiny-llama", "gemma-3-1b", "tiny-nanochat", "qwen3-30b-a3b"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_sequence_that_tp_does_not_divide_is_the_only_finding(
    model: str, attention: str, tmp_path: Path
) -> None:
    text = plan_text(model, "auto(sequence_parallel = true)")
    text = text.replace("model {", f"model {{\n  attention = {attention}", 1)
    even = rules_of(check_plan(write_plan(tmp_path, text=text)))
    odd = check_plan(write_plan(tmp_path, text=text.replace("length = 256", "length = 255")))
    (found,) = (one for one in odd.diagnostics if one.severity is Severity.ERROR)
    assert (found.code.code, found.primary.text) == ("P409", "tp = 2 does not divide 255 tokens")
    assert found.help == "set `sequence_length` to 254 or 256"
    assert rules_of(odd) == even


def test_a_tp_that_divides_nothing_is_named_by_size(tmp_path: Path) -> None:
    text = plan_text("tiny-llama", "auto(solve)", tp=521)
    (found,) = check_plan(write_plan(tmp_path, text=text)).diagnostics
    assert found.code.code == "P401"
    assert "tp = 521 does not divide 8 attention heads" in found.primary.text


def test_what_is_wrong_without_any_rules_is_not_blamed_on_rules(tmp_path: Path) -> None:
    text = plan_text("tiny-llama", "auto(sequence_parallel = true)").replace(
        "micro_batch = 4", "micro_batch = 4\n  packing = isolate"
    )
    text = text.replace("model {", "model {\n  attention = eager", 1)
    found = check_plan(write_plan(tmp_path, text=text))
    assert [one.code.code for one in found.diagnostics] == ["P609"]
    assert rules_of(found)


def test_a_norm_that_is_an_identity_in_some_layers_is_named_where_it_is_one(tmp_path: Path) -> None:
    inventory = solved(tmp_path, "llama-3.1-8b").inventory
    assert inventory is not None
    norm = "model.layers.0.input_layernorm"
    modules = [replace(one, parameters=()) if one.fqn == norm else one for one in inventory.modules]
    action = StyleAction(BY_NAME["sequence_parallel"], Boundary())
    solution = Solution((("model.layers.*.input_layernorm", action),), ())
    (rule,) = as_rules(solution, replace(inventory, modules=tuple(modules)))
    assert rule.pattern == "model.layers.{1..31}.input_layernorm"


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


@pytest.mark.parametrize("written", ["auto(guess)", "auto(rules = 3)", "auto(sp = true)"])
def test_wrong_arguments_are_located(written: str, tmp_path: Path) -> None:
    found = check_plan(write_plan(tmp_path, text=plan_text("tiny-llama", written)))
    assert len(found.diagnostics) == 1
    assert found.diagnostics[0].primary.span.line == 8


def test_a_model_with_a_plan_of_its_own_is_solved_only_if_asked() -> None:
    found = checked(PLANS / "launch-tp4.plan")
    assert found.bound is not None and found.inventory is not None
    own = [(one.pattern, one.style) for one in found.bound.auto.rules]
    assert own == list(found.inventory.tp_plan)
