"""Experts on different ranks train as one process of transformers alone does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from planc.api import check_plan
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import AttachAttention, Log, OpenData
from planc.runtime.data.open import open_data
from planc.runtime.data.ops import data_spec
from planc.runtime.interpreter import Position
from planc.runtime.torch.dispatch import State
from planc.source import SourceFile
from planc.verify.ranks import Record, Task, train_rank
from tests.dist.first_steps import run_compared
from tests.dist.pool import run_ranks
from tests.models.tiny import tiny_config
from tests.plans import checked, write_plan
from tests.slow import slow_except

LENGTH, SEQUENCES, STEPS, NORM = 16, 8, 3, 0.5
RATE, BETAS, EPS, DECAY = 1e-2, (0.9, 0.95), 1e-3, 0.1
EXACT, ROUTER = 1e-12, 1e-6
"""Routers of some models compute in float32, in a float64 model too."""
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # Its routers divide probabilities in place, as those of published models do.
    "qwen3_moe": ("Qwen3MoeForCausalLM", {"num_local_experts": 8, "norm_topk_prob": True}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {"n_routed_experts": 8}),
    "gpt_oss": ("GptOssForCausalLM", {"num_local_experts": 8}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 8}),
}
GATED = {"qwen2_moe": ("Qwen2MoeForCausalLM", {"num_experts": 8, "tie_word_embeddings": False})}
"""Its shared expert, and the gate of that, get tokens without a dimension of the sequence."""
WEIGHED_IN_FLOAT32 = ("deepseek_v3", "mixtral")
"""The weights of a token's experts stay float32, and so do their gradients, which ranks of tp add up."""
PLAN = f"""\
model {{
  hf = "model"  # planc: ignore[P725] not what it is about
  weights = pretrained
  dtype = float64
  attention = eager
}}

mesh {{
  dp_shard = 1
}}

expert_parallel on dp_shard {{
  size = 1
  auto
}}

fsdp on dp_shard {{
  replicate_on = dp_replicate
  "model.layers.*" -> unit
}}

data {{
  source = text("corpus.txt")
  tokenizer = bytes
  sequence_length = {LENGTH}
  micro_batch = 1
}}

optimizer {{
  kind = adamw(lr = {RATE}, betas = [{BETAS[0]}, {BETAS[1]}], eps = {EPS}, weight_decay = {DECAY})
  clip_grad_norm = {NORM}
}}

train {{
  steps = {STEPS}
  tokens_per_step = {SEQUENCES * LENGTH}
}}
"""
RECOMPUTED = 'activation_checkpoint {{\n  "model.layers.*" -> {}\n}}\n\ndata'
CONTEXT = """\
context_parallel on cp {
  rotate = ulysses
  load_balancer = none
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}

"""
COMPILED = """\
compile {
  backend = aot_eager
  fullgraph = false
  "model.layers.*" -> region
}

"""
MESHES: Mapping[str, tuple[str, ...]] = {
    "ep 1 of 4": ("mesh.dp_shard=4",),
    "ep 2": ("mesh.dp_shard=2", "expert_parallel.size=2"),
    "ep 2 of 4": ("mesh.dp_shard=4", "expert_parallel.size=2"),
    "ep 4": ("mesh.dp_shard=4", "expert_parallel.size=4"),
    "ep 2, replicas": ("mesh.dp_shard=2", "mesh.dp_replicate=2", "expert_parallel.size=2"),
    "ep 2, pp": ("mesh.dp_shard=2", "mesh.pp=2", "expert_parallel.size=2"),
    "ep 2, tp": ("mesh.dp_shard=2", "mesh.tp=2", "expert_parallel.size=2"),
    "ep 2 of 4, tp": ("mesh.dp_shard=4", "mesh.tp=2", "expert_parallel.size=2"),
    "ep 2, tp of sequences": ("mesh.dp_shard=2", "mesh.tp=2", "expert_parallel.size=2"),
    "ep 2, cp": ("mesh.dp_shard=2", "mesh.cp=2", "expert_parallel.size=2"),
    "ep 4, over cp": ("mesh.dp_shard=2", "mesh.cp=2", "expert_parallel.size=4"),
    "ep 2, over cp": ("mesh.dp_shard=2", "mesh.cp=2", "expert_parallel.size=2"),
    "ep 2, over a part of cp": ("mesh.dp_shard=2", "mesh.cp=4", "expert_parallel.size=2"),
    "ep 4, over more than cp": ("mesh.dp_shard=4", "mesh.cp=2", "expert_parallel.size=4"),
    "ep 2, over cp alone": ("mesh.dp_shard=2", "mesh.cp=2", "expert_parallel.size=2"),
    "ep 2, over cp alone, replicas": ("mesh.dp_replicate=2", "mesh.cp=2", "expert_parallel.size=2"),
    "ep 4, over tp": ("mesh.dp_shard=2", "mesh.tp=2", "expert_parallel.size=4"),
    "ep 2, over tp": ("mesh.dp_shard=2", "mesh.tp=2", "expert_parallel.size=2"),
    "ep 2, over tp alone": ("mesh.dp_shard=2", "mesh.tp=2", "expert_parallel.size=2"),
    "ep 4, over cp and tp": ("mesh.cp=2", "mesh.tp=2", "expert_parallel.size=4"),
    "ep 2, compiled": ("mesh.dp_shard=2", "expert_parallel.size=2"),
    "one": (),
    "one, tp": ("mesh.tp=2",),
}
_CP = (
    ("  attention = eager\n", ""),
    ("fsdp on dp_shard {", f"{CONTEXT}fsdp on dp_shard, cp {{"),
)
_BOTH = ("expert_parallel on dp_shard {", "expert_parallel on dp_shard, cp {")
_ALONE = ("expert_parallel on dp_shard {", "expert_parallel on cp {")
_SEQUENCES = ("fsdp on", "tensor_parallel on tp {\n  auto(sequence_parallel = true)\n}\n\nfsdp on")
BLOCKS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "pp": (("expert_parallel", "pipeline on pp {\n}\n\nexpert_parallel"),),
    "tp": (("fsdp on", "tensor_parallel on tp {\n  auto(solve)\n}\n\nfsdp on"),),
    "tp of sequences": (_SEQUENCES,),
    "over tp": (_SEQUENCES, ("expert_parallel on dp_shard {", "expert_parallel on dp_shard, tp {")),
    "over tp alone": (_SEQUENCES, ("expert_parallel on dp_shard {", "expert_parallel on tp {")),
    "over cp and tp": (
        *_CP,
        ("fsdp on", _SEQUENCES[1]),
        ("expert_parallel on dp_shard {", "expert_parallel on dp_shard, cp, tp {"),
    ),
    "compiled": (("fsdp on", f"{COMPILED}fsdp on"),),
    "cp": _CP,
    "over cp": (*_CP, _BOTH),
    "over a part of cp": (*_CP, _BOTH),
    "over more than cp": (*_CP, _BOTH),
    "over cp alone": (*_CP, _ALONE),
    "over cp alone, replicas": (*_CP, _ALONE),
}
"""The edits of the plan for a mesh dim next to `dp_shard`, and for layers compiled around their experts."""
ADJACENT = tuple(mesh for mesh in MESHES if mesh.partition(", ")[2] in BLOCKS)


