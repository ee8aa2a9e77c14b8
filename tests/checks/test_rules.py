"""What the pages' examples do not show of single rules: labels, remedies, and what is left out."""

from __future__ import annotations

import re

import pytest
from by_code import codes, only
from variants import Check

from planc.diagnostics import Diagnostic
from planc.graph.ops import AllReduceGradients
from planc.plan.facts import COUNTS
from planc.vocab import MeshDim
from tests.plans import FULL, TINY

WITHOUT_EXPECT = FULL[: FULL.index("expect {")]
CP_BLOCK = """\
context_parallel on cp {
  rotate = ulysses
  "input_ids" -> Shard(1)
  "labels" -> Shard(1)
  "position_ids" -> Shard(1)
}
"""
WITH_CP = WITHOUT_EXPECT.replace("fsdp on", f"{CP_BLOCK}\nfsdp on")
RELAXED = WITH_CP.replace("  tokens_per_step = 4096\n", "")
"""Context parallelism, and a batch that follows from the mesh."""


def edited(old: str, new: str, *, text: str = FULL) -> str:
    assert old in text
    return text.replace(old, new)


def fixed(text: str, diagnostic: Diagnostic) -> str:
    """The text with the diagnostic's fix made."""
    assert diagnostic.fix is not None
    span, lines = diagnostic.fix.span, text.split("\n")
    line = lines[span.line - 1]
    lines[span.line - 1] = line[: span.column - 1] + diagnostic.fix.replacement + line[span.end_column - 1 :]
    return "\n".join(lines)


MISTYPED = {
    "alternative": ("{gate,up}_proj", "{gate,upp}_proj", "upp_proj"),
    "part in the middle": ("model.layers.*.mlp.down", "model.layer.*.mlp.down", "layer"),
    "last part": ('"model.norm" -> seq', '"model.norn" -> seq', "norn"),
    "first part": ('"lm_head" -> col', '"lm_haed" -> col', "lm_haed"),
    "range": ("model.layers.*.mlp.down", "model.layers.{0..5}.mlp.down", "4..5"),
    "any depth": ('"**.*norm*"', '"**.*nrom*"', "*nrom*"),
}


@pytest.mark.parametrize(("old", "new", "missing"), MISTYPED.values(), ids=MISTYPED.keys())
def test_fix_of_an_unmatched_pattern_passes(old: str, new: str, missing: str, check: Check) -> None:
    text = edited(old, new)
    diagnostic = only(check(text), "P203")
    assert f"`{missing}`" in diagnostic.primary.text
    assert codes(check(fixed(text, diagnostic))) == []


def test_fix_that_drops_layers_is_not_safe(check: Check) -> None:
    text = edited("model.layers.*.mlp.down", "model.layers.{0..5}.mlp.down")
    fix = only(check(text), "P203").fix
    assert fix is not None
    assert not fix.is_safe


@pytest.mark.parametrize(
    "part",
    [
        "{gate,upp}_{proj,projj}",
        "{gate,up}{_proj,_prjo}",
        "{gate}_{prooj}",
        "{pre}_attention_layernor{n}",
        "{ga,u}{te,p}_prj",
    ],
)
def test_a_slip_among_several_braces_has_no_fix(part: str, check: Check) -> None:
    text = edited("mlp.{gate,up}_proj", f"mlp.{part}")
    found = [one for one in check(text).diagnostics if one.code.code == "P203"]
    assert found
    assert all(one.fix is None for one in found)


def test_a_brace_of_one_choice_is_read_as_what_it_says(check: Check) -> None:
    diagnostic = only(check(edited("mlp.down_proj", "mlp.{down_prj}")), "P203")
    assert "no child `down_prj`" in diagnostic.primary.text
    assert diagnostic.fix is not None and diagnostic.fix.replacement == "down_proj"


MESHES = {
    "tp": "tp = 2",
    "cp": "cp = 2",
    "dp_shard": "dp_shard = 2",
    "all": "dp_replicate = 2\n  dp_shard = 2\n  cp = 2\n  tp = 2",
}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_what_the_help_adds_for_a_mesh_dim_makes_the_plan_pass(mesh: str, check: Check) -> None:
    start, end = TINY.index("mesh {"), TINY.index("data {")
    text = f"{TINY[:start]}mesh {{\n  {mesh}\n}}\n\n{TINY[end:]}".replace("param size: int = 2\n", "")
    helps = [one.help or "" for one in check(text).diagnostics]
    blocks = {block for help in helps for block in re.findall(r"`(\w+ on .*?)`", help) if "{" in block}
    widest = max((block for block in blocks if block.startswith("fsdp")), key=len, default="")
    blocks = {block for block in blocks if not block.startswith("fsdp")} | ({widest} - {""})
    assert blocks and codes(check("\n".join((text, *sorted(blocks), "")))) == []


