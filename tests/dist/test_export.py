"""The export of Hugging Face weights: what transformers loads is what the mesh trained."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from planc.graph.op import Op
from planc.graph.ops import ExportHf
from planc.runtime.checkpoint_format.shards import Entry
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer
from planc.runtime.run_directory import export_folder
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.weights import export_format
from tests.dist.pool import run_ranks
from tests.parity.cases import NUM_STEPS, TP2_DP2, Case, compile_case, make_workspace
from tests.parity.ranks import Record, Task, open_run, train_rank

EXPORTS = ("checkpoint.export.hf.when=end",)
ONLY_EXPORTS = (*EXPORTS, "checkpoint.save_last=false")
TIED = Case("TP2·DP2", "tied", TP2_DP2, model="llama-tied", settings=EXPORTS)
ALONE = Case("1", settings=ONLY_EXPORTS)
SMALL_SHARD_BYTES = 60_000


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("export") / "workspace")
    (folder / "llama-tied" / "generation_config.json").write_text('{"temperature": 0.5, "do_sample": true}')
    (folder / "llama-tied" / "tokenizer.json").write_text("{}")
    return folder


def task_of(case: Case, *, workspace: Path, run_folder: Path) -> Task:
    return Task(compile_case(case, workspace=workspace), workspace, run_folder)


def train(case: Case, *, workspace: Path, run_folder: Path) -> Record:
    """Rank 0's record of a run to the end."""
    task = task_of(case, workspace=workspace, run_folder=run_folder)
    return run_ranks(train_rank, case.world_size, task, init=False)[0]


def loaded(run_folder: Path) -> PreTrainedModel:
    """The export, as anyone would load it."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(run_folder / "export/hf")
    return model


def trained_model(record: Record, *, workspace: Path, model: str) -> PreTrainedModel:
    """A plain model with the weights that were gathered from the ranks."""
    config = AutoConfig.from_pretrained(workspace / model)
    plain: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(record.final, strict=False)
    plain.tie_weights()
    return plain.eval()


def origin(run_folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run_folder / "export/hf/planc_export.json").read_text())
    return found


@pytest.mark.slow
def test_a_tied_model_loads_with_the_logits_of_the_trained_weights(workspace: Path, tmp_path: Path) -> None:
    record = train(TIED, workspace=workspace, run_folder=tmp_path)
    expected, found = trained_model(record, workspace=workspace, model="llama-tied"), loaded(tmp_path)
    parameters = dict(found.named_parameters())
    # In float32 nothing rounds: bit for bit.
    assert [name for name, whole in record.final.items() if not torch.equal(parameters[name], whole)] == []
    ids = torch.arange(64).reshape(2, 32)
    with torch.no_grad():
        assert torch.equal(found.eval()(ids).logits, expected(ids).logits)
    assert found.get_input_embeddings().weight is found.get_output_embeddings().weight
    with safe_open(tmp_path / "export/hf/model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(record.final)
        assert "lm_head.weight" not in set(file.keys())
    assert found.generation_config.temperature == 0.5
    assert (tmp_path / "export/hf/tokenizer.json").read_text() == "{}"
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == ["hf"]


@pytest.mark.slow
def test_a_bfloat16_export_is_the_trained_weights_rounded(workspace: Path, tmp_path: Path) -> None:
    case = Case("TP2·DP2", "", TP2_DP2, settings=("checkpoint.export.hf.dtype=bfloat16",))
    record = train(case, workspace=workspace, run_folder=tmp_path)
    parameters = dict(loaded(tmp_path).named_parameters())
    assert parameters.keys() == record.final.keys()
    for name, whole in record.final.items():
        assert whole.dtype is torch.float32
        assert torch.equal(parameters[name], whole.to(torch.bfloat16))
    config = json.loads((tmp_path / "export/hf/config.json").read_text())
    assert (config["dtype"], config["torch_dtype"]) == ("bfloat16", "bfloat16")
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "use_cache" not in config


@pytest.mark.slow
def test_shards_of_unequal_length_are_put_together(workspace: Path, tmp_path: Path) -> None:
    mesh = {"dp_replicate": 2, "dp_shard": 2}
    case = Case("DP4", "HSDP 2x2", mesh, model="llama-uneven", settings=ONLY_EXPORTS)
    record = train(case, workspace=workspace, run_folder=tmp_path)
    parameters = dict(loaded(tmp_path).named_parameters())
    assert all(torch.equal(parameters[name], whole) for name, whole in record.final.items())


class Grown(TorchBackend):
    """Gives one weight of the last rank's a value beyond float16 before the export."""

    def execute(self, op: Op, position: Position) -> None:
        if isinstance(op, ExportHf) and dist.get_rank() == dist.get_world_size() - 1:
            with torch.no_grad():
                local_of(self.state[nn.Module].get_parameter("model.layers.1.mlp.up_proj.weight"))[0, 0] = 1e6
        super().execute(op, position)


