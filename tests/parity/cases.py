"""The launch shapes that must train like one process, and the plan of each."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from planc.api import check_source
from planc.graph.graph import Graph
from planc.source import SourceFile
from tests.inventories import save_inventory

SEQUENCE_LENGTH = 64
GLOBAL_BATCH = 8
NUM_STEPS = 6
SAVE_STEP = 3
WARMUP_STEPS = 2
LEARNING_RATE = 1e-3
MIN_FACTOR = 0.1
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
MAX_NORM = 1.0
SEED = 7
SHUFFLE_SEED = 42
CORPUS = "corpus.txt"

_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "vocab_size": 260,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "llama-deep": {**_LLAMA, "num_hidden_layers": 4},
    "llama-deep-tied": {**_LLAMA, "num_hidden_layers": 4, "tie_word_embeddings": True},
    "llama-wide": {**_LLAMA, "intermediate_size": 256},
    "llama-tied": {**_LLAMA, "tie_word_embeddings": True},
    "llama-uneven": {**_LLAMA, "vocab_size": 257},
    "qwen3": {**_LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "starcoder": {
        **_LLAMA,
        "architectures": ["Starcoder2ForCausalLM"],
        "model_type": "starcoder2",
        "sliding_window": None,
        **dict.fromkeys(("residual_dropout", "embedding_dropout", "attention_dropout"), 0.0),
    },
    "qwen3-moe": {
        **_LLAMA,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "mlp_only_layers": [0],
    },
}
"""Models by name. Four key-value heads, so tp can be 4; 257 rows divide by nothing. A Starcoder's linear
layers have biases. Ranks of tp 2 have whole blocks of 64 inputs of the wide one."""

SEQUENCE_PARALLEL = """  "model.embed_tokens" -> embedding_rowwise(output = Shard(1))
  "model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel
  "model.layers.*.{self_attn,mlp}" -> prepare_input(input = Shard(1), desired = Replicate())
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise
  "model.layers.*.self_attn.o_proj" -> rowwise(output = Shard(1))
  "model.layers.*.mlp.{gate,up}_proj" -> colwise
  "model.layers.*.mlp.down_proj" -> rowwise(output = Shard(1))
  "model.norm" -> sequence_parallel
  "lm_head" -> colwise(input = Shard(1), output = Shard(-1))
"""
_HEAD_NORMS = '  "model.layers.*.self_attn.{q,k}_norm" -> replicated_with_grad_allreduce\n'


@dataclass(frozen=True, slots=True)
class Case:
    """One launch shape with one way to run it. `mesh` leaves out dims of one rank."""

    shape: str
    variant: str = ""
    mesh: Mapping[str, int] = field(default_factory=dict)
    model: str = "llama"
    rotate: Literal["ring", "allgather", "ulysses"] = "ring"
    balance: Literal["headtail", "none"] = "headtail"
    tensor_parallel: Literal["sequence", "auto"] = "sequence"
    recomputes: bool = False
    recomputation: Literal["full", "selective", "offload"] = "full"
    micro_batch: int | None = None
    """None takes the whole global batch at once."""
    replicas: Literal["fsdp", "whole"] = "fsdp"
    """What keeps ranks of dp_replicate equal: FSDP, or sums of whole replicas' gradients."""
    schedule: str = "one_f_one_b"
    """Of a pipeline."""
    settings: tuple[str, ...] = ()
    """Overrides, as `--set` takes them."""
    frozen: tuple[str, ...] = ()
    """Modules and parameters that are not trained."""
    is_compiled: bool = False
    """Whether layers are compiled, by the backend that needs no C++ compiler."""
    extensions: tuple[str, ...] = ()
    """The plan's own Python files, in the workspace."""
    adapter: str = ""
    """The body of a block `adapter`."""
    evaluation: str = ""
    """The body of a block `eval "held_out"`."""
    weights: Literal["random", "pretrained"] = "random"
    """Against one process they are `pretrained`, and so of neither side's making."""

    @property
    def name(self) -> str:
        return f"{self.shape} {self.variant}".strip()

    @property
    def world_size(self) -> int:
        product = 1
        for size in self.mesh.values():
            product *= size
        return product

    @property
    def dp_size(self) -> int:
        return self.mesh.get("dp_replicate", 1) * self.mesh.get("dp_shard", 1)


