"""`planc checkpoint convert`: plain DCP becomes a verified checkpoint, and the other way, bit by bit."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from planc.cli.main import main
from planc.runtime.checkpoint_format.manifest import Manifest, without_tensors
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.torch.checkpoint.chunks import ChunkReader
from tests.checkpoints.plain_dcp import STATE, TENSORS, save_plainly, save_sharded
from tests.checkpoints.sample import save_sample
from tests.faults.ranks import endings


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return save_plainly(STATE, tmp_path / "plain")


def convert(*arguments: object) -> int:
    return main(["checkpoint", "convert", *map(str, arguments)])


def tensors_of(directory: Path) -> dict[str, Tensor]:
    manifest = read_manifest(directory)
    reader = ChunkReader(directory, manifest)
    return {name: reader.whole(name) for name in manifest.tensors}


def bits(tensors: dict[str, Tensor]) -> dict[str, tuple[object, ...]]:
    return {
        name: (tensor.dtype, tensor.shape, tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    }


def facts(manifest: Manifest) -> Manifest:
    return without_tensors(manifest).model_copy(update={"plan": manifest.plan})


def test_plain_dcp_becomes_a_sound_checkpoint_of_equal_tensors(plain: Path, tmp_path: Path) -> None:
    assert convert(plain, "--planc", tmp_path / "root", "--unpickle", "--step", 7) == 0
    directory = tmp_path / "root" / "step-7"
    assert verify(directory) == ()
    assert bits(tensors_of(directory)) == bits(TENSORS)


def test_objects_that_are_no_tensors_are_left_out_and_named(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(plain, "--planc", tmp_path / "root", "--unpickle", "--step", 7) == 0
    assert "left out because they are not tensors: optimizer.lr" in capsys.readouterr().err


def test_dcp_of_two_ranks_becomes_whole_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    ended = endings(save_sharded, 2, folder)
    assert [ending.error for ending in ended] == ["", ""]
    assert len(list(folder.glob("*.distcp"))) == 2
    assert convert(folder, "--planc", tmp_path / "root", "--unpickle", "--step", 1) == 0
    found = tensors_of(tmp_path / "root" / "step-1")
    assert {name: tensor.numpy().tobytes() for name, tensor in found.items()} == ended[0].value
    assert verify(tmp_path / "root" / "step-1") == ()


def test_torch_loads_what_becomes_plain_dcp(tmp_path: Path) -> None:
    sample = save_sample(tmp_path, step=3)
    assert convert(sample, "--dcp", tmp_path / "plain") == 0
    state = {"model": {"weight": torch.empty(3, 3)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=tmp_path / "plain", no_dist=True)
    assert bits({"model.weight": state["model"]["weight"]}) == bits(tensors_of(sample))


def test_there_and_back_keeps_every_bit_and_every_fact(plain: Path, tmp_path: Path) -> None:
    convert(plain, "--planc", tmp_path / "root", "--unpickle", "--step", 7)
    first = tmp_path / "root" / "step-7"
    assert convert(first, "--dcp", tmp_path / "again") == 0
    assert convert(tmp_path / "again", "--planc", tmp_path / "back", "--unpickle") == 0
    second = tmp_path / "back" / "step-7"
    assert bits(tensors_of(second)) == bits(TENSORS)
    assert facts(read_manifest(second)) == facts(read_manifest(first))


def test_facts_of_a_run_survive_plain_dcp(tmp_path: Path) -> None:
    sample = save_sample(tmp_path, step=3)
    convert(sample, "--dcp", tmp_path / "plain")
    assert convert(tmp_path / "plain", "--planc", tmp_path / "back", "--unpickle") == 0
    assert facts(read_manifest(tmp_path / "back" / "step-3")) == facts(read_manifest(sample))


def test_names_get_another_start(tmp_path: Path) -> None:
    plain = save_plainly({"app": {"w": torch.ones(2)}, "b": torch.ones(1)}, tmp_path / "plain")
    renamed = ("--rename", "app.=model.", "--rename", "=model.")
    assert convert(plain, "--planc", tmp_path, "--unpickle", "--step", 0, *renamed) == 0
    assert set(read_manifest(tmp_path / "step-0").tensors) == {"model.w", "model.b"}


def test_names_that_would_become_one_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = save_plainly({"a": {"w": torch.ones(2)}, "b": {"w": torch.ones(2)}}, tmp_path / "plain")
    renamed = ("--rename", "a.=model.", "--rename", "b.=model.")
    assert convert(plain, "--planc", tmp_path, "--unpickle", "--step", 0, *renamed) == 2
    assert "would both be model.w" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one of the arguments --dcp --planc is required"),
        (("--planc", "root"), "planc has not read it"),
        (("--planc", "root", "--unpickle"), "does not record its step"),
        (("--planc", "root", "--unpickle", "--step", "-1"), "--step must be 0 or more"),
        (("--planc", "root", "--unpickle", "--model", "x"), "--model needs --step"),
        (("--planc", "root", "--unpickle", "--step", "1", "--model", "x"), "config.json"),
        (("--planc", "root", "--unpickle", "--step", "1", "--rename", "x"), "--rename must be OLD=NEW"),
        (("--dcp", "out"), "no checkpoint found in"),
    ],
)
def test_what_is_missing_is_asked_for(
    arguments: tuple[str, ...],
    said: str,
    plain: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert convert(plain, *arguments) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


def test_an_existing_folder_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = save_sample(tmp_path, step=3)
    (tmp_path / "plain").mkdir()
    assert convert(sample, "--dcp", tmp_path / "plain") == 2
    assert "already exists" in capsys.readouterr().err


def test_a_damaged_checkpoint_becomes_no_plain_dcp(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = save_sample(tmp_path, step=3)
    path = next(sample.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert convert(sample, "--dcp", tmp_path / "plain") == 2
    assert "SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "plain").exists()
