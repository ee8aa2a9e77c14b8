"""Attentions that count their heads train over tp as one process with transformers and torch alone does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from planc.api import check_source
from planc.diagnostics import Severity
from planc.graph.graph import AnyOp, Graph
from planc.graph.ops import ShardTensorParallel, ShareHeads
from planc.source import SourceFile
from planc.verify.pool import RankError, run_ranks
from planc.verify.ranks import Task, train_rank
from planc.vocab import PackedShard, Placement, Shard, StridedShard
from tests.dist.pool import start_server
from tests.models.architectures import architectures
from tests.models.independent import gradients_of, loaded, tokens_of, write_corpus
from tests.models.judge import prepare, run_graph
from tests.models.plans import CORPUS, Variant, plan_text
from tests.models.tiny import SEQUENCE_LENGTH
from tests.slow import slow_except

LIMITS = {"float64": 1e-9, "float32": 1e-5}
"""Relative, of the loss and of the worst gradient."""
FLOORS = {"float64": 1e-6, "float32": 1e-3}
"""Of all gradients together: a bias of keys changes no score, so only rounding is left of its gradient."""
IN_FLOAT32 = ("xglm",)
"""transformers can't run it in float64."""

RULES: Mapping[str, tuple[str, str]] = {
    "bloom": ("eager", "transformer.h.*.self_attention.query_key_value > dense"),
    "gpt_neo": ("eager", "transformer.h.*.attn.attention.{q,k,v}_proj > out_proj"),
    "gptj": ("eager", "transformer.h.*.attn.{q,k,v}_proj > out_proj"),
    "opt": ("sdpa", "model.decoder.layers.*.self_attn.{q,k,v}_proj > out_proj"),
    "persimmon": ("sdpa", "model.layers.*.self_attn.query_key_value > dense"),
    "stablelm": ("sdpa", "model.layers.*.self_attn.{q,k,v}_proj > o_proj"),
    "xglm": ("eager", "model.layers.*.self_attn.{q,k,v}_proj > out_proj"),
}
"""By model type: the attention of its plan, and the layers that share their columns and their rows."""
FUSED: Mapping[str, tuple[str, str, str]] = {
    "dbrx": ("sdpa", "transformer.blocks.*.norm_attn_norm.attn.Wqkv > out_proj", "widths = [64, 32, 32]"),
    "gpt2": ("sdpa", "transformer.h.*.attn.c_attn > c_proj", "parts = 3"),
    "mpt": ("eager", "transformer.blocks.*.attn.Wqkv > out_proj", "parts = 3"),
    "openai-gpt": ("eager", "transformer.h.*.attn.c_attn > c_proj", "parts = 3"),
    "phi3": ("sdpa", "model.layers.*.self_attn.qkv_proj > o_proj", "widths = [64, 32, 32]"),
}
"""Also with what the first layer holds in sequence."""
HEAD_NORMS = {"persimmon": "model.layers.*.self_attn.{q,k}_layernorm"}
CHANGES: Mapping[str, Mapping[str, object]] = {
    "phi3": {"num_key_value_heads": 2},
    "stablelm": {"num_key_value_heads": 2},
}


def dtype_of(model_type: str) -> str:
    return "float32" if model_type in IN_FLOAT32 else "float64"


def plan_of(model_type: str, folder: Path, *, tp: int = 2, dp_shard: int = 1) -> str:
    """A plan that shards the heads over tp, and nothing else of a layer."""
    inventory = prepare(
        model_type, architectures()[model_type], changes=CHANGES.get(model_type, {}), folder=folder
    )
    attention, layers, *held = FUSED.get(model_type) or RULES[model_type]
    columns, _, rows = layers.partition(" > ")
    style = f"packed_colwise({held[0]})" if held else "colwise"
    rules = [(columns, style), (f"{columns.rpartition('.')[0]}.{rows}", "rowwise")]
    if model_type in HEAD_NORMS:
        rules.append((HEAD_NORMS[model_type], "replicated_with_grad_allreduce"))
    lines = "".join(f'  "{pattern}" -> {style}\n' for pattern, style in rules)
    variant = Variant(attention=attention)
    text = plan_text("fsdp" if dp_shard > 1 else "one", inventory, model=model_type, variant=variant)
    text = text.replace("dtype = float32", f"dtype = {dtype_of(model_type)}")
    mesh = f"mesh {{\n  dp_shard = {dp_shard}\n  tp = {tp}\n}}\ntensor_parallel on tp {{\n{lines}}}\n"
    return re.sub(r"mesh \{.*?\}\n", mesh, text, count=1, flags=re.DOTALL)