def with_cp_variants(shape: str, mesh: Mapping[str, int]) -> tuple[Case, ...]:
    """A context-parallel shape with every way to bring keys and values to the ranks."""
    return (
        Case(shape, "ring headtail", mesh, rotate="ring", balance="headtail"),
        Case(shape, "ring none", mesh, rotate="ring", balance="none"),
        Case(shape, "allgather headtail", mesh, rotate="allgather", balance="headtail"),
        Case(shape, "allgather none", mesh, rotate="allgather", balance="none"),
        Case(shape, "ulysses", mesh, rotate="ulysses", balance="none"),
    )


TP2_DP2: Mapping[str, int] = {"dp_shard": 2, "tp": 2}
TP2_REPLICATE2: Mapping[str, int] = {"dp_replicate": 2, "tp": 2}
CP2_DP2: Mapping[str, int] = {"dp_shard": 2, "cp": 2}
CP2_TP2: Mapping[str, int] = {"cp": 2, "tp": 2}
ALL_8: Mapping[str, int] = {"dp_shard": 2, "cp": 2, "tp": 2}

PP2_DP2: Mapping[str, int] = {"pp": 2, "dp_shard": 2}
PIPELINES: tuple[Case, ...] = (
    Case("PP4", "", {"pp": 4}, model="llama-deep", micro_batch=1),
    Case(
        "PP2·DP2",
        "interleaved",
        PP2_DP2,
        model="llama-deep",
        micro_batch=1,
        schedule="interleaved(stages_per_rank = 2)",
    ),
    Case("PP2·TP2", "", {"pp": 2, "tp": 2}, model="llama-deep", micro_batch=2),
)

CASES: tuple[Case, ...] = (
    Case("1"),
    Case("1", "recompute", recomputes=True),
    Case("TP2·DP2", "dp_shard", TP2_DP2),
    Case("TP2·DP2", "dp_replicate", TP2_REPLICATE2),
    Case("DP4", "dp_shard", {"dp_shard": 4}),
    Case("DP4", "HSDP 2x2", {"dp_replicate": 2, "dp_shard": 2}),
    Case("DP4", "257 rows", {"dp_shard": 4}, model="llama-uneven"),
    Case("DP4", "3 units ahead, recompute", {"dp_shard": 4}, recomputes=True, settings=("fsdp.prefetch=3",)),
    Case("TP4", "", {"tp": 4}),
    *with_cp_variants("CP2·DP2", CP2_DP2),
    *with_cp_variants("CP2·TP2", CP2_TP2),
    *with_cp_variants("CP4", {"cp": 4}),
    Case("DP2·CP2·TP2", "ring headtail", ALL_8),
    Case("DP2·CP2·TP2", "allgather headtail", ALL_8, rotate="allgather"),
    Case("DP2·CP2·TP2", "ulysses", ALL_8, rotate="ulysses", balance="none"),
    Case("TP2·DP2", "auto, no SP", TP2_DP2, tensor_parallel="auto"),
    Case("TP2·DP2", "tied", TP2_DP2, model="llama-tied"),
    Case("TP2·DP2", "257 rows", TP2_DP2, model="llama-uneven"),
    Case("TP2·DP2", "qwen3 q/k norms", TP2_DP2, model="qwen3"),
    Case("TP4", "qwen3 q/k norms", {"tp": 4}, model="qwen3"),
    Case("TP2·DP2", "recompute", TP2_DP2, recomputes=True),
    Case("CP2·TP2", "recompute, ring", CP2_TP2, recomputes=True),
    Case("TP2·DP2", "accumulate 4", TP2_DP2, micro_batch=1),
    Case("CP2·TP2", "accumulate 2", CP2_TP2, micro_batch=4),
    Case("DP4", "whole replicas", {"dp_replicate": 4}, replicas="whole"),
    Case("TP2·DP2", "whole replicas, qwen3", TP2_REPLICATE2, model="qwen3", replicas="whole"),
    Case("TP2·DP2", "whole replicas, tied", TP2_REPLICATE2, model="llama-tied", replicas="whole"),
    *PIPELINES,
)
"""Every row of the table."""


