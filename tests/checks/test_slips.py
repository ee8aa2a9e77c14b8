"""Slips that people make, each with the help that leads out of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from by_code import only

from planc.api import Checked, check_source
from planc.diagnostics import Diagnostic
from planc.source import SourceFile
from tests.plans import PLANS
from tests.robustness.fuzz import seeds

PLAN = (PLANS / "quickstart.plan").read_text(encoding="utf-8")
UNIT = '"model.layers.*" -> unit'
RULES = 'activation_checkpoint {\n  "model.layers.*" -> none\n'


def check(text: str) -> Checked:
    return check_source(SourceFile("x.plan", text), base=PLANS)


def edited(old: str, new: str) -> str:
    assert old in PLAN
    return PLAN.replace(old, new, 1)


@dataclass(frozen=True, slots=True)
class Slip:
    """A pattern of a unit, and what to write for it; `is_safe` where nothing else can be meant."""

    written: str
    meant: str
    code: str = "P203"
    is_safe: bool = False


PATTERNS = (
    Slip("layers.*", "model.layers.*", is_safe=True),
    Slip("layers.{0..3}", "model.layers.{0..3}", is_safe=True),
    Slip("layers.0", "model.layers.0"),
    Slip("layers.*.mlp", "model.layers.*.mlp", is_safe=True),
    Slip("self_attn.q_proj", "model.layers.*.self_attn.q_proj"),
    Slip("q_proj", "model.layers.*.self_attn.q_proj"),
    Slip("norm", "model.norm"),
    Slip("embed_tokens", "model.embed_tokens"),
    Slip("model.model.layers.*", "model.layers.*", is_safe=True),
    Slip("base_model.model.layers.*", "model.layers.*", is_safe=True),
    Slip("module.model.layers.*", "model.layers.*", is_safe=True),
    Slip("_orig_mod.model.layers.*", "model.layers.*", is_safe=True),
    Slip("model.lm_head", "lm_head"),
    Slip("transformer.h.*", "model.layers.*"),
    Slip("transformer.layers.*", "model.layers.*"),
    Slip("gpt_neox.layers.*", "model.layers.*"),
    Slip("decoder.layers.*", "model.layers.*"),
    Slip("model.decoder.layers.*", "model.layers.*"),
    Slip("encoder.layer.*", "model.layers.*"),
    Slip("blocks.*", "model.layers.*"),
    Slip("h.*", "model.layers.*"),
    Slip("h.{0..3}", "model.layers.{0..3}"),
    Slip("model.norm.weight", "model.norm"),
    Slip("model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.gate_proj"),
    Slip("model.layers.*.self_attention.q_proj", "model.layers.*.self_attn.q_proj"),
    Slip("model.layer.*", "layers", is_safe=True),
    Slip("model.Layers.*", "layers", is_safe=True),
    Slip("Model.layers.*", "model", is_safe=True),
    Slip("modle.layers.*", "model", is_safe=True),
    Slip("model.laeyrs.*", "layers", is_safe=True),
    Slip("model.layers.{0..9}", "0..3"),
    *(
        Slip(written, "model.layers.*", "P213")
        for written in (
            *("model.layers.*.", ".model.layers.*", "model.layers..*", "model/layers/*", "model layers.*"),
            *("model.layers.[0-9]+", "model.layers.[0-9]*", r"model.layers.\d+", r"model\.layers\.\d+"),
            *(
                "model.layers.(\\d+)",
                "^model.layers.*$",
                "model.layers.?",
                "model.layers.<i>",
                "model::layers::*",
            ),
            *(r"^model\.layers\.[0-9]+$", "model.layers[:]", "model.layers.%d", "model.layers.#"),
        )
    ),
    *(
        Slip(written, "model.layers.{0..3}", "P213")
        for written in (
            *("model.layers.{0...3}", "model.layers.{0:3}", "model.layers.[0-3]", "model.layers.{3..0}"),
            *("model.layers[0-3]", "model.layers.{0 .. 3}", "model.layers.{0..=3}"),
        )
    ),
    Slip("model.layers[0]", "model.layers.0", "P213"),
    Slip("model.layers.(0|1)", "model.layers.{0,1}", "P213"),
    Slip("{model.layers.*,lm_head}", '["model.layers.*", "lm_head"]', "P213"),
)


@pytest.mark.parametrize("slip", PATTERNS, ids=lambda slip: slip.written)
def test_a_slip_in_a_pattern_is_answered_with_what_was_meant(slip: Slip) -> None:
    found = only(check(edited(UNIT, f'"{slip.written}" -> unit')), slip.code)
    assert slip.meant in (found.help or "")
    assert found.fix is not None
    assert (found.fix.replacement, found.fix.is_safe) == (slip.meant, slip.is_safe)


@pytest.mark.parametrize("slip", PATTERNS, ids=lambda slip: slip.written)
def test_the_help_for_a_slip_mends_it(slip: Slip) -> None:
    text = edited(UNIT, f'"{slip.written}" -> unit')
    found = only(check(text), slip.code)
    fix = found.fix
    assert fix is not None
    lines = text.split("\n")
    line = lines[fix.span.line - 1]
    lines[fix.span.line - 1] = line[: fix.span.column - 1] + fix.replacement + line[fix.span.end_column - 1 :]
    after = [one.code.code for one in check("\n".join(lines)).diagnostics]
    assert slip.code not in after


@pytest.mark.parametrize(
    ("written", "code", "help"),
    [
        ("model.layers.{0..99999999}", "P213", ""),
        ("model.layers.0-3", "P203", "write the range as `{0..3}`"),
        ("model.layers.{0-3}", "P213", ""),
        ("model.layers.8", "P203", "use a number that exists: 0..3"),
        ("model.layers.-1", "P203", "use a number that exists: 0..3"),
        ("*.q_proj", "P203", "name one of the candidates, or run `planc inventory models/tiny-llama`"),
        ("LlamaDecoderLayer", "P203", "name one of the candidates"),
        ("model.layers.*.mlp.fc1", "P203", "name one of the candidates"),
        ("**.attn", "P203", "name one of the candidates"),
    ],
)
def test_another_slip_in_a_pattern_has_help(written: str, code: str, help: str) -> None:
    diagnostics = check(edited(UNIT, f'"{written}" -> unit')).diagnostics
    found = [one for one in diagnostics if one.code.code in ("P203", "P213")]
    assert found and all(help in (one.help or "") for one in found)


def test_a_range_beyond_the_limit_says_how_long_it_is() -> None:
    found = only(check(edited(UNIT, '"model.layers.{0..99999999}" -> unit')), "P213")
    assert found.primary.text == "this range has 100000000 numbers, more than 10000: use `*`"


def test_a_pattern_without_a_match_is_one_finding() -> None:
    assert [one.code.code for one in check(edited(UNIT, '"layers.*" -> unit')).diagnostics] == ["P203"]


@pytest.mark.parametrize(
    ("written", "help"),
    [
        ("tensor", "write `tensor_parallel on tp {`"),
        ("model", "write `tensor_parallel on tp {`"),
        ("dp_shard", "write `tensor_parallel on tp {`"),
        ("TP", "did you mean `tp`?"),
    ],
)
def test_another_mesh_dim_of_tensor_parallel_is_answered(written: str, help: str) -> None:
    found = only(check(edited("tensor_parallel on tp", f"tensor_parallel on {written}")), "P303")
    assert found.help == help
    assert found.fix is not None and found.fix.replacement == "tp"


@pytest.mark.parametrize(
    ("written", "help"),
    [
        *((name, "write `fsdp on dp_shard {`") for name in ("dp", "data", "fsdp", "shard")),
        ("tp", "write `fsdp on dp_shard {` or `fsdp on cp {`"),
        ("pp", "write `fsdp on dp_shard {` or `fsdp on cp {`"),
        ("dp_replicate", "write `fsdp on dp_shard {`, and inside it `replicate_on = dp_replicate`"),
    ],
)
def test_another_mesh_dim_of_fsdp_is_answered(written: str, help: str) -> None:
    assert only(check(edited("fsdp on dp_shard, cp", f"fsdp on {written}")), "P303").help == help


@pytest.mark.parametrize(
    ("written", "help"),
    [
        (
            "dp_replicate",
            "write `expert_parallel on dp_shard {`, `expert_parallel on cp {` or `expert_parallel on tp {`",
        ),
        ("dp_shard, dp_replicate", "remove `dp_replicate`"),
    ],
)
def test_another_mesh_dim_of_expert_parallel_is_answered(written: str, help: str) -> None:
    block = f"expert_parallel on {written} {{\n  size = 2\n  auto\n}}\n\nfsdp on"
    assert only(check(edited("fsdp on", block)), "P303").help == help


@pytest.mark.parametrize(
    ("written", "code", "rule"),
    [
        ("mode = full", "P202", "full"),
        ("policy = selective", "P202", "selective"),
        ("enabled = true", "P202", "full"),
        ("full", "P210", "full"),
        ("selective", "P210", "selective"),
    ],
)
def test_a_block_of_rules_asks_for_a_rule(written: str, code: str, rule: str) -> None:
    found = only(check(edited(RULES, f"activation_checkpoint {{\n  {written}\n")), code)
    assert found.help is not None and found.help.endswith(f'`"model.layers.*" -> {rule}`')
    assert check(edited(RULES, f'activation_checkpoint {{\n  "model.layers.*" -> {rule}\n')).ok


@pytest.mark.parametrize(
    ("block", "written", "help"),
    [
        ("train {", "dtype = bfloat16", "move it to `model`"),
        ("train {", "dtype = 3", "use `steps`, "),
        ("train {", "mode = async", "move it to `checkpoint`"),
        ("train {", "mode = full", "use `steps`, "),
        ("fsdp on dp_shard, cp {", "tp = 2", "move it to `mesh`"),
        ("fsdp on dp_shard, cp {", "tp = lr", "use `"),
        ("optimizer {", "lr = 1e-3", "`lr` is an argument of the optimizer: write `kind = adamw(lr = 1e-3)`"),
        ("optimizer {", "learning_rate = 1e-3", "`learning_rate` is an argument of the optimizer: "),
        ("optimizer {", "warmup = 3 steps", "`warmup` is an argument of the schedule: "),
    ],
)
def test_a_key_belongs_only_where_its_value_fits(block: str, written: str, help: str) -> None:
    found = only(check(edited(block, f"{block}\n  {written}")), "P202")
    assert (found.help or "").startswith(help)


@pytest.mark.slow
def test_patterns_and_mesh_dims_are_never_without_help() -> None:
    """P203, P213 and P303 in every plan of the tests and of the pages."""
    found = [one for text in dict.fromkeys(seeds()) for one in helpless(text)]
    assert [f"{one.code.code} {one.primary.text}" for one in found] == []


def helpless(text: str) -> list[Diagnostic]:
    codes = ("P203", "P213", "P303")
    return [one for one in check(text).diagnostics if one.code.code in codes and not one.help]
