"""Ranks of tp send experts their own tokens only if they have shards of sequences."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from planc.api import check_plan
from planc.source import SourceFile
from tests.catalogue.declared import HERE as CATALOGUE
from tests.plans import write_plan

RULES = """\
  "model.embed_tokens" -> embedding_rowwise(output = Shard(1))
  "model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel
  "model.layers.*.self_attn" -> prepare_input(input = Shard(1), desired = Replicate())
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise
  "model.layers.*.self_attn.{q,k}_norm" -> replicated_with_grad_allreduce
  "model.layers.*.self_attn.o_proj" -> rowwise(output = Shard(1))
  "model.layers.*.mlp.gate" -> sequence_parallel
  "model.norm" -> sequence_parallel
  "lm_head" -> colwise(input = Shard(1), output = Shard(-1))
"""
PLAN = f"""\
model {{
  hf = "models/tiny-qwen3-moe"  # planc: ignore[P725] not what it is about
}}

mesh {{
  dp_shard = 2
  tp = 2
}}

tensor_parallel on tp {{
{RULES}}}

expert_parallel on dp_shard, tp {{
  size = 4
  auto
}}

fsdp on dp_shard {{
  "model.layers.*" -> unit
}}

data {{
  source = python_stdlib()
  sequence_length = 64
  micro_batch = 1
}}

optimizer {{
  kind = adamw(lr = 1e-3)
}}

train {{
  steps = 2
}}
"""
ROUTER = '"model.layers.*.mlp.gate" -> sequence_parallel'
_PREPARED = "prepare_input_output(input = Shard(1), desired = Replicate(), output = Shard(1))"
GATHERED = f'"model.layers.*.mlp" -> {_PREPARED}'
ON = "expert_parallel on dp_shard, tp {"
SHARD_IT = "shard the sequence: write `auto(sequence_parallel = true)` in `tensor_parallel`"
FAULTS = {
    "whole sequences": (
        (RULES, "  auto(solve)\n"),
        "P415",
        "ranks of tp have the same tokens at `model.layers.*.mlp.experts`",
        SHARD_IT,
    ),
    "gathered before experts": (
        (ROUTER, GATHERED),
        "P415",
        "ranks of tp have the same tokens at `model.layers.*.mlp.experts`",
        "leave out the rule of `model.layers.*.mlp`",
    ),
    "a router without a rule": (
        (f"  {ROUTER}\n", ""),
        "P415",
        "no rule matches `model.layers.*.mlp.gate`, which gets Shard(1)",
        'add `"model.layers.*.mlp.gate" -> sequence_parallel`',
    ),
    "features of experts too": (
        (ROUTER, f'{ROUTER}\n  "model.layers.*.mlp.experts" -> moe_tp_experts'),
        "P623",
        "`model.layers.*.mlp.experts` is sharded over tp, whose ranks have different experts",
        "leave this rule out",
    ),
    "experts of one layer": (
        ("  auto\n", '  "model.layers.1.mlp.experts" -> dispatch\n'),
        "P623",
        "`model.layers.*.mlp.experts` would be whole on ranks of tp that route shards elsewhere",
        "write `auto` in this block",
    ),
    "a capacity": (
        ("  size = 4\n", "  size = 4\n  capacity = 1.25\n"),
        "P623",
        "ranks of tp have parts of sequences at `model.layers.*.mlp.experts`",
        "leave `tp` out of `expert_parallel on`",
    ),
    "cp in between": (
        ("  tp = 2\n", "  cp = 2\n  tp = 2\n"),
        "P621",
        "ranks of dp_shard and tp are not neighbors: those of cp are between them",
        "write `expert_parallel on dp_shard, cp, tp {`",
    ),
    "another module that takes token by token": (
        (ROUTER, f'{ROUTER}\n  "model.layers.*.mlp.experts" -> sequence_parallel'),
        "P405",
        "`sequence_parallel` needs a norm or a linear layer",
        "use one of",
    ),
}


def checked(base: Path, text: str, *settings: str) -> tuple[bool, list[tuple[str, str, str]]]:
    sources = [SourceFile("--set", one) for one in settings]
    found = check_plan(write_plan(base, text=text), settings=sources)
    return found.ok, [(one.code.code, one.primary.text, one.help or "") for one in found.diagnostics]


@pytest.mark.parametrize(
    ("on", "settings"),
    [
        ("dp_shard, tp", ()),
        ("dp_shard, tp", ("expert_parallel.size=2",)),
        ("dp_shard, tp", ("mesh.dp_shard=1", "expert_parallel.size=2")),
        ("dp_shard, tp", ("mesh.tp=1", "expert_parallel.size=2")),
        ("dp_shard, cp, tp", ()),
        ("tp", ("expert_parallel.size=2",)),
        ("tp", ("mesh.dp_replicate=2", "mesh.dp_shard=1", "expert_parallel.size=2")),
    ],
)
def test_experts_may_be_on_ranks_of_tp(on: str, settings: tuple[str, ...], tmp_path: Path) -> None:
    text = PLAN.replace(ON, f"expert_parallel on {on} {{")
    text = text.replace("fsdp on dp_shard {\n", "fsdp on dp_shard {\n  replicate_on = dp_replicate\n")
    assert checked(tmp_path, text, *settings) == (True, [])


def test_experts_may_be_on_ranks_of_tp_of_each_stage(tmp_path: Path) -> None:
    """One rank has all other weights of a stage, so only experts are in units of FSDP."""
    text = PLAN.replace(ON, "expert_parallel on tp {") + "\npipeline on pp {\n}\n"
    settings = ("mesh.pp=2", "mesh.dp_shard=1", "expert_parallel.size=2", "data.micro_batch=1")
    assert checked(tmp_path, text, *settings, "train.tokens_per_step=128") == (True, [])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_what_to_set(fault: str, tmp_path: Path) -> None:
    (old, new), code, text, help = FAULTS[fault]
    assert old in PLAN
    _, found = checked(tmp_path, PLAN.replace(old, new))
    assert any(
        one == code and label.startswith(text) and given.startswith(help) for one, label, given in found
    ), found


SHARED = """\
  "model.layers.*.mlp.shared_expert.{gate,up,down}_proj" -> sequence_parallel
  "model.layers.*.mlp.shared_expert_gate" -> sequence_parallel