def plan_text(case: Case, *, saves: bool = False) -> str:
    """The plan of a case; paths are relative to the workspace."""
    mesh = "\n".join(f"  {mesh_dim} = {size}" for mesh_dim, size in case.mesh.items())
    micro_batch = case.micro_batch or GLOBAL_BATCH // case.dp_size
    weights = "  weights = pretrained\n" if case.weights == "pretrained" else ""
    held_out = f'  eval "held_out" {{\n{case.evaluation}  }}\n' if case.evaluation else ""
    blocks = [
        *(f'extension "{file}"' for file in case.extensions),
        f'model {{\n  hf = "{case.model}"\n  seed = {SEED}\n{weights}}}',
        f"mesh {{\n{mesh}\n}}" if mesh else "mesh { tp = 1 }",
        f'data {{\n  source = text("{CORPUS}")\n  sequence_length = {SEQUENCE_LENGTH}\n'
        f"  micro_batch = {micro_batch}\n  shuffle_seed = {SHUFFLE_SEED}\n{held_out}}}",
        f"optimizer {{\n  kind = adamw(lr = {LEARNING_RATE:.6f}, betas = [{BETAS[0]}, {BETAS[1]}], "
        f"weight_decay = {WEIGHT_DECAY})\n  clip_grad_norm = {MAX_NORM}\n"
        f"  schedule = cosine(warmup = {WARMUP_STEPS} steps, min_factor = {MIN_FACTOR})\n"
        '  "**.*norm*" -> group(weight_decay = 0.0)\n}',
        f"train {{\n  steps = {NUM_STEPS}\n  tokens_per_step = {GLOBAL_BATCH * SEQUENCE_LENGTH}\n}}",
    ]
    if case.replicas == "fsdp":
        blocks.append('fsdp on dp_shard, cp {\n  replicate_on = dp_replicate\n  "model.layers.*" -> unit\n}')
    if "pp" in case.mesh:
        blocks.append(f"pipeline on pp {{\n  schedule = {case.schedule}\n}}")
    if "tp" in case.mesh:
        blocks.append(f"tensor_parallel on tp {{\n{_tensor_parallel_rules(case)}}}")
    if "cp" in case.mesh:
        blocks.append(
            f"context_parallel on cp {{\n  rotate = {case.rotate}\n  load_balancer = {case.balance}\n"
            '  ["input_ids", "labels", "position_ids"] -> Shard(1)\n}'
        )
    if case.recomputes:
        blocks.append(f'activation_checkpoint {{\n  "model.layers.*" -> {case.recomputation}\n}}')
    if case.is_compiled:
        blocks.append('compile {\n  backend = aot_eager\n  "model.layers.*" -> region\n}')
    if case.frozen:
        rules = "".join(f'  "{name}" -> frozen\n' for name in case.frozen)
        blocks.append(f"freeze {{\n{rules}}}")
    if case.adapter:
        blocks.append(f"adapter {{\n{case.adapter}}}")
    if saves:
        blocks.append(f"checkpoint {{\n  save_every = {SAVE_STEP} steps\n  keep_last = 9\n}}")
    return "\n".join(blocks) + "\n"


def _tensor_parallel_rules(case: Case) -> str:
    if case.tensor_parallel == "auto":
        return "  auto\n"
    return SEQUENCE_PARALLEL + (_HEAD_NORMS if case.model == "qwen3" else "")


def make_workspace(folder: Path, models: Collection[str] = tuple(MODELS)) -> Path:
    """`folder`, filled with models' configs and inventories, and with text for more than one epoch."""
    for name, config in ((name, MODELS[name]) for name in models):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_inventory(folder / name)
    words = ("the", "mesh", "of", "ranks", "holds", "every", "weight", "once", "and", "sums", "gradients")
    text = " ".join(words[(i * i + 3 * i) % len(words)] + str(i) for i in range(500))
    (folder / CORPUS).write_text(text, encoding="utf-8")
    return folder


def compile_case(case: Case, *, workspace: Path, saves: bool = False) -> Graph:
    """The graph of a case's plan, through every check. ValueError with the findings if there are errors."""
    source = SourceFile("parity.plan", plan_text(case, saves=saves))
    settings = [SourceFile(f"--set[{index}]", text) for index, text in enumerate(case.settings)]
    checked = check_source(source, base=workspace, settings=settings, world_size=case.world_size)
    if checked.graph is None:
        raise ValueError(f"{case.name}: {'; '.join(map(str, checked.diagnostics))}")
    return checked.graph