def test_replicas_without_fsdp_are_whole_and_their_gradients_summed(check: Check) -> None:
    start, end = TINY.index("mesh {"), TINY.index("data {")
    text = f"{TINY[:start]}mesh {{\n  dp_replicate = 2\n}}\n\n{TINY[end:]}".replace(
        "param size: int = 2\n", ""
    )
    checked = check(text)
    assert codes(checked) == []
    assert checked.graph is not None
    (op,) = (op for op in checked.graph.step if isinstance(op, AllReduceGradients))
    assert op.over == (MeshDim.DP_REPLICATE,)


def test_unmatched_part_lists_its_siblings(check: Check) -> None:
    text = edited("{gate,up}_proj", "{gate,upp}_proj")
    assert only(check(text), "P203").notes == ("candidates: gate_proj, up_proj, down_proj, act_fn",)


def test_unmatched_pattern_for_a_container_of_parameters(check: Check) -> None:
    text = edited('"**.*norm*" -> group', '"model.layers" -> group')
    assert "layers" in only(check(text), "P203").primary.text


def test_each_faulty_alternative_is_found(check: Check) -> None:
    assert codes(check(edited("{gate,up}_proj", "{gat,upp}_proj"))) == ["P203", "P203"]
    assert codes(check(edited("{q,k,v}_proj", "{q,kk,vv}_proj"))) == ["P203", "P203"]


def test_choice_of_a_second_brace_is_found(check: Check) -> None:
    text = edited("{q,k,v}_proj", "{q,k}_{proj,nrom}")
    assert "`q_nrom`" in only(check(text), "P203").primary.text


def test_rule_for_some_layers_is_fine_where_others_have_one(check: Check) -> None:
    rule = '"model.layers.*.mlp.down_proj" -> rowwise(output = Shard(1))'
    split = f"{rule.replace('*', '{0..2}')}\n  {rule.replace('*', '3')}"
    assert codes(check(edited(rule, split))) == []


def test_checkpointing_some_layers_is_fine(check: Check) -> None:
    assert codes(check(edited('"model.layers.*" -> none', '"model.layers.{0..1}" -> full'))) == []


def test_unmatched_pattern_of_another_block_hides_no_layout_fault(check: Check) -> None:
    text = edited('["model.norm", "lm_head"]', '["model.nrom", "lm_head"]')
    assert codes(check(edited('  "model.norm" -> sequence_parallel\n', "", text=text))) == ["P408", "P203"]


def test_overlap_with_auto_points_at_auto(check: Check) -> None:
    start, end = FULL.index("tensor_parallel on"), FULL.index("fsdp on")
    block = 'tensor_parallel on tp {\n  auto\n  "lm_head" -> colwise\n}\n'
    diagnostic = only(check(FULL[:start] + block + FULL[end:]), "P221")
    assert [label.text for label in diagnostic.secondary] == ["`auto` also covers it"]


def test_world_size_names_the_meshes_that_fit(check: Check) -> None:
    diagnostic = only(check(FULL, world_size=6), "P301")
    assert diagnostic.help == "start 4 ranks, or set `dp_shard = 3` or `tp = 3`"


def test_world_size_that_fits_is_clean(check: Check) -> None:
    assert codes(check(FULL, world_size=4)) == []


REMEDIES = {
    "heads": (RELAXED, ("mesh.tp=16",), "P401", "mesh.tp"),
    "key/value heads": (RELAXED, ("mesh.tp=8",), "P402", "mesh.tp"),
    "sequence over tp": (RELAXED, ("data.sequence_length=255",), "P409", "data.sequence_length"),
    "sequence over tp and cp": (
        RELAXED.replace("tp = 2", "cp = 2, tp = 4"),
        ("data.sequence_length=260",),
        "P409",
        "data.sequence_length",
    ),
    "sequence over cp": (
        RELAXED.replace("tp = 2", "cp = 4"),
        ("data.sequence_length=260",),
        "P601",
        "data.sequence_length",
    ),
    "ulysses": (RELAXED.replace("tp = 2", "cp = 2, tp = 2"), ("mesh.cp=8",), "P604", "mesh.cp"),
    "batch": (WITHOUT_EXPECT, ("train.tokens_per_step=5000",), "P701", "train.tokens_per_step"),
    "small batch": (WITHOUT_EXPECT, ("train.tokens_per_step=100",), "P701", "train.tokens_per_step"),
    "positions": (RELAXED, ("data.sequence_length=4096",), "P704", "data.sequence_length"),
}


