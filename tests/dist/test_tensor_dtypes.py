"""Tensors that do not have the model's dtype: how a plan shows them, and what a run does with them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from planc.api import Checked, check_source
from planc.deep_check.check import counted_collectives, predicted_collectives
from planc.estimate.estimate import estimate
from planc.estimate.layout import layouts
from planc.graph.graph import Graph
from planc.graph.ops import BuildModel, FullyShard
from planc.runtime.rehearsal.rehearse import rehearse
from planc.show.layout import other_dtypes_text
from planc.source import SourceFile
from planc.verify.ranks import Record, Task, train_rank
from tests.dist.pool import RankError, run_ranks, start_server
from tests.inventories import save_inventory
from tests.models.architectures import architectures
from tests.models.independent import digests_of, write_weights
from tests.models.tiny import tiny_config

BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
GATE = "model.layers.1.mlp.gate"
FREQUENCIES = ("model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq")
GATE_UNIT = '"model.layers.*.mlp.gate" -> unit'
MODELS = ("deepseek_v3", "ernie4_5_moe")
SLOWLY_PROBED = ("recurrent_gemma", "bailing_hybrid", "afmoe")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    start_server()
    base = tmp_path_factory.mktemp("dtypes")
    write_models(base, MODELS)
    (base / "corpus.txt").write_text("the mesh of ranks holds every weight once " * 40, encoding="utf-8")
    return base


@pytest.fixture(scope="module")
def every_model(base: Path) -> Path:
    """`base`, with the models that take long to probe."""
    write_models(base, SLOWLY_PROBED)
    return base


def write_models(base: Path, models: tuple[str, ...]) -> None:
    for model in models:
        (base / model).mkdir()
        config = tiny_config(model, architectures()[model])
        (base / model / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
        write_weights(base / model)
        save_inventory(base / model)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that keeps its last step."""

    model: str = "deepseek_v3"
    dtype: str = "bfloat16"
    weights: str = "pretrained"
    fsdp: str = ""
    more: str = ""

    @property
    def text(self) -> str:
        mesh = "dp_shard = 2" if self.fsdp else "tp = 1"
        fsdp = f'fsdp on dp_shard {{\n  "model.layers.*" -> unit\n  {self.fsdp}\n}}\n' if self.fsdp else ""
        return (
            f'model {{\n  hf = "{self.model}"\n  dtype = {self.dtype}\n  weights = {self.weights}\n}}\n'
            f"mesh {{ {mesh} }}\n{fsdp}"
            'data {\n  source = text("corpus.txt")\n  sequence_length = 32\n  micro_batch = 2\n}\n'
            "optimizer {\n  kind = adamw(lr = 1e-2, eps = 1e-3)\n}\ntrain {\n  steps = 4\n}\n"
            f"checkpoint {{\n  save_every = 2 steps\n  keep_last = 9\n{self.more}}}\n"
        )


def checked(plan: Plan, base: Path) -> Checked:
    return check_source(SourceFile("x.plan", plan.text), base=base)


def graph_of(plan: Plan, base: Path) -> Graph:
    found = checked(plan, base)
    assert found.graph is not None, found.diagnostics
    return found.graph


def build_of(plan: Plan, base: Path) -> BuildModel:
    return next(op for op in graph_of(plan, base).setup if isinstance(op, BuildModel))


def codes(plan: Plan, base: Path) -> set[str]:
    return {one.code.code for one in checked(plan, base).diagnostics}