"""
"""What a shared expert adds: it takes tokens without a dimension of the sequence, as the router does."""
_GATHERING = """\
  "model.layers.*.mlp.shared_expert.{gate,up}_proj" -> colwise(input = Shard(1))
  "model.layers.*.mlp.shared_expert.down_proj" -> rowwise(output = Shard(1))
"""
OF_SHARED = {
    "a gate of shared experts without a rule": (
        SHARED.splitlines(keepends=True)[1],
        "",
        "P415",
        'add `"model.layers.*.mlp.shared_expert_gate" -> sequence_parallel`',
    ),
    "a gate that splits its input": (
        'shared_expert_gate" -> sequence_parallel',
        'shared_expert_gate" -> rowwise_split_input',
        "P415",
        "use another style: this one takes Replicate()",
    ),
    "a gate that splits its output": (
        'shared_expert_gate" -> sequence_parallel',
        'shared_expert_gate" -> colwise',
        "P403",
        "set `tp` to 1",
    ),
    "a shared expert that gathers": (
        SHARED.splitlines(keepends=True)[0],
        _GATHERING,
        "P435",
        "redistribute the sequence at the modules before and behind, or write "
        '`"model.layers.*.mlp.shared_expert.{gate,up,down}_proj" -> sequence_parallel`',
    ),
    "logits on shards": (
        '"lm_head" -> colwise(input = Shard(1), output = Shard(-1))',
        '"lm_head" -> sequence_parallel',
        "P410",
        "write `colwise(input = Shard(1), output = Shard(-1))`",
    ),
    "keys on shards": (
        '"model.layers.*.self_attn.{q,k,v}_proj" -> colwise',
        '"model.layers.*.self_attn.{q,k,v}_proj" -> sequence_parallel',
        "P481",
        "use another style",
    ),
}


def test_a_shared_expert_and_its_gate_take_shards(tmp_path: Path) -> None:
    """By the rules that `auto` finds, or that a plan writes; each fault is named with what to set."""
    shutil.copytree(CATALOGUE / "models" / "tiny-qwen2-moe", tmp_path / "tiny-qwen2-moe")
    rules = RULES.replace('  "model.layers.*.self_attn.{q,k}_norm" -> replicated_with_grad_allreduce\n', "")
    text = PLAN.replace("models/tiny-qwen3-moe", "tiny-qwen2-moe").replace(RULES, rules + SHARED)
    assert checked(tmp_path, text) == (True, [])
    assert checked(tmp_path, text.replace(rules + SHARED, "  auto(sequence_parallel = true)\n")) == (True, [])
    prepared = '  "model.layers.*.self_attn" -> prepare_input(input = Shard(1), desired = Replicate())\n'
    for fault, (old, new, code, help) in OF_SHARED.items():
        assert old in text
        broken = text.replace(old, new)
        _, found = checked(tmp_path, broken.replace(prepared, "") if "self_attn" in old else broken)
        assert any(one == code and given.startswith(help) for one, _, given in found), (fault, found)