def graph_of(text: str, folder: Path) -> Graph:
    checked = check_source(SourceFile("heads.plan", text), base=folder)
    assert checked.graph is not None, checked.diagnostics
    return checked.graph


def expected(
    rank: int, world_size: int, folder: Path, corpus: Path, dtype: str
) -> tuple[float, dict[str, Tensor]]:
    """The first loss and its gradients, without planc."""
    tokens = tokens_of(corpus, sequence_length=SEQUENCE_LENGTH)
    model = loaded(folder, dtype=dtype)
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), gradients_of(model)


def worst_error(graph: Graph, model_type: str, folder: Path) -> float:
    """Of the loss and of every gradient."""
    arguments = (folder / model_type, folder / CORPUS, dtype_of(model_type))
    ((loss, gradients),) = run_ranks(expected, 1, *arguments, timeout_seconds=100.0, init=False, quiet=True)
    record = run_graph(graph, folder=folder)[0]
    assert record.gradients.keys() == gradients.keys()
    floor = FLOORS[dtype_of(model_type)] * torch.stack([one.norm() for one in gradients.values()]).norm()
    errors = [
        float((record.gradients[name] - one).norm() / max(one.norm(), floor))
        for name, one in gradients.items()
    ]
    return max(abs(record.metrics[0].loss - loss) / loss, *errors)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    start_server()
    write_corpus(tmp_path / CORPUS, sequence_length=SEQUENCE_LENGTH)
    return tmp_path


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("model_type", slow_except((*RULES, *FUSED), "opt", "gpt2"))
def test_shared_heads_train_as_one_process_does(model_type: str, folder: Path) -> None:
    graph = graph_of(plan_of(model_type, folder), folder)
    assert [op for op in graph.setup if isinstance(op, ShareHeads)]
    error = worst_error(graph, model_type, folder)
    assert error <= LIMITS[dtype_of(model_type)], error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "tp", "dp_shard"),
    [
        *(("opt", 4, 1), ("opt", 2, 2), ("gptj", 2, 2), ("bloom", 4, 1), ("bloom", 2, 2)),
        *(("gpt2", 4, 1), ("gpt2", 2, 2), ("phi3", 2, 2), ("dbrx", 2, 2), ("mpt", 2, 2)),
    ],
)
def test_shared_heads_train_on_other_meshes(model_type: str, tp: int, dp_shard: int, folder: Path) -> None:
    graph = graph_of(plan_of(model_type, folder, tp=tp, dp_shard=dp_shard), folder)
    error = worst_error(graph, model_type, folder)
    assert error <= LIMITS[dtype_of(model_type)], error


WRONG: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "none": ("opt", ()),
    "another": ("opt", ("head_dim",)),
    "one of two": ("stablelm", ("num_heads",)),
    "another inside": ("gpt_neo", ("attention.head_dim",)),
    "of a fused projection": ("gpt2", ("head_dim",)),
    "one of a fused projection's": ("phi3", ("num_key_value_heads",)),
}
"""Model types, with attributes that do not make their attention right."""


@pytest.mark.parametrize("name", slow_except(WRONG))
def test_wrong_counts_do_not_go_unseen(name: str, folder: Path) -> None:
    model_type, counts = WRONG[name]
    graph = graph_of(plan_of(model_type, folder), folder)
    setup = (replace(op, counts=counts) if isinstance(op, ShareHeads) else op for op in graph.setup)
    wrong = replace(graph, setup=tuple(setup))
    try:
        error = worst_error(wrong, model_type, folder)
    except RankError:
        return
    assert error > 1e-3


