"""Models whose own plans use styles beyond linear layers and norms, over ranks against one process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from planc.api import check_source
from planc.deep_check.check import counted_collectives, predicted_collectives
from planc.estimate.estimate import estimate
from planc.graph.graph import Graph
from planc.graph.ops import ShardTensorParallel
from planc.plan.bind import BoundPlan
from planc.runtime.rehearsal.rehearse import rehearse
from planc.source import SourceFile
from planc.styles.edges import READ_BY_PARTS, Transfer
from planc.verify.outcome import Item
from planc.verify.verify import verify
from tests.dist.pool import run_ranks
from tests.models.tiny import tiny_config
from tests.parity.cases import MODELS, Case, compile_case
from tests.parity.ranks import Task, train_rank
from tests.parity.reference import train_reference
from tests.parity.resume import resume_rows

AUTO = "  auto"
LATENT = """  "model.layers.*.self_attn.{q_b,kv_b}_proj" -> colwise
  "model.layers.*.self_attn.kv_a_proj_with_mqa" -> mla_kv_a_proj
  "model.layers.*.self_attn.o_proj" -> rowwise"""
PACKED = """  "model.layers.*.mlp.gate_up_proj" -> packed_colwise
  "model.layers.*.mlp.down_proj" -> rowwise"""
AROUND_BLOCKS = """  "model.embed_tokens" -> embedding_rowwise(output = Shard(1))
  "model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel
  "model.norm" -> sequence_parallel
  "lm_head" -> colwise(input = Shard(1), output = Shard(-1))
  "model.layers.*.mlp" -> prepare_input_output(input = Shard(1), desired = Replicate(), output = Shard(1))
"""
DIVIDED_SEQUENCE = (
    AROUND_BLOCKS
    + """  "model.layers.*.self_attn" -> prepare_input(input = Shard(1), desired = Replicate())
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise
  "model.layers.*.self_attn.{q,k}_norm" -> replicated_with_grad_allreduce
  "model.layers.*.self_attn.o_proj" -> rowwise(output = Shard(1))
  "model.layers.*.mlp.experts" -> moe_tp_experts"""
)
LATENT_DIVIDED_SEQUENCE = (
    AROUND_BLOCKS
    + """  "model.layers.*.self_attn" -> prepare_input_output(
    input = Shard(1), desired = Replicate(), output = Shard(1)
  )
  "model.layers.1.mlp.experts" -> moe_tp_experts
  "model.layers.1.mlp.shared_experts.{gate,up}_proj" -> colwise
  "model.layers.1.mlp.shared_experts.down_proj" -> rowwise
  "model.layers.0.mlp.{gate,up}_proj" -> colwise
  "model.layers.0.mlp.down_proj" -> rowwise
