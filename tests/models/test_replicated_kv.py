"""Attentions with fewer key/value heads than ranks train as one process with transformers alone does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_source
from planc.graph.graph import AnyOp, Graph
from planc.graph.ops import Rows, ShardTensorParallel, ShareHeads
from planc.source import SourceFile
from planc.verify.pool import RankError
from tests.models.architectures import architectures
from tests.models.judge import prepare
from tests.models.plans import Variant, plan_text
from tests.models.test_shared_heads import LIMITS, folder, graph_of, worst_error
from tests.slow import slow_except

__all__ = ["folder"]

HEADS: Mapping[str, Mapping[str, object]] = {
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 1},
    "llama 2": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "llama 6": {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96},
    "qwen2": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "gemma3_text": {"num_attention_heads": 4, "num_key_value_heads": 1},
    "stablelm": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "phi3": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "gpt_bigcode": {},
    "falcon": {},
}
"""Of small models, by model type and what tells two of one type apart."""


def plan_of(name: str, folder: Path, *, column: str = "solve", tp: int = 2) -> str:
    model_type = name.partition(" ")[0]
    inventory = prepare(model_type, architectures()[model_type], changes=HEADS[name], folder=folder)
    text = plan_text(
        column, inventory, model=model_type, variant=Variant("eager" if name == "falcon" else "sdpa")
    )
    return re.sub(r"tp = \d+", f"tp = {tp}", text.replace("dtype = float32", "dtype = float64"), count=1)


def replicated(graph: Graph) -> list[ShardTensorParallel]:
    return [op for op in graph.setup if isinstance(op, ShardTensorParallel) and op.rows is not None]


CASES = {
    "one head on 2 ranks": ("llama", "solve", 2),
    "2 heads on 4 ranks": ("llama 2", "solve", 4),
    "biases": ("qwen2", "solve", 4),
    "norms of heads": ("qwen3", "solve", 4),
    "one head with norms": ("gemma3_text", "solve", 2),
    "counted heads": ("stablelm", "solve", 4),
    "fused": ("gpt_bigcode", "solve", 4),
    "fused, 2 heads on 4 ranks": ("phi3", "solve", 4),
    "own code": ("falcon", "solve", 4),
    "own code, FSDP": ("falcon", "tp-fsdp", 2),
    "own code, sequence parallelism": ("falcon", "sp", 2),
    "sequence parallelism": ("llama 2", "sp", 4),
    "sequence parallelism, one head": ("gemma3_text", "sp", 2),
    "sequence parallelism, fused": ("gpt_bigcode", "sp", 2),
    "FSDP": ("llama", "tp-fsdp", 2),
    "FSDP, fused": ("gpt_bigcode", "tp-fsdp", 2),
    "compiled": ("llama 2", "compile", 4),
    "compiled, fused": ("gpt_bigcode", "compile", 2),
}
NORMS_IN_FLOAT32 = ("qwen3", "gemma3_text")
"""transformers norms their heads in float32: a sum of rounded gradients is not the rounded sum."""
IN_CI = ("2 heads on 4 ranks", "fused")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", slow_except(CASES, *IN_CI))
def test_replicated_heads_train_as_one_process_does(name: str, folder: Path) -> None:
    model, column, tp = CASES[name]
    graph = graph_of(plan_of(model, folder, column=column, tp=tp), folder)
    assert replicated(graph)
    model_type = model.partition(" ")[0]
    error = worst_error(graph, model_type, folder)
    assert error <= LIMITS["float32" if model_type in NORMS_IN_FLOAT32 else "float64"], error


WRONG = ("another head", "all heads", "all queries of a head")


@pytest.mark.slow
@pytest.mark.parametrize("wrong", slow_except(WRONG, "another head"))
def test_wrong_heads_do_not_go_unseen(wrong: str, folder: Path) -> None:
    graph = graph_of(plan_of("llama 2", folder, tp=4), folder)

    def changed(op: AnyOp) -> AnyOp:
        if isinstance(op, ShardTensorParallel) and op.rows is not None:
            ((width, copies),) = op.rows.parts
            assert copies == 2
            # The first head for all ranks, or both heads.
            parts = {"another head": ((width // 2, 4), (width // 2, 0)), "all heads": ((width, 4),)}
            return replace(op, rows=Rows(parts.get(wrong, op.rows.parts)[:1]))
        if isinstance(op, ShareHeads) and wrong == "all queries of a head":
            return replace(op, group_counts=())
        return op

    try:
        error = worst_error(replace(graph, setup=tuple(map(changed, graph.setup))), "llama", folder)
    except RankError:
        return
    assert error > 1e-3


RULES = {
    "divisible": (2, "replicated_kv", "replicated_kv", "colwise", "P437"),
    "no multiple": (3, "replicated_kv", "replicated_kv", "colwise", "P437"),
    "no heads": (5, "replicated_kv", "replicated_kv", "colwise", "P401"),
    "keys only": (4, "replicated_kv", "colwise", "colwise", "P437"),
    "queries whole": (4, "replicated_kv", "replicated_kv", "replicate", "P411"),
    "queries replicated": (4, "replicated_kv", "replicated_kv", "replicated_kv", "P437"),
    "not replicated": (4, "colwise", "colwise", "colwise", "P402"),
    "legal": (4, "replicated_kv", "replicated_kv", "colwise", None),
}


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("name", RULES)
def test_only_heads_that_ranks_can_share_are_legal(name: str, folder: Path) -> None:
    tp, keys, values, queries, code = RULES[name]
    text = plan_of("llama 6" if tp == 3 else "llama 2", folder, tp=tp)
    attention = "model.layers.*.self_attn"
    rules = {"q_proj": queries, "k_proj": keys, "v_proj": values, "o_proj": "rowwise"}
    lines = "\n".join(f'  "{attention}.{layer}" -> {style}' for layer, style in rules.items())
    checked = check_source(SourceFile("kv.plan", text.replace("  auto(solve)", lines)), base=folder)
    found = [one.code.code for one in checked.diagnostics if one.severity.value == "error"]
    # A finding for each rule at fault, and not for each layer.
    number = 2 if name in ("divisible", "no multiple") else 1
    assert found.count(code) == number if code else not found, checked.diagnostics


def test_indivisible_heads_are_told_the_rule(folder: Path) -> None:
    text = plan_of("llama 2", folder, column="tp", tp=4)
    checked = check_source(SourceFile("kv.plan", text), base=folder)
    (finding,) = [one for one in checked.diagnostics if one.code.code == "P402"]
    assert finding.help is not None
    rule = re.search(r"`(override .*?)`", finding.help)
    assert rule is not None
    mended = text.replace("  auto\n", f"  auto\n  {rule[1]}\n")
    assert check_source(SourceFile("kv.plan", mended), base=folder).graph is not None
