"""`planc checkpoint convert`: plain DCP becomes a verified checkpoint, and the other way, bit by bit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from planc.cli.main import main
from planc.runtime.checkpoint_format.manifest import Manifest, without_tensors
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.torch.checkpoint.chunks import ChunkReader
from planc.runtime.torch.checkpoint.foreign import names_of
from planc.runtime.torch.checkpoint.tensors import tensor_names
from tests.checkpoints.plain_dcp import STATE, TENSORS, save_plainly, save_sharded
from tests.checkpoints.sample import save_sample
from tests.faults.ranks import endings

ROOT = Path(__file__).parents[2]


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


TIED, APART = ROOT / "plans/models/tiny-llama-tied", ROOT / "plans/models/tiny-llama"


def of_model(folder: Path, **changes: Tensor | None) -> dict[str, Any]:
    """A state as another program saves it: every name of the model, and the state of one parameter."""
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config).state_dict()
    first = next(iter(model))
    state = {"step": torch.tensor(3.0), "exp_avg": torch.zeros_like(model[first])}
    model |= {name: tensor for name, tensor in changes.items() if tensor is not None}
    kept = {name: tensor for name, tensor in model.items() if changes.get(name, tensor) is not None}
    return {"model": kept, "optimizer": {"state": {first: state}}}


def to_model(state: dict[str, Any], folder: Path, model: Path, *arguments: str) -> int:
    plain = save_plainly(state, folder / "plain")
    step = ("--step", 1, "--model", model, *arguments)
    return convert(plain, "--planc", folder / "root", "--unpickle", *step)


@pytest.mark.parametrize("model", [TIED, APART], ids=["tied", "apart"])
def test_tensors_of_a_model_are_compared_with_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert to_model(of_model(model), tmp_path, model) == 0
    assert f"names and shapes are those of the model in {model}" in capsys.readouterr().err
    own = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    stored = read_manifest(tmp_path / "root" / "step-1").tensors
    assert {one.removeprefix("model.") for one in stored if one.startswith("model.")} == set(
        tensor_names(own).values()
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model.norm.weight": None}, "model.model.norm.weight is missing"),
        ({"model.norm.bias": torch.ones(8)}, "model.model.norm.bias is not of the model"),
        ({"model.norm.weight": torch.ones(3)}, "model.model.norm.weight has shape [3], the model ["),
    ],
    ids=["missing", "unexpected", "of another shape"],
)
def test_tensors_of_another_model_are_refused_before_anything_is_written(
    changes: dict[str, Tensor | None],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert to_model(of_model(APART, **changes), tmp_path, APART) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


def test_a_state_of_no_parameter_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = of_model(APART)
    state["optimizer"]["state"]["head"] = {"exp_avg": torch.zeros(2)}
    assert to_model(state, tmp_path, APART) == 2
    assert "optimizer.head.exp_avg is not of the model" in capsys.readouterr().err


def test_tied_tensors_that_differ_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ties = names_of(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(TIED))).ties
    (tied,) = ties
    state = of_model(TIED)
    state["model"][tied] = state["model"][tied] + 1
    assert to_model(state, tmp_path, TIED) == 2
    assert f"model.{ties[tied]} and model.{tied} differ" in capsys.readouterr().err


@pytest.mark.parametrize("prefix", ["app.net.", ""])
def test_a_prefix_in_the_way_is_named_and_the_help_works(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {f"{prefix}{name}": tensor for name, tensor in of_model(APART)["model"].items()}
    assert to_model(state, tmp_path, APART) == 2
    assert f"--rename {prefix}=model." in capsys.readouterr().err
    assert to_model(state, tmp_path / "again", APART, "--rename", f"{prefix}=model.") == 0


def test_without_a_model_nothing_is_said_to_fit(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(plain, "--planc", tmp_path / "root", "--unpickle", "--step", 7)
    assert "names and shapes were not compared with a model" in capsys.readouterr().err


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