def others_of(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, str]:
    """Floating-point tensors of another dtype than the model's."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        name: str(tensor.dtype).removeprefix("torch.")
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and tensor.dtype != dtype
    }


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["random", "pretrained"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("model", (*MODELS, *SLOWLY_PROBED))
def test_a_graph_names_what_transformers_has_in_another_dtype(
    model: str, dtype: str, weights: str, every_model: Path
) -> None:
    build = build_of(Plan(model, dtype, weights), every_model)
    own = getattr(torch, dtype)
    found = AutoModelForCausalLM.from_pretrained(every_model / model, dtype=own)
    assert {name: str(one) for name, one in build.other_dtypes.items()} == others_of(found, own)


@pytest.mark.slow
def test_layout_shows_what_is_built_and_what_is_loaded_in_another_dtype(base: Path) -> None:
    assert other_dtypes_text(build_of(Plan(), base)) == (
        f"built in float32, not bfloat16: {', '.join(FREQUENCIES)}\nkept in float32, not bfloat16: {BIAS}\n"
    )
    assert other_dtypes_text(build_of(Plan(dtype="float32"), base)) == ""


@pytest.mark.slow
def test_memory_counts_every_parameter_in_its_own_dtype(base: Path) -> None:
    plan = Plan("ernie4_5_moe")
    found = checked(plan, base)
    assert found.graph is not None and found.inventory is not None
    model = AutoModelForCausalLM.from_pretrained(base / plan.model, dtype=torch.bfloat16)
    sizes = {name: one.numel() * one.element_size() for name, one in model.named_parameters()}
    expected = sum(sizes.values())
    amounts = {one.name: one.num_bytes for one in estimate(found.graph, found.inventory).memory.parts}
    assert amounts["parameters"] == expected
    # One only corrects a choice, which has no gradient.
    (bias,) = (size for name, size in sizes.items() if name.endswith("correction_bias"))
    assert amounts["gradients"] == expected - bias
    assert sum(one.total_bytes for one in layouts(found.graph, found.inventory)) == expected


@pytest.mark.slow
def test_a_unit_of_float32_in_a_bfloat16_model_sends_what_is_estimated(base: Path) -> None:
    plan = Plan("ernie4_5_moe", fsdp=GATE_UNIT)
    found = checked(plan, base)
    assert found.graph is not None and found.inventory is not None
    rehearsal = rehearse(found.graph, base=base)
    assert rehearsal.failures == ()
    assert rehearsal.measured is not None
    # One parameter of the unit only corrects a choice: it has no gradient, and is not reduced.
    predicted = predicted_collectives(estimate(found.graph, found.inventory))
    assert predicted == counted_collectives(rehearsal.measured)


def trained(plan: Plan, base: Path, folder: Path, *, stop_after: int | None = None) -> list[Record]:
    graph = graph_of(plan, base)
    return run_ranks(
        train_rank, graph.world_size, Task(graph, base, folder, stop_after=stop_after), init=False
    )


def test_a_graph_that_another_release_of_transformers_was_asked_for_is_refused(
    base: Path, tmp_path: Path
) -> None:
    graph = graph_of(Plan(), base)
    build = build_of(Plan(), base)
    for wrong, message in (
        (replace(build, own_dtypes=()), "inv_freq is float32, but the plan was compiled for bfloat16"),
        (replace(build, kept_in_float32=()), f"transformers keeps {BIAS} in float32"),
        (replace(build, kept_in_float32=(BIAS, "lm_head.weight")), "transformers keeps lm_head.weight in bf"),
    ):
        setup = tuple(wrong if op is next(iter(_builds(graph))) else op for op in graph.setup)
        task = Task(replace(graph, setup=setup), base, tmp_path)
        with pytest.raises(RankError, match=message):
            run_ranks(train_rank, 1, task, init=False)


def _builds(graph: Graph) -> list[BuildModel]:
    return [op for op in graph.setup if isinstance(op, BuildModel)]


def test_a_resumed_run_has_every_tensor_in_the_dtype_it_had(base: Path, tmp_path: Path) -> None:
    plan = Plan("ernie4_5_moe", fsdp=GATE_UNIT, more="  resume = latest\n")
    whole = trained(plan, base, tmp_path / "whole")
    trained(plan, base, tmp_path / "halves", stop_after=2)
    resumed = trained(plan, base, tmp_path / "halves")
    assert resumed[0].first_step == 3
    assert resumed[0].states[2] == whole[0].states[2]
    for name, tensor in whole[0].final.items():
        assert resumed[0].final[name].dtype == tensor.dtype
        assert torch.equal(resumed[0].final[name], tensor)
    assert whole[0].final[f"{GATE}.weight"].dtype == torch.float32


def stored_dtypes(folder: Path) -> dict[str, str]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:  # type: ignore[no-untyped-call]
            found |= {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize(
    ("plan", "wide"),
    [
        pytest.param(Plan(more="  export hf { when = end }\n"), {BIAS}, id="as it is"),
        pytest.param(
            Plan("ernie4_5_moe", "float32", more="  export hf { when = end, dtype = bfloat16 }\n"),
            {f"{GATE}.weight", f"{GATE}.moe_statics.e_score_correction_bias"},
            id="narrowed",
        ),
    ],
)
def test_an_export_keeps_in_float32_what_loading_it_keeps(
    plan: Plan, wide: set[str], base: Path, tmp_path: Path
) -> None:
    text = plan.text.replace("export hf", 'export "hf"')
    graph = check_source(SourceFile("x.plan", text), base=base).graph
    assert graph is not None
    (record,) = run_ranks(train_rank, 1, Task(graph, base, tmp_path), init=False)
    folder = tmp_path / "export" / "hf"
    names = {name.rpartition(".")[2] for name in wide}
    found = stored_dtypes(folder)
    assert {name.rpartition(".")[2] for name, dtype in found.items() if dtype == "F32"} >= names - {"weight"}
    assert set(found.values()) == {"F32", "BF16"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    digests = digests_of(model)
    for name, tensor in record.final.items():
        assert torch.equal(
            dict(model.named_parameters())[name].float(), tensor.to(torch.bfloat16).float()
        ) or (name in wide and torch.equal(dict(model.named_parameters())[name], tensor))
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert set(digests) == {name for name, _ in (*model.named_parameters(), *model.named_buffers())}


def test_a_unit_of_two_dtypes_is_refused_and_the_help_mends_it(base: Path) -> None:
    mixed = Plan("ernie4_5_moe", fsdp="cpu_offload = false")
    (found,) = (one for one in checked(mixed, base).diagnostics if one.code.code == "P736")
    assert "`model.layers.*.mlp.gate.weight`" in found.primary.text
    assert GATE_UNIT.removesuffix('" -> unit') in (found.help or "")
    assert "P736" not in codes(replace(mixed, fsdp=GATE_UNIT), base)
    # Buffers are not part of a unit.
    assert "P736" not in codes(Plan(fsdp="cpu_offload = false"), base)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["random", "pretrained"])
def test_a_unit_is_of_the_same_dtypes_with_random_and_with_pretrained_weights(
    weights: str, every_model: Path
) -> None:
    plan = Plan("bailing_hybrid", weights=weights, fsdp="cpu_offload = false")
    assert "P736" in codes(plan, every_model)


@pytest.mark.parametrize(
    ("unit", "expected"), [(GATE_UNIT, {"bfloat16", "None"}), ("", {"bfloat16"})], ids=["apart", "together"]
)
def test_a_unit_of_what_transformers_keeps_in_float32_is_not_cast(
    unit: str, expected: set[str], base: Path
) -> None:
    plan = Plan("ernie4_5_moe", "float32", fsdp=f"param_dtype = bfloat16\n  {unit}")
    ops = [op for op in graph_of(plan, base).setup if isinstance(op, FullyShard)]
    assert {str(op.param_dtype) for op in ops} == expected
    assert ("P737" in codes(plan, base)) is (not unit)


def test_inputs_are_not_narrowed_where_parameters_are_of_the_dtype_already(base: Path) -> None:
    """FSDP would cast a residual stream that the model keeps in float32."""
    plan = Plan(fsdp="param_dtype = bfloat16")
    ops = [op for op in graph_of(plan, base).setup if isinstance(op, FullyShard)]
    assert {op.param_dtype for op in ops} == {None}
