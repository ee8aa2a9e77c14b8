"""Checkpoints without the frozen base: they name the files that have it, and refuse others."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from planc.cli.main import main
from planc.cli.support.exits import CLEAN, FINDINGS
from planc.estimate.states import checkpoint_bytes
from planc.inventory.adapters import with_adapters
from planc.inventory.load import load_inventory
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.verify import read_manifest
from planc.verify.pool import RankError
from tests.dist.pool import run_ranks
from tests.parity.cases import NUM_STEPS, PP2_DP2, SAVE_STEP, TP2_DP2, Case, compile_case, make_workspace
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import write_weights
from tests.parity.test_adapter_parity import fill_adapters

QV = '  kind = lora(rank = 4, alpha = 8)\n  "model.layers.*.self_attn.{q,v}_proj" -> adapted\n'
NORMS = f'{QV}}}\nfreeze {{\n  "**.*norm*" -> trained\n'
MODEL = "llama-deep"
ONE = Case("1", model=MODEL, weights="pretrained", adapter=NORMS)
TP = replace(ONE, shape="TP2·DP2", mesh=TP2_DP2)
PP = replace(ONE, shape="PP2·DP2", mesh=PP2_DP2, micro_batch=1)
STORED = replace(ONE, settings=("checkpoint.base=stored",))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("base") / "workspace")
    write_weights(folder / MODEL)
    return folder


def train(case: Case, *, workspace: Path, folder: Path) -> Record:
    """Rank 0's record of a run with checkpoints; adapters begin with values that are not zero."""
    task = Task(compile_case(case, workspace=workspace, saves=True), workspace, folder, fill_adapters)
    records: list[Record] = run_ranks(train_rank, case.world_size, task, init=False)
    return records[0]


def copied(source: Path, folder: Path, *, step: int = SAVE_STEP) -> Path:
    """A run directory with one checkpoint of another's."""
    checkpoint = step_directory(Path("checkpoints"), step=step)
    shutil.copytree(source / checkpoint, folder / checkpoint)
    return folder