@dataclass(frozen=True)
class Trained:
    """What one process of transformers alone does."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    gradients: Mapping[str, Tensor]
    """Of the first step, before clipping."""
    final: Mapping[str, Tensor]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts")


def folder_of(root: Path, name: str, change: str = "") -> Path:
    """A model's folder, made when it is first asked for, with weights that all differ."""
    folder = root / f"{name} {change}".strip()
    if folder.exists():
        return folder
    (folder / "model").mkdir(parents=True)
    (folder / "corpus.txt").write_text("Vor dem Gesetz steht ein Türhüter. " * 40, encoding="utf-8")
    architecture, settings = {**MODELS, **GATED}[name]
    if change == "six experts":
        settings = {"num_local_experts": 6}
    config = json.dumps({**tiny_config(name, architecture), **settings})
    (folder / "model" / "config.json").write_text(config)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model")).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, one in model.named_parameters():
            one.copy_(torch.randn(one.shape, generator=generator, dtype=one.dtype) * 0.2 + ("norm" in name))
            if change == "two experts" and name.endswith("router.bias"):
                # All tokens go to the experts of the last rank; the others get none.
                one[-model.config.num_experts_per_tok :] += 100
            if change == "equal scores" and name.endswith("mlp.gate.weight"):
                one[:4], one[4:] = one[0].clone(), one[4].clone()
    model.save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_text(config)
    return folder


def graph_of(folder: Path, mesh: str, *, edits: tuple[tuple[str, str], ...] = ()) -> Graph:
    blocks = BLOCKS.get(mesh.partition(", ")[2], ())
    write_plan(folder, text=PLAN, edits=(*blocks, *edits))
    found = checked(folder / "x.plan", *MESHES[mesh])
    assert found.graph is not None, [one.code.code for one in found.diagnostics]
    return found.graph


def trained(graph: Graph, folder: Path, run_folder: Path, **options: Any) -> list[Record]:
    return run_ranks(train_rank, graph.world_size, Task(graph, folder, run_folder, **options), init=False)