"""
    + LATENT
)
FSDP = 'fsdp on dp_shard {{\n  "{blocks}.*" -> unit\n}}\n'


@dataclass(frozen=True, slots=True)
class Styled:
    """A model of transformers by its type, with what divides it."""

    model_type: str
    architecture: str
    rules: str = AUTO
    mesh: Mapping[str, int] = field(default_factory=lambda: {"tp": 2})
    name: str = "auto"
    blocks: str = "model.layers"

    @property
    def text(self) -> str:
        mesh = "\n".join(f"  {mesh_dim} = {size}" for mesh_dim, size in self.mesh.items())
        num_sequences = 4 * self.mesh.get("dp_shard", 1)
        return (
            f'model {{\n  hf = "model"\n}}\nmesh {{\n{mesh}\n}}\n'
            f"tensor_parallel on tp {{\n{self.rules}\n}}\n"
            f"{FSDP.format(blocks=self.blocks) if 'dp_shard' in self.mesh else ''}"
            "data {\n  source = python_stdlib()\n  sequence_length = 64\n  micro_batch = 2\n}\n"
            "optimizer {\n  kind = adamw(lr = 1e-3)\n}\n"
            f"train {{\n  steps = 4\n  tokens_per_step = {64 * num_sequences}\n}}\n"
        )


QUICK = (
    Styled("qwen3_moe", "Qwen3MoeForCausalLM"),
    Styled("deepseek_v2", "DeepseekV2ForCausalLM"),
    Styled("qwen3_moe", "Qwen3MoeForCausalLM", DIVIDED_SEQUENCE, name="sharded sequence"),
    Styled("opt", "OPTForCausalLM", name="found rules"),
    Styled("gpt2", "GPT2LMHeadModel", name="fused heads"),
    Styled("llama", "LlamaForCausalLM", "  auto(sequence_parallel = true)", name="found rules of a sequence"),
)
NESTED = Styled(
    "hunyuan_v1_moe",
    "HunYuanMoEV1ForCausalLM",
    '  auto(sequence_parallel = true)\n  "model.norm" -> replicate',
    name="prepared in a prepared layer",
)
"""The ends are whole, so the layers at the ends prepare, and in them an MLP with an MLP that prepares."""
SLOW = (
    NESTED,
    Styled("qwen3_moe", "Qwen3MoeForCausalLM", mesh={"dp_shard": 2, "tp": 2}, name="auto and FSDP"),
    Styled("deepseek_v3", "DeepseekV3ForCausalLM", f"{AUTO}\n{LATENT}", name="latent heads by hand"),
    Styled("deepseek_v3", "DeepseekV3ForCausalLM", LATENT_DIVIDED_SEQUENCE, name="sharded sequence"),
    Styled("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
    Styled("minicpm3", "MiniCPM3ForCausalLM"),
    Styled("qwen2_moe", "Qwen2MoeForCausalLM"),
    Styled("granitemoe", "GraniteMoeForCausalLM"),
    Styled("aria_text", "AriaTextForCausalLM"),
    Styled("beam", "BeamForCausalLM"),
    Styled("phi3", "Phi3ForCausalLM", PACKED, name="packed"),
    Styled("phi3", "Phi3ForCausalLM", PACKED, mesh={"dp_shard": 2, "tp": 2}, name="packed and FSDP"),
    Styled("phi3", "Phi3ForCausalLM", "  auto(solve)", mesh={"dp_shard": 2, "tp": 2}, name="fused heads"),
    Styled(
        "gpt2",
        "GPT2LMHeadModel",
        mesh={"dp_shard": 2, "tp": 2},
        name="fused heads and FSDP",
        blocks="transformer.h",
    ),
)
"""Experts with shared ones, behind gates, transposed (aria), a number for each head (beam)."""

EQUAL = (
    *(Item.RUN, Item.INITIAL_WEIGHTS, Item.SAMPLE_IDS),
    *(Item.LOSS, Item.GRADIENTS, Item.REPLICAS, Item.RESUME),
)
"""Of later steps' weights, AdamW makes small gradients' rounding larger, and experts are chosen by it."""


def compiled(one: Styled, folder: Path) -> tuple[BoundPlan, Graph]:
    (folder / "model").mkdir()
    config = tiny_config(one.model_type, one.architecture)
    (folder / "model" / "config.json").write_text(json.dumps(dict(config)))
    checked = check_source(SourceFile("styled.plan", one.text), base=folder)
    assert checked.bound is not None
    assert checked.graph is not None, checked.diagnostics
    return checked.bound, checked.graph


def check_parity(one: Styled, folder: Path) -> None:
    bound, graph = compiled(one, folder)
    report = verify(bound, graph, base=folder)
    found = {verdict.item: verdict for verdict in report.verdicts}
    assert [found[item] for item in EQUAL if not found[item].ok] == []


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("one", QUICK, ids=lambda one: f"{one.model_type} {one.name}")
def test_a_model_under_its_styles_trains_as_one_process(one: Styled, tmp_path: Path) -> None:
    check_parity(one, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("one", SLOW, ids=lambda one: f"{one.model_type} {one.name}")
def test_every_model_under_its_styles_trains_as_one_process(one: Styled, tmp_path: Path) -> None:
    check_parity(one, tmp_path)


def test_a_module_sums_its_gradient_unless_the_nearest_container_does(tmp_path: Path) -> None:
    """What an outer container prepares does not count where another one lies between."""
    _, graph = compiled(NESTED, tmp_path)
    ops = [op for op in graph.setup if isinstance(op, ShardTensorParallel)]
    assert {"model.layers.0", "model.layers.0.mlp"} <= {fqn for op in ops for fqn in op.modules}
    shared = {fqn: op.edges for op in ops for fqn in op.modules if fqn.endswith(".mlp.shared_mlp")}
    assert len(shared) == 2
    for found in shared.values():
        assert [edge.leaving for edge in found] == [READ_BY_PARTS]
        assert [edge.backward for edge in found] == [Transfer.ALL_REDUCE]


@pytest.mark.slow
@pytest.mark.parametrize("one", QUICK, ids=lambda one: f"{one.model_type} {one.name}")
def test_a_model_under_its_styles_sends_what_is_estimated(one: Styled, tmp_path: Path) -> None:
    bound, graph = compiled(one, tmp_path)
    rehearsal = rehearse(graph, base=tmp_path)
    assert rehearsal.failures == ()
    assert rehearsal.measured is not None
    predicted = predicted_collectives(estimate(graph, bound.inventory))
    assert counted_collectives(rehearsal.measured) == predicted


def experts_on(shape: str, mesh: Mapping[str, int], *settings: str) -> Case:
    return Case(shape, "experts", mesh, model="qwen3-moe", tensor_parallel="auto", settings=settings)


@pytest.mark.slow
def test_divided_experts_resume_whole_and_whole_ones_divided(workspace: Path) -> None:
    """What is stored is in the model's own order, in which a rank's part of packed experts is two blocks."""
    divided, whole = experts_on("TP2", {"tp": 2}), experts_on("DP2", {"dp_shard": 2})
    reference = train_reference("qwen3-moe", workspace=workspace)
    rows = [
        *resume_rows(divided, (divided, whole), workspace=workspace, reference=reference),
        *resume_rows(whole, (divided,), workspace=workspace, reference=reference),
    ]
    assert [row.problems for row in rows] == [(), (), ()]
    assert rows[0].same_bits


@pytest.mark.slow
def test_divided_experts_are_exported_whole(workspace: Path, tmp_path: Path) -> None:
    case = experts_on("TP2", {"tp": 2}, "checkpoint.export.hf.when=end", "checkpoint.save_last=false")
    task = Task(compile_case(case, workspace=workspace), workspace, tmp_path)
    record = run_ranks(train_rank, case.world_size, task, init=False)[0]
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "export/hf").eval()
    plain = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(workspace / "qwen3-moe"), dtype=torch.float32
    ).eval()
    plain.load_state_dict(record.final)
    ids = torch.arange(64).reshape(2, 32)
    with torch.no_grad():
        assert torch.equal(found(ids).logits, plain(ids).logits)
    packed = record.final["model.layers.1.mlp.experts.gate_up_proj"]
    assert packed.shape == (MODELS["qwen3-moe"]["num_experts"], 2 * 48, 64)