@pytest.fixture(scope="module")
def run(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    folder = tmp_path_factory.mktemp("run")
    return folder, train(TP, workspace=workspace, folder=folder)


def test_a_checkpoint_has_what_is_trained_and_names_the_rest(
    run: tuple[Path, Record], workspace: Path
) -> None:
    manifest = read_manifest(step_directory(run[0] / "checkpoints", step=SAVE_STEP))
    model = {name.removeprefix("model.") for name in manifest.tensors if name.startswith("model.")}
    assert manifest.base is not None
    trained = {name for name in run[1].final if "lora" in name or "norm" in name}
    assert model == trained
    assert {name.removeprefix("model.") for name in manifest.base.tensors} == run[1].final.keys() - trained
    content = (workspace / MODEL / "model.safetensors").read_bytes()
    assert manifest.base.path == MODEL
    assert {name: one.sha256 for name, one in manifest.base.files.items()} == {
        "model.safetensors": hashlib.sha256(content).hexdigest()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [TP, pytest.param(PP, marks=pytest.mark.slow), pytest.param(ONE, marks=pytest.mark.slow)]
)
def test_it_is_resumed_on_any_mesh_as_a_whole_one_is(
    case: Case, run: tuple[Path, Record], workspace: Path, tmp_path: Path
) -> None:
    """The resumed state has every parameter and moment of the one that was saved, bit for bit."""
    source, before = run
    after = train(case, workspace=workspace, folder=copied(source, tmp_path))
    assert after.first_step == SAVE_STEP + 1
    assert after.states[SAVE_STEP] == before.states[SAVE_STEP]
    if case is TP:
        assert [one.loss for one in after.metrics] == [one.loss for one in before.metrics[SAVE_STEP:]]
        assert all(torch.equal(after.final[name], tensor) for name, tensor in before.final.items())
    saved = read_manifest(step_directory(tmp_path / "checkpoints", step=NUM_STEPS))
    first = read_manifest(step_directory(source / "checkpoints", step=SAVE_STEP))
    assert saved.base == first.base


@pytest.mark.slow
def test_a_pipelines_checkpoint_names_the_parameters_of_all_stages(workspace: Path, tmp_path: Path) -> None:
    train(PP, workspace=workspace, folder=tmp_path / "pp")
    manifest = read_manifest(step_directory(tmp_path / "pp" / "checkpoints", step=SAVE_STEP))
    assert manifest.base is not None
    frozen = {
        f"model.{name}" for name in load_file(workspace / MODEL / "model.safetensors") if "norm" not in name
    }
    assert manifest.base.tensors.keys() == frozen


def test_a_base_that_has_changed_is_refused_by_name(
    run: tuple[Path, Record], workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(workspace, tmp_path / "other"))
    weights = load_file(other / MODEL / "model.safetensors")
    weights["lm_head.weight"][0, 0] += 1
    save_file(weights, other / MODEL / "model.safetensors")
    with pytest.raises(RankError, match=r"the base has changed: (.*\n)+.*model.safetensors: has SHA-256"):
        train(ONE, workspace=other, folder=copied(run[0], tmp_path / "resumed"))
    checkpoint = str(step_directory(run[0] / "checkpoints", step=SAVE_STEP))
    assert main(["checkpoint", "verify", checkpoint, "--model", str(workspace / MODEL)]) == CLEAN
    assert main(["checkpoint", "verify", checkpoint, "--model", str(other / MODEL)]) == FINDINGS
    assert f"{other / MODEL / 'model.safetensors'}: has SHA-256" in capsys.readouterr().out


def test_random_weights_are_no_base(run: tuple[Path, Record], workspace: Path, tmp_path: Path) -> None:
    random = replace(ONE, weights="random")
    with pytest.raises(RankError, match="lacks its frozen parameters: they are in llama-deep"):
        train(random, workspace=workspace, folder=copied(run[0], tmp_path / "resumed"))


@pytest.mark.slow
def test_a_run_that_resumes_a_whole_checkpoint_saves_whole_ones(workspace: Path, tmp_path: Path) -> None:
    """What it stores may differ from the files: here the base does, as if a stage before had trained it."""
    train(STORED, workspace=workspace, folder=tmp_path / "stored")
    first = step_directory(tmp_path / "stored" / "checkpoints", step=SAVE_STEP)
    assert read_manifest(first).base is None
    record = train(ONE, workspace=workspace, folder=copied(tmp_path / "stored", tmp_path / "resumed"))
    last = read_manifest(step_directory(tmp_path / "resumed" / "checkpoints", step=NUM_STEPS))
    assert last.base is None
    assert {f"model.{name}" for name in record.final} <= last.tensors.keys()


def test_a_run_that_stores_its_base_resumes_one_that_names_it(
    run: tuple[Path, Record], workspace: Path, tmp_path: Path
) -> None:
    record = train(STORED, workspace=workspace, folder=copied(run[0], tmp_path))
    assert record.states[SAVE_STEP] == run[1].states[SAVE_STEP]
    assert read_manifest(step_directory(tmp_path / "checkpoints", step=NUM_STEPS)).base is None


def test_its_size_is_as_estimated(run: tuple[Path, Record], workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(TP, workspace=workspace, saves=True)
    assert graph.adapters is not None
    loaded = load_inventory(workspace / MODEL, cache_dir=tmp_path)
    adapted = frozenset(graph.adapters.modules)
    inventory = with_adapters(loaded.inventory, adapted, graph.adapters)
    tensors = read_manifest(step_directory(run[0] / "checkpoints", step=NUM_STEPS)).tensors.values()
    assert {one.dtype for one in tensors} == {"float32"}
    assert 4 * sum(torch.Size(one.shape).numel() for one in tensors) == checkpoint_bytes(graph, inventory)


def test_an_export_has_the_base_and_what_was_trained(
    run: tuple[Path, Record], workspace: Path, tmp_path: Path
) -> None:
    folder, record = run
    model = ["--model", str(workspace / MODEL)]
    assert main(["checkpoint", "export", str(folder), "--hf", str(tmp_path / "hf"), *model]) == CLEAN
    exported = load_file(tmp_path / "hf" / "model.safetensors")
    for name, weight in record.final.items():
        if ".lora_" in name:
            continue
        layer = name.removesuffix(".weight")
        if (up := record.final.get(f"{layer}.lora_B.weight")) is not None:
            weight = (
                weight.double() + 2 * up.double() @ record.final[f"{layer}.lora_A.weight"].double()
            ).float()
        torch.testing.assert_close(exported[name], weight, rtol=1e-6, atol=1e-7)
    assert exported.keys() == {name for name in record.final if ".lora_" not in name}


def test_it_is_converted_to_dcp_and_back(
    run: tuple[Path, Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, back = str(tmp_path / "dcp"), str(tmp_path / "back")
    assert main(["checkpoint", "convert", str(run[0]), "--dcp", plain]) == CLEAN
    assert "frozen parameters are not in it: they are in llama-deep" in capsys.readouterr().err
    assert main(["checkpoint", "convert", plain, "--planc", back, "--unpickle"]) == CLEAN
    source = read_manifest(step_directory(run[0] / "checkpoints", step=NUM_STEPS))
    copy = read_manifest(step_directory(Path(back), step=NUM_STEPS))
    assert copy.base == source.base
    assert copy.tensors.keys() == source.tensors.keys()


def test_ls_and_diff_tell_the_base(run: tuple[Path, Record], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "ls", str(run[0]), "--output-format", "json"]) == CLEAN
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"committed, base llama-deep"}