def overflow_rank(rank: int, world_size: int, task: Task) -> tuple[ExitCode, str]:
    try:
        run(task.graph, Grown(open_run(task, Observer())), stop_after=1)
    except RunError as error:
        return error.code, error.message
    raise AssertionError("the run did not fail")


def test_a_weight_beyond_the_range_of_the_dtype_is_an_error_on_every_rank(
    workspace: Path, tmp_path: Path
) -> None:
    settings = ("checkpoint.export.hf.dtype=float16", "checkpoint.save_last=false")
    task = task_of(
        Case("DP2", "", {"dp_shard": 2}, settings=settings), workspace=workspace, run_folder=tmp_path
    )
    for code, message in run_ranks(overflow_rank, 2, task, init=False):
        assert code is ExitCode.NUMERICS
        assert "model.layers.1.mlp.up_proj.weight exceeds the range of float16" in message
    assert not (tmp_path / "export/hf").exists()


def train_rank_in_small_shards(rank: int, world_size: int, task: Task) -> Record:
    export_format.MAX_SHARD_BYTES = SMALL_SHARD_BYTES
    return train_rank(rank, world_size, task)


def test_a_large_model_is_written_in_shards_with_an_index(workspace: Path, tmp_path: Path) -> None:
    task = task_of(
        replace(ALONE, shape="DP2", mesh={"dp_shard": 2}), workspace=workspace, run_folder=tmp_path
    )
    record = run_ranks(train_rank_in_small_shards, 2, task, init=False)[0]
    folder = tmp_path / "export/hf"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(names) > 2
    assert sorted(set(index["weight_map"].values())) == names
    assert index["weight_map"].keys() == record.final.keys()
    assert index["metadata"]["total_size"] == sum(whole.nbytes for whole in record.final.values())
    # A single tensor may be larger than the bound; two together may not.
    for name in names:
        sizes = [record.final[key].nbytes for key, file in index["weight_map"].items() if file == name]
        assert len(sizes) == 1 or sum(sizes) <= SMALL_SHARD_BYTES
    parameters = dict(loaded(tmp_path).named_parameters())
    assert all(torch.equal(parameters[key], whole) for key, whole in record.final.items())


@pytest.mark.slow
def test_a_run_resumed_at_its_last_step_still_exports(workspace: Path, tmp_path: Path) -> None:
    case = replace(TIED, shape="1", mesh={})
    first = train(case, workspace=workspace, run_folder=tmp_path)
    shutil.rmtree(tmp_path / "export")
    again = train(case, workspace=workspace, run_folder=tmp_path)
    assert again.first_step == NUM_STEPS + 1
    parameters = dict(loaded(tmp_path).named_parameters())
    assert all(torch.equal(parameters[name], whole) for name, whole in first.final.items())
    assert origin(tmp_path)["step"] == NUM_STEPS


