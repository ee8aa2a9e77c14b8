"""Adapters that begin with those of a directory in peft's format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from planc.verify.compare import disagreements, worst_gradient, worst_relative
from planc.verify.pool import RankError
from tests.dist.pool import run_ranks
from tests.parity.cases import ALL_8, PP2_DP2, TP2_DP2, Case, compile_case, make_workspace
from tests.parity.compare import TOLERANCE
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import train_reference, write_weights
from tests.parity.test_adapter_parity import WithLora, values

RULE = '  "model.layers.*.self_attn.{q,v}_proj" -> adapted\n'
KIND = "  kind = lora(rank = 4, alpha = 8)\n"
STARTED = f'{KIND}  start = "peft"\n{RULE}'
DORA = STARTED.replace("alpha = 8", "alpha = 8, dora = true")
TP = Case("TP2·DP2", mesh=TP2_DP2, weights="pretrained", adapter=STARTED)
TP_DORA = replace(TP, variant="DoRA", adapter=DORA)
DEEP = replace(TP, model="llama-deep", shape="PP2·DP2", mesh=PP2_DP2, micro_batch=1)
WHOLE = replace(TP, shape="DP2·CP2·TP2", mesh=ALL_8)
PREFIX = "base_model.model."
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj"],
    "lora_dropout": 0.1,
    "bias": "none",
    "use_rslora": False,
    "rank_pattern": {},
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("start") / "workspace")
    for model in ("llama", "llama-deep"):
        write_weights(folder / model)
    return folder


def tensors_of(case: Case, *, workspace: Path) -> dict[str, Tensor]:
    """The adapters' tensors by peft's names, none of them zero."""
    graph = compile_case(replace(case, mesh={}, adapter=f"{KIND}{RULE}"), workspace=workspace)
    base = load_file(workspace / case.model / "model.safetensors")
    assert graph.adapters is not None
    tensors = {}
    for layer in graph.adapters.modules:
        outputs, inputs = base[f"{layer}.weight"].shape
        shapes = {"lora_A": (4, inputs), "lora_B": (outputs, 4)}
        if "dora" in case.adapter:
            shapes["lora_magnitude_vector"] = (outputs,)
        for part, shape in shapes.items():
            name = f"{layer}.{part}.weight"
            # peft keeps the name of a vector without its end.
            tensors[f"{PREFIX}{name}".replace("vector.weight", "vector")] = values(name, shape)
    return tensors


def write_peft(folder: Path, tensors: dict[str, Tensor], **config: Any) -> None:
    """A directory as peft writes it."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def train(case: Case, *, workspace: Path, folder: Path) -> list[Record]:
    task = Task(compile_case(case, workspace=workspace), workspace, folder)
    records: list[Record] = run_ranks(train_rank, case.world_size, task, init=False)
    return records


@pytest.mark.parametrize(
    "case",
    [
        TP_DORA,
        pytest.param(TP, marks=pytest.mark.slow),
        pytest.param(DEEP, marks=pytest.mark.slow),
        pytest.param(WHOLE, marks=pytest.mark.slow),
    ],
    ids=lambda case: case.name,
)
def test_a_mesh_trains_a_directorys_adapters_as_one_process(
    case: Case, workspace: Path, tmp_path: Path
) -> None:
    write_peft(workspace / "peft", tensors_of(case, workspace=workspace), use_dora="dora" in case.adapter)
    graph = compile_case(case, workspace=workspace)
    assert graph.adapters is not None
    lora = WithLora(graph.adapters.modules, rank=4, scale=2.0, dora=graph.adapters.dora)
    reference = train_reference(case.model, workspace=workspace, prepare=lora)
    records = train(case, workspace=workspace, folder=tmp_path)
    assert disagreements(records) == ()
    assert worst_relative([one.loss for one in records[0].metrics], reference.losses) < TOLERANCE
    worst, error = worst_gradient(records[0].gradients, reference.gradients)
    assert error < TOLERANCE, f"gradient of {worst}"


def other_shape(tensors: dict[str, Tensor]) -> None:
    name = f"{PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight"
    tensors[name] = tensors[name][:, :-1].contiguous()