def by_transformers(
    graph: Graph,
    folder: Path,
    batches: tuple[tuple[int, ...], ...],
    *,
    prepare: Callable[[nn.Module], None] = lambda _: None,
) -> Trained:
    (op,) = (op for op in graph.setup if isinstance(op, OpenData))
    data = open_data(data_spec(op, training=op), base=folder, model_vocab_size=260).dataset
    attention = next(op.kind for op in graph.setup if isinstance(op, AttachAttention))
    # transformers computes the sinks of gpt-oss in eager attention only.
    is_eager = attention == "eager" or "gpt_oss" in folder.name
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder / "model",
        dtype=torch.float64,
        # Softmax is in float32 in one of them.
        attn_implementation="eager" if is_eager else "sdpa",
        experts_implementation="eager",
    ).train()
    prepare(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, foreach=False
    )
    losses, norms, gradients = [], [], {}
    for step, ids in enumerate(batches):
        inputs, labels = (torch.stack([torch.from_numpy(data[one][part]) for one in ids]) for part in (0, 1))
        logits = model(inputs, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        gradients = gradients if step else found
        losses.append(loss.item())
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), NORM)))
        optimizer.step()
        optimizer.zero_grad()
    return Trained(tuple(losses), tuple(norms), gradients, dict(model.named_parameters()))


def assert_equal(records: list[Record], expected: Trained, *, exact: float = EXACT) -> None:
    """Losses, global norms, every gradient and every weight after all steps."""
    first = records[0]
    assert [one.loss for one in first.metrics] == pytest.approx(expected.losses, rel=ROUTER)
    assert [one.grad_norm for one in first.metrics] == pytest.approx(expected.norms, rel=ROUTER)
    assert {*first.gradients} >= {*expected.gradients}
    for name, gradient in expected.gradients.items():
        assert _error(first.gradients[name], gradient) < _tolerance(name, exact), name
    for name, weight in expected.final.items():
        assert _error(first.final[name], weight) < ROUTER, name


def _tolerance(name: str, exact: float) -> float:
    return ROUTER if name.endswith(("gate.weight", "router.weight", "router.bias")) else exact


def _error(found: Tensor, expected: Tensor) -> float:
    norm = expected.norm().item()
    return (found - expected).norm().item() / (norm or 1.0)


def batches_of(records: list[Record]) -> tuple[tuple[int, ...], ...]:
    return tuple(one.sample_ids for one in records[0].metrics)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("qwen3_moe", "ep 2 of 4"),
        pytest.param("qwen3_moe", "ep 4", marks=pytest.mark.slow),
        pytest.param("qwen3_moe", "ep 2", marks=pytest.mark.slow),
        pytest.param("qwen3_moe", "ep 2, replicas", marks=pytest.mark.slow),
        pytest.param("deepseek_v3", "ep 2 of 4", marks=pytest.mark.slow),
        pytest.param("gpt_oss", "ep 2 of 4", marks=pytest.mark.slow),
        pytest.param("mixtral", "ep 4", marks=pytest.mark.slow),
    ],
)
def test_experts_on_ranks_train_as_one_process(name: str, mesh: str, root: Path, tmp_path: Path) -> None:
    """Two micro-batches a step or four, so gradients accumulate; no rank's share of tokens is equal."""
    folder = folder_of(root, name)
    graph = graph_of(folder, mesh)
    assert graph.experts is not None
    records = trained(graph, folder, tmp_path)
    assert_equal(records, by_transformers(graph, folder, batches_of(records)))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("mesh", slow_except(ADJACENT, "ep 2, tp", "ep 4, over cp"))
@pytest.mark.parametrize("name", slow_except(MODELS, "qwen3_moe"))
def test_experts_next_to_something_else_train_as_one_process(
    name: str, mesh: str, root: Path, tmp_path: Path
) -> None:
    folder = folder_of(root, name)
    graph = graph_of(folder, mesh)
    records = trained(graph, folder, tmp_path)
    exact = ROUTER if name in WEIGHED_IN_FLOAT32 and "tp" in mesh else EXACT
    assert_equal(records, by_transformers(graph, folder, batches_of(records)), exact=exact)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ("ep 4, over tp", "ep 2, over tp alone", "ep 4, over cp and tp"))
def test_a_gated_shared_expert_takes_shards_of_sequences(mesh: str, root: Path, tmp_path: Path) -> None:
    """Each rank of tp has all of it for its own tokens, and the ranks' gradients are summed."""
    folder = folder_of(root, "qwen2_moe")
    graph = graph_of(folder, mesh)
    records = trained(graph, folder, tmp_path)
    assert_equal(records, by_transformers(graph, folder, batches_of(records)))


