"""`planc checkpoint export`: what transformers loads of a checkpoint is what the mesh trained."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from planc.cli.main import main
from planc.cli.support.exits import CLEAN, COULD_NOT_RUN
from planc.runtime.checkpoint_format.manifest import MANIFEST_NAME
from planc.runtime.checkpoint_format.records import seal
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.runtime.files.run_files import KEPT_PLANS
from tests.dist.pool import run_ranks
from tests.dist.saving import train_saving
from tests.hub.model_repository import REPOSITORY, REVISION, put_into_cache
from tests.parity.cases import NUM_STEPS, SAVE_STEP, TP2_DP2, Case, compile_case
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import write_weights
from tests.parity.test_adapter_parity import fill_adapters
from tests.patience import WAIT_SECONDS

TIED = Case("TP2·DP2", "tied", TP2_DP2, model="llama-tied")
EXPERTS = Case("TP2·DP2", "experts", TP2_DP2, model="qwen3-moe", tensor_parallel="auto")
UNEVEN = Case("DP4", "257 rows", {"dp_shard": 4}, model="llama-uneven")


@pytest.fixture(scope="module")
def tied_run(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    folder = tmp_path_factory.mktemp("tied")
    return folder, train_saving(TIED, workspace=workspace, run_folder=folder)


def loaded(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
    return model.eval()


def trained(record: Record, *, workspace: Path, model: str) -> PreTrainedModel:
    """A plain model with the weights that were gathered from the ranks."""
    config = AutoConfig.from_pretrained(workspace / model)
    plain: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(record.final, strict=False)
    plain.tie_weights()
    return plain.eval()


def same_logits(one: PreTrainedModel, other: PreTrainedModel) -> bool:
    ids = torch.arange(64).reshape(2, 32)
    with torch.no_grad():
        return torch.equal(one(ids).logits, other(ids).logits)


def export(checkpoint: Path, *, model: Path, output: Path, options: tuple[str, ...] = ()) -> int:
    return main(
        ["checkpoint", "export", str(checkpoint), "--hf", str(output), "--model", str(model), *options]
    )


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", [EXPERTS, UNEVEN], ids=lambda case: case.name)
def test_a_meshs_checkpoint_has_the_logits_of_the_trained_weights(
    case: Case, workspace: Path, tmp_path: Path
) -> None:
    record = train_saving(case, workspace=workspace, run_folder=tmp_path)
    assert export(tmp_path, model=workspace / case.model, output=tmp_path / "hf") == CLEAN
    assert same_logits(loaded(tmp_path / "hf"), trained(record, workspace=workspace, model=case.model))
    with safe_open(tmp_path / "hf/model.safetensors", framework="pt") as file:
        assert any(".experts.3.down_proj." in key for key in file.keys()) == (case is EXPERTS)  # noqa: SIM118


@pytest.mark.slow
def test_tied_weights_stay_tied(tied_run: tuple[Path, Record], workspace: Path, tmp_path: Path) -> None:
    run, record = tied_run
    assert export(run, model=workspace / "llama-tied", output=tmp_path / "hf") == CLEAN
    found = loaded(tmp_path / "hf")
    assert found.get_input_embeddings().weight is found.get_output_embeddings().weight
    assert same_logits(found, trained(record, workspace=workspace, model="llama-tied"))
    origin = json.loads((tmp_path / "hf/planc_export.json").read_text())
    assert origin["step"] == NUM_STEPS


def test_an_earlier_checkpoint_is_exported_by_name(
    tied_run: tuple[Path, Record], workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = tied_run
    for step, said in ((NUM_STEPS, ""), (SAVE_STEP, f", replacing the export of step {NUM_STEPS}")):
        checkpoint = run / "checkpoints" / f"step-{step}"
        assert export(checkpoint, model=workspace / "llama-tied", output=tmp_path / "hf") == CLEAN
        assert json.loads((tmp_path / "hf/planc_export.json").read_text())["step"] == step
        tokenizer = f"; without a tokenizer: none in {workspace / 'llama-tied'}"
        assert capsys.readouterr().err == f"wrote {tmp_path / 'hf'} from {checkpoint}{said}{tokenizer}\n"


def test_a_narrower_dtype_rounds(tied_run: tuple[Path, Record], workspace: Path, tmp_path: Path) -> None:
    run, record = tied_run
    options = ("--dtype", "bfloat16")
    assert export(run, model=workspace / "llama-tied", output=tmp_path / "hf", options=options) == CLEAN
    parameters = dict(loaded(tmp_path / "hf").named_parameters())
    for name, whole in record.final.items():
        assert torch.equal(parameters[name], whole.to(torch.bfloat16))
    assert json.loads((tmp_path / "hf/config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("damage", ["another model", "flipped", "no checkpoint", "someone else's folder"])
def test_what_cannot_be_exported_is_refused(
    damage: str,
    tied_run: tuple[Path, Record],
    workspace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = Path(shutil.copytree(tied_run[0], tmp_path / "run"))
    model = workspace / ("llama" if damage == "another model" else "llama-tied")
    said = {
        "another model": "does not match the model in checkpoint",
        "flipped": "is damaged",
        "no checkpoint": "no checkpoint found in",
        "someone else's folder": "is not an export of a run",
    }[damage]
    if damage == "flipped":
        shard = next((run / "checkpoints" / f"step-{NUM_STEPS}").glob("*.safetensors"))
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    if damage == "no checkpoint":
        shutil.rmtree(run / "checkpoints")
    if damage == "someone else's folder":
        (tmp_path / "hf").mkdir()
    assert export(run, model=model, output=tmp_path / "hf") == COULD_NOT_RUN
    assert said in capsys.readouterr().err
    assert not (tmp_path / "hf/config.json").exists()


def test_a_checkpoint_away_from_its_run_needs_the_models_folder(
    tied_run: tuple[Path, Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # So deep that the plan's relative path leads nowhere.
    copy = tmp_path / "a" / "b" / "c" / f"step-{NUM_STEPS}"
    shutil.copytree(tied_run[0] / "checkpoints" / copy.name, copy)
    assert main(["checkpoint", "export", str(copy), "--hf", str(tmp_path / "hf")]) == COULD_NOT_RUN
    assert "--model DIR" in capsys.readouterr().err


KIND = "  kind = lora(rank = 3, alpha = 5, rslora = true, dora = true)\n"
ADAPTER = f'{KIND}  "model.layers.*.self_attn.*_proj" -> adapted\n'
ADAPTED = Case("TP2·DP2", "adapters", TP2_DP2, weights="pretrained", adapter=ADAPTER)
SCALE = 5 / 3**0.5


@pytest.fixture(scope="module")
def adapted_run(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    folder = tmp_path_factory.mktemp("adapted")
    write_weights(workspace / ADAPTED.model)
    task = Task(compile_case(ADAPTED, workspace=workspace, saves=True), workspace, folder, fill_adapters)
    return folder, run_ranks(train_rank, ADAPTED.world_size, task, init=False)[0]


@pytest.mark.slow
def test_adapters_are_merged(adapted_run: tuple[Path, Record], workspace: Path, tmp_path: Path) -> None:
    run, record = adapted_run
    options = ("--dtype", "bfloat16")
    assert export(run, model=workspace / ADAPTED.model, output=tmp_path / "wide") == CLEAN
    assert export(run, model=workspace / ADAPTED.model, output=tmp_path / "narrow", options=options) == CLEAN
    wide, narrow = loaded(tmp_path / "wide").state_dict(), loaded(tmp_path / "narrow").state_dict()
    num_adapted = 0
    for name, weight in record.final.items():
        if ".lora_" in name:
            continue
        layer = name.removesuffix(".weight")
        if (up := record.final.get(f"{layer}.lora_B.weight")) is not None:
            change = SCALE * (up.double() @ record.final[f"{layer}.lora_A.weight"].double())
            assert change.abs().min() > 0
            changed = weight.double() + change
            lengths = record.final[f"{layer}.lora_magnitude_vector.weight"].double()
            weight = (changed * (lengths / changed.square().sum(1).sqrt())[:, None]).float()
            num_adapted += 1
        torch.testing.assert_close(wide[name], weight, rtol=1e-6, atol=1e-7)
        assert torch.equal(narrow[name], wide[name].to(torch.bfloat16))
    assert num_adapted == 2 * 4


def test_adapters_are_exported_alone(adapted_run: tuple[Path, Record], tmp_path: Path) -> None:
    run, record = adapted_run
    assert main(["checkpoint", "export", str(run), "--adapter", str(tmp_path / "adapter")]) == CLEAN
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    expected = {
        f"base_model.model.{name.replace('vector.weight', 'vector')}": one
        for name, one in record.final.items()
        if ".lora_" in name
    }
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], one) for name, one in expected.items())
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (3, 5)
    assert config["use_rslora"] and config["use_dora"]


def test_adapters_without_their_scale_are_not_exported(
    adapted_run: tuple[Path, Record], workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(adapted_run[0], tmp_path / "run"))
    # As a planc saved it that kept plans in the run's directory alone.
    checkpoint = run / "checkpoints" / f"step-{NUM_STEPS}"
    saved = read_manifest(checkpoint).model_copy(update={"plan": None})
    (checkpoint / MANIFEST_NAME).write_text(seal(saved))
    shutil.rmtree(run / KEPT_PLANS, ignore_errors=True)
    assert export(run, model=workspace / ADAPTED.model, output=tmp_path / "hf") == COULD_NOT_RUN
    assert (
        "self_attn.k_proj has an adapter, and the plan that states its scale is missing"
        in capsys.readouterr().err
    )
    assert main(["checkpoint", "export", str(run), "--adapter", str(tmp_path / "adapter")]) == COULD_NOT_RUN
    assert "the plan that saved it is missing" in capsys.readouterr().err
    assert not (tmp_path / "hf").exists() and not (tmp_path / "adapter").exists()


@pytest.mark.parametrize("trains", ["no adapters", "more"])
def test_adapters_that_are_not_what_was_trained_are_not_exported_alone(
    trains: str,
    tied_run: tuple[Path, Record],
    workspace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, said = tied_run[0], "has no adapters"
    if trains == "more":
        run, said = tmp_path / "run", "no place for model.layers.0.self_attn.k_proj.weight"
        more = f'{ADAPTER}}}\nfreeze {{\n  "model.layers.0.self_attn.k_proj" -> trained\n'
        train_saving(Case("1", adapter=more), workspace=workspace, run_folder=run)
    assert main(["checkpoint", "export", str(run), "--adapter", str(tmp_path / "adapter")]) == COULD_NOT_RUN
    assert said in capsys.readouterr().err
    assert not (tmp_path / "adapter").exists()


@pytest.mark.slow
def test_a_run_from_the_hubs_cache_is_exported_as_its_plan_says(workspace: Path, tmp_path: Path) -> None:
    """Weights from a snapshot, one step, a checkpoint, an export: commands as a user gives them, offline."""
    config = AutoConfig.from_pretrained(workspace / "llama")
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / "saved")
    files = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    put_into_cache(tmp_path / "hub", files)
    shutil.copy(workspace / "corpus.txt", tmp_path)
    (tmp_path / "x.plan").write_text(
        f'model {{\n  hf = hub("{REPOSITORY}", revision = "{REVISION}")\n  weights = pretrained\n}}\n'
        'data {\n  source = text("corpus.txt")\n  sequence_length = 64\n  micro_batch = 2\n}\n'
        "optimizer {\n  kind = adamw(lr = 1e-3)\n}\ncheckpoint {\n  save_last = true\n}\n"
        "train {\n  steps = 1\n}\n"
    )
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "OMP_NUM_THREADS": "1",
        "PLANC_CACHE": str(tmp_path / "planc"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    for command in (["run", "x.plan", "--run-dir", "run"], ["checkpoint", "export", "run", "--hf", "hf"]):
        done = subprocess.run(
            [sys.executable, "-m", "planc", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
        assert done.returncode == 0, done.stderr
    before, after = loaded(tmp_path / "saved"), loaded(tmp_path / "hf")
    assert before.state_dict().keys() == after.state_dict().keys()
    # One step of Adam moves each weight by the learning rate at most, and a little for the decay.
    for name, weight in before.named_parameters():
        assert 0 < (after.get_parameter(name) - weight).abs().max() < 1.2e-3