def without(part: str) -> Callable[[dict[str, Tensor]], None]:
    def drop(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return drop


def with_tensor(name: str) -> Callable[[dict[str, Tensor]], None]:
    def add(tensors: dict[str, Tensor]) -> None:
        tensors[f"{PREFIX}model.layers.0.{name}"] = torch.zeros(4, 4)

    return add


def with_lengths(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.endswith("lora_B.weight")]:
        tensors[name.replace("lora_B.weight", "lora_magnitude_vector")] = torch.ones(len(tensors[name]))


def as_it_is(tensors: dict[str, Tensor]) -> None:
    """Change nothing."""


WRONG: dict[str, tuple[Callable[[dict[str, Tensor]], None], dict[str, Any], str]] = {
    "rank": (as_it_is, {"r": 8}, "rank is 8 in the directory, and 4 here"),
    "alpha": (as_it_is, {"lora_alpha": 16}, "alpha is 16 in the directory, and 8 here"),
    "rslora": (as_it_is, {"use_rslora": True}, "rslora is true in the directory, and false here"),
    "dora": (as_it_is, {"use_dora": True}, "has no lora_magnitude_vector of model.layers.0"),
    "lengths of rows": (with_lengths, {"use_dora": True}, "dora is true in the directory, and false here"),
    "ranks by pattern": (as_it_is, {"rank_pattern": {"q_proj": 4}}, "has rank_pattern = "),
    "a module saved whole": (
        with_tensor("mlp.gate_proj.weight"),
        {"modules_to_save": ["gate_proj"]},
        "model.layers.0.mlp.gate_proj.weight, which the plan does not train next to its adapters",
    ),
    "a key of another release": (as_it_is, {"use_new_math": 1}, "has use_new_math = 1"),
    "trained biases": (as_it_is, {"bias": "all"}, 'has bias = "all"'),
    "a changed base": (as_it_is, {"init_lora_weights": "pissa_niter_4"}, "changes the weights of the base"),
    "not LoRA": (as_it_is, {"peft_type": "IA3"}, "is not of LoRA"),
    "a layer less": (
        without("layers.1.self_attn.v_proj"),
        {},
        "no adapter of model.layers.1.self_attn.v_proj",
    ),
    "half a layer": (without("layers.1.self_attn.v_proj.lora_A"), {}, "has no lora_A of model.layers.1"),
    "a layer more": (
        lambda tensors: [with_tensor(f"mlp.up_proj.lora_{part}.weight")(tensors) for part in "AB"][-1],
        {},
        "an adapter of model.layers.0.mlp.up_proj, and the plan has none",
    ),
    "another shape": (other_shape, {}, "self_attn.q_proj in the directory has shapes"),
    "a magnitude": (
        with_tensor("self_attn.q_proj.lora_magnitude_vector"),
        {},
        "has lora_magnitude_vector of model.layers.0.self_attn.q_proj, and adapter_config.json has no",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_adapters_than_the_plans_are_refused_by_the_check(name: str, workspace: Path) -> None:
    change, config, said = WRONG[name]
    tensors = tensors_of(TP, workspace=workspace)
    change(tensors)
    write_peft(workspace / "peft", tensors, **config)
    with pytest.raises(ValueError, match="P773") as raised:
        compile_case(TP, workspace=workspace)
    assert said in str(raised.value)


def test_a_run_refuses_a_directory_that_changed_after_the_check(workspace: Path, tmp_path: Path) -> None:
    write_peft(workspace / "peft", tensors_of(TP, workspace=workspace))
    task = Task(compile_case(TP, workspace=workspace), workspace, tmp_path)
    write_peft(workspace / "peft", tensors_of(TP, workspace=workspace), lora_alpha=16)
    with pytest.raises(RankError, match="not those of the plan: alpha is 16 in the directory, and 8 here"):
        run_ranks(train_rank, TP.world_size, task, init=False)


def test_a_directory_that_is_not_here_is_left_to_the_run(workspace: Path, tmp_path: Path) -> None:
    shutil.rmtree(workspace / "peft", ignore_errors=True)
    task = Task(compile_case(replace(TP, mesh={}), workspace=workspace), workspace, tmp_path)
    with pytest.raises(RankError, match=r"adapter_config\.json cannot be read"):
        run_ranks(train_rank, 1, task, init=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", [TP, TP_DORA], ids=lambda case: case.name)
def test_what_peft_saved_trains_as_in_peft(case: Case, workspace: Path, tmp_path: Path) -> None:
    """The directory is written by peft, whose own layers train in one process."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
        use_dora=case is TP_DORA,
    )

    def prepare(model: nn.Module) -> None:
        wrapped = peft.get_peft_model(model, config)
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if ".lora_" in name:
                    parameter.copy_(values(name, tuple(parameter.shape)))
        wrapped.save_pretrained(workspace / "peft")

    reference = train_reference("llama", workspace=workspace, prepare=prepare)
    records = train(case, workspace=workspace, folder=tmp_path)
    assert worst_relative([one.loss for one in records[0].metrics], reference.losses) < TOLERANCE
    assert worst_relative([one.grad_norm for one in records[0].metrics], reference.grad_norms) < TOLERANCE