@pytest.mark.parametrize(("text", "settings", "code", "path"), REMEDIES.values(), ids=REMEDIES.keys())
def test_values_in_the_help_pass(
    text: str, settings: tuple[str, ...], code: str, path: str, check: Check
) -> None:
    diagnostic = only(check(text, settings=settings), code)
    named = re.match(r"set `\w+` to (?:at most )?([\d_, or]+)", diagnostic.help or "")
    assert named
    values = re.findall(r"[\d_]+", named.group(1))
    assert values
    for value in values:
        assert code not in codes(check(text, settings=(f"{path}={value}",)))


def test_heads_and_key_value_heads_are_one_finding(check: Check) -> None:
    found = codes(check(RELAXED, settings=("mesh.tp=3", "data.sequence_length=258")))
    assert found == ["P401"]


def test_sizes_that_tp_does_not_divide_are_one_finding(check: Check) -> None:
    diagnostic = only(check(FULL, settings=("mesh.tp=3",)), "P401")
    assert diagnostic.primary.text == (
        "tp = 3 does not divide 8 attention heads, 4 key/value heads, "
        "352 features of `model.layers.*.mlp` or 256 tokens"
    )
    assert diagnostic.help == "set `tp` to 1, 2 or 4"


def test_illegal_tp_is_not_a_broken_expectation_too(check: Check) -> None:
    assert codes(check(FULL, settings=("mesh.tp=3",))) == ["P401"]


def test_broken_expectation_names_the_settings_that_it_depends_on(check: Check) -> None:
    diagnostic = only(check(FULL, settings=("mesh.tp=4", "train.steps=20")), "P702")
    assert [label.span.file for label in diagnostic.secondary] == ["--set mesh.tp=4"]
    assert diagnostic.help == (
        "leave out `--set mesh.tp=4`, correct the expectation, or add `--set expect.world_size=waived`"
    )


def test_finding_points_into_the_override_that_caused_it(check: Check) -> None:
    diagnostic = only(check(RELAXED, settings=("mesh.tp=8",)), "P402")
    assert diagnostic.primary.span.file == "--set mesh.tp=8"


def test_wrong_buffer_name_is_not_a_missing_buffer_too(check: Check) -> None:
    text = RELAXED.replace("tp = 2", "cp = 2").replace('"labels"', '"lables"')
    start, end = text.index("tensor_parallel on"), text.index("context_parallel on")
    assert codes(check(text[:start] + text[end:])) == ["P203"]


def test_broken_batch_is_not_a_broken_expectation_too(check: Check) -> None:
    assert codes(check(edited("tokens_per_step = 4096", "tokens_per_step = 5000"))) == ["P701"]


@pytest.mark.parametrize("fact", COUNTS)
def test_broken_expectation_says_how_the_fact_comes_about(fact: str, check: Check) -> None:
    diagnostic = only(check(edited("world_size == 4", f"{fact} == 1")), "P702")
    assert diagnostic.notes[0].startswith(f"{fact} = ")


def test_units_inside_each_layer_count_as_units(check: Check) -> None:
    text = edited('"model.layers.*" -> unit(', '"model.layers.*.{self_attn,mlp}" -> unit(')
    assert codes(check(text)) == []


def test_tied_parameters_in_the_root_are_fine(check: Check) -> None:
    text = edited('["model.norm", "lm_head"] -> unit(', '"model.norm" -> unit(')
    assert codes(check(text.replace("models/tiny-llama", "models/tiny-llama-tied"))) == []


def test_nested_modules_in_one_unit_are_found(check: Check) -> None:
    text = edited('["model.norm", "lm_head"]', '["model.norm", "model"]')
    assert codes(check(text)) == ["P504"]


def test_mistyped_key_is_not_a_missing_key_too(check: Check) -> None:
    assert codes(check(edited("micro_batch = 4", "micro_batsh = 4"))) == ["P202"]


def test_tp_within_one_node_needs_no_divisor(check: Check) -> None:
    assert codes(check(edited("tp = 2\n", "tp = 2\n  devices_per_node = 5\n"))) == []