LAYOUTS: Mapping[str, tuple[str, Placement]] = {
    "halves": ("gpt2", StridedShard(1, 2)),
    "blocks": ("gpt2", Shard(1)),
    "equal parts": ("phi3", StridedShard(0, 4)),
    "other widths": ("phi3", PackedShard(0, (32, 64, 32))),
}
"""Model types, with layouts that their fused projections do not have."""


@pytest.mark.parametrize("name", slow_except(LAYOUTS))
def test_wrong_layouts_do_not_go_unseen(name: str, folder: Path) -> None:
    model_type, wrong = LAYOUTS[name]
    graph = graph_of(plan_of(model_type, folder), folder)

    def changed(op: AnyOp) -> AnyOp:
        if not isinstance(op, ShardTensorParallel) or op.use.style != "packed_colwise":
            return op
        placed = ((one, wrong if one == "weight" else placement) for one, placement in op.parameters)
        return replace(op, parameters=tuple(placed))

    try:
        error = worst_error(replace(graph, setup=tuple(map(changed, graph.setup))), model_type, folder)
    except RankError:
        return
    assert error > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["none", "another dimension"])
def test_arguments_by_head_that_are_not_cut_do_not_go_unseen(argument: str, folder: Path) -> None:
    graph = graph_of(plan_of("bloom", folder), folder)

    def changed(op: AnyOp) -> AnyOp:
        if not isinstance(op, ShareHeads):
            return op
        wrong = (replace(one, is_per_sample=False) for one in op.arguments)
        return replace(op, arguments=() if argument == "none" else tuple(wrong))

    try:
        error = worst_error(replace(graph, setup=tuple(map(changed, graph.setup))), "bloom", folder)
    except RankError:
        return
    assert error > 1e-3


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("model_type", "written", "code"),
    [
        ("gpt2", "packed_colwise", "P431"),
        ("gpt2", "packed_colwise(parts = 3, widths = [64, 64, 64])", "P431"),
        ("gpt2", "packed_colwise(widths = [64, 64, 64])", None),
        ("gpt2", "colwise", "P417"),
        ("phi3", "packed_colwise(widths = [32, 64, 32])", "P431"),
        ("phi3", "packed_colwise(parts = 4)", "P431"),
    ],
)
def test_only_the_layout_that_was_found_is_legal(
    model_type: str, written: str, code: str | None, folder: Path
) -> None:
    text = plan_of(model_type, folder)
    held = FUSED[model_type][2]
    checked = check_source(
        SourceFile("heads.plan", text.replace(f"packed_colwise({held})", written)), base=folder
    )
    errors = [one for one in checked.diagnostics if one.severity is Severity.ERROR]
    assert [one.code.code for one in errors] == ([code] if code else [])
    assert all(f"packed_colwise({held})" in (one.help or "") for one in errors if "exclude" not in str(one))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["gpt2", "phi3"])
def test_fused_projections_are_exported_in_their_own_order(model_type: str, folder: Path) -> None:
    """From ranks that FSDP shards again."""
    text = plan_of(model_type, folder, dp_shard=2).replace("  steps = 10", "  steps = 2")
    graph = graph_of(
        f'{text}checkpoint {{\n  save_last = false\n  export "hf" {{ when = end }}\n}}\n', folder
    )
    task = Task(graph, folder, folder / "run")
    record = run_ranks(train_rank, 4, task, timeout_seconds=100.0, init=False, quiet=True)[0]
    exported = loaded(folder / "run" / "export" / "hf", dtype=dtype_of(model_type))
    assert {name: torch.equal(one, record.final[name]) for name, one in exported.named_parameters()} == (
        dict.fromkeys(dict(exported.named_parameters()), True)
    )
    initial = loaded(folder / model_type, dtype=dtype_of(model_type))
    # Ranks' order would be as far from the first weights as another draw is.
    for (name, before), after in zip(initial.named_parameters(), exported.parameters(), strict=True):
        assert torch.nn.functional.cosine_similarity(before.flatten(), after.flatten(), dim=0) > 0.5, name