def test_one_compiled_graph_cannot_have_experts_inside(root: Path) -> None:
    folder = folder_of(root, "qwen3_moe")
    # In float64 they would be a loop, which is another error.
    edits = (*BLOCKS["compiled"], ("  fullgraph = false\n", ""), ("float64", "float32"))
    sources = [SourceFile(f"--set[{one}]", one) for one in MESHES["ep 2, compiled"]]
    found = check_plan(write_plan(folder, text=PLAN, edits=edits), settings=sources)
    assert [one.code.code for one in found.diagnostics] == ["P623"]


@pytest.mark.parametrize("mode", [pytest.param("full", marks=pytest.mark.slow), "selective"])
def test_recomputed_layers_route_as_before(
    mode: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts in fours have equal scores, and a router that backward computes again would choose others."""
    folder = folder_of(root, "qwen3_moe", "equal scores")
    graph = graph_of(folder, "ep 2", edits=(("data", RECOMPUTED.format(mode)),))
    records = trained(graph, folder, tmp_path, before_op=_choose_others_in_backward)
    monkeypatch.setattr(torch, "topk", _last_of_equal)
    assert_equal(records, by_transformers(graph, folder, batches_of(records)))


_TOPK = torch.topk


def _choose_others_in_backward(state: State, op: Op, position: Position) -> None:
    # Ranks are processes that other tests use too.
    is_over = isinstance(op, Log) and position.step == STEPS
    torch.topk = _TOPK if is_over else _last_of_equal  # type: ignore[assignment]


def _last_of_equal(scores: Tensor, *arguments: Any, **keywords: Any) -> Any:
    """The last of equal scores; the first where autograd executes a node, so in a recomputed forward."""
    sign = -1 if torch._C._current_autograd_node() else 1  # type: ignore[attr-defined]
    moved = torch.arange(scores.shape[-1], dtype=scores.dtype) * (sign * 1e-15)
    return _TOPK(scores + moved, *arguments, **keywords)


@pytest.mark.slow
def test_all_tokens_may_go_to_the_experts_of_one_rank(root: Path, tmp_path: Path) -> None:
    folder = folder_of(root, "gpt_oss", "two experts")
    graph = graph_of(folder, "ep 4")
    records = trained(graph, folder, tmp_path)
    (load,) = {loads for one in records[0].metrics for loads in one.expert_load.values()}
    assert sum(load[:-2]) == 0 and sum(load) > 0
    assert_equal(records, by_transformers(graph, folder, batches_of(records)))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ("ep 2 of 4", "ep 2 of 4, tp", "ep 2, cp", "ep 2, over cp", "ep 2, over tp"))
def test_experts_that_ranks_cannot_share_equally_are_sharded_by_features(
    mesh: str, root: Path, tmp_path: Path
) -> None:
    """Three experts of a rank on two ranks; saved in the second step, and loaded whole."""
    folder = folder_of(root, "qwen3_moe", "six experts")
    saving = (("train {", "checkpoint {\n  save_every = 2 steps\n}\n\ntrain {"),)
    graph = graph_of(folder, mesh, edits=saving)
    assert graph.experts is not None and graph.experts.by_features == graph.experts.modules
    records = trained(graph, folder, tmp_path)
    assert_equal(records, by_transformers(graph, folder, batches_of(records)))
    (tmp_path / "checkpoints/step-3").rename(tmp_path / "left")
    resumed = trained(graph_of(folder, "one", edits=saving), folder, tmp_path)[0]
    assert resumed.first_step == 3 and resumed.states[2] == records[0].states[2]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["ep 2, replicas", "ep 2, over cp alone, replicas", "ep 2, over tp"])
def test_copies_of_experts_are_compared_and_their_shards_are_not(
    mesh: str, root: Path, tmp_path: Path
) -> None:
    """Replicas hold the same experts; ranks of dp_shard and cp hold different ones or different shards."""
    folder = folder_of(root, "qwen3_moe")
    guarded = (("data {", "guard {\n  replicas_every = 1 step\n}\n\ndata {"),)
    graph = graph_of(folder, mesh, edits=guarded)
    assert len(trained(graph, folder, tmp_path)[0].metrics) == STEPS
    for one in run_compared(graph, folder / "model", tmp_path / "compared"):
        assert (one.code, one.message) == (None, "")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", slow_except(("ep 2 of 4", "ep 4", *ADJACENT), "ep 2 of 4"))
@pytest.mark.parametrize("mode", ["", pytest.param("full", marks=pytest.mark.slow)])
def test_a_first_step_sends_what_is_predicted(mesh: str, mode: str, root: Path, tmp_path: Path) -> None:
    """Also the bytes, but for those of results and gradients, of which a rank sends what it has received."""
    folder = folder_of(root, "qwen3_moe")
    edits = (("data", RECOMPUTED.format(mode)),) if mode else ()
    graph = graph_of(folder, mesh, edits=edits)
    for one in run_compared(graph, folder / "model", tmp_path):
        assert (one.code, one.message, one.counted) == (None, "", (1,))