@pytest.mark.slow
def test_a_run_that_goes_on_replaces_its_export(workspace: Path, tmp_path: Path) -> None:
    case = replace(ALONE, settings=EXPORTS)
    task = task_of(case, workspace=workspace, run_folder=tmp_path)
    run_ranks(train_rank, 1, replace(task, stop_after=2), init=False)
    assert origin(tmp_path)["step"] == 2
    record = run_ranks(train_rank, 1, task, init=False)[0]
    assert origin(tmp_path)["step"] == NUM_STEPS
    parameters = dict(loaded(tmp_path).named_parameters())
    assert all(torch.equal(parameters[name], whole) for name, whole in record.final.items())
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["hf"]


def files_by_rank(rank: int, world_size: int, task: Task) -> list[str]:
    """The weight files that this rank wrote, of a run to the end."""
    written: list[str] = []
    write_file = export_folder.write_file

    def noted(path: Path, entries: Sequence[Entry], *, data: Iterable[memoryview]) -> None:
        written.append(path.name)
        write_file(path, entries, data=data)

    export_folder.write_file = noted
    train_rank_in_small_shards(rank, world_size, task)
    return written


def test_all_ranks_write_files(workspace: Path, tmp_path: Path) -> None:
    task = task_of(
        replace(ALONE, shape="DP4", mesh={"dp_shard": 4}), workspace=workspace, run_folder=tmp_path
    )
    written = run_ranks(files_by_rank, 4, task, init=False)
    assert min(map(len, written)) >= 2
    assert sorted(chain(*written)) == sorted(
        path.name for path in (tmp_path / "export/hf").glob("*.safetensors")
    )


def failing_rank(
    rank: int, world_size: int, task: Task, file_bytes: int | None, *, full: int = 0
) -> tuple[ExitCode, str]:
    """How a run ends that must fail. On rank `full` no file may grow beyond `file_bytes`."""
    if rank == full and file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    try:
        train_rank(rank, world_size, task)
    except RunError as error:
        return error.code, error.message
    raise AssertionError("the run did not fail")


def test_a_full_disk_ends_every_rank_with_the_storage_code(workspace: Path, tmp_path: Path) -> None:
    case = replace(ALONE, shape="DP2", mesh={"dp_shard": 2})
    task = task_of(case, workspace=workspace, run_folder=tmp_path)
    for code, message in run_ranks(failing_rank, 2, task, 100_000, init=False):
        assert code is ExitCode.STORAGE
        assert "cannot write" in message
        assert "model.safetensors" in message
    assert not (tmp_path / "export/hf").exists()


def failing_last_rank(rank: int, world_size: int, task: Task, file_bytes: int) -> tuple[ExitCode, str]:
    export_format.MAX_SHARD_BYTES = SMALL_SHARD_BYTES
    return failing_rank(rank, world_size, task, file_bytes, full=world_size - 1)


def test_every_rank_names_the_one_that_cannot_write(workspace: Path, tmp_path: Path) -> None:
    case = replace(ALONE, shape="DP2", mesh={"dp_shard": 2})
    task = task_of(case, workspace=workspace, run_folder=tmp_path)
    for code, message in run_ranks(failing_last_rank, 2, task, 20_000, init=False):
        assert code is ExitCode.STORAGE
        assert message.startswith("rank 1: cannot write ")
        assert "model-00002-of-" in message
    assert not (tmp_path / "export/hf").exists()


def test_a_folder_of_someone_elses_is_not_replaced(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "export/hf").mkdir(parents=True)
    (tmp_path / "export/hf/notes.txt").write_text("mine")
    task = task_of(ALONE, workspace=workspace, run_folder=tmp_path)
    [(code, message)] = run_ranks(failing_rank, 1, task, None, init=False)
    assert code is ExitCode.INPUT
    assert "is not an export of a run" in message
    assert (tmp_path / "export/hf/notes.txt").read_text() == "mine"
