"""Which files of a model folder are read, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planc.runtime.errors import RunError
from planc.runtime.model_files import (
    config_digest,
    refuse_unreadable,
    unread_index,
    weight_files,
    weight_names,
)


def with_index(folder: Path, *names: str, present: tuple[str, ...] = ()) -> Path:
    """A folder whose index puts one tensor into each of `names`."""
    weight_map = {f"tensor.{index}": name for index, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for name in present:
        (folder / name).write_bytes(b"")
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(RunError) as caught:
        weight_files(folder)
    return caught.value.message


def test_a_single_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert weight_files(tmp_path) == tmp_path / "model.safetensors"


def test_an_index_gives_each_tensor_its_file(tmp_path: Path) -> None:
    names = ("model-1.safetensors", "model-2.safetensors")
    found = weight_files(with_index(tmp_path, *names, present=names))
    assert found == {"tensor.0": tmp_path / names[0], "tensor.1": tmp_path / names[1]}


@pytest.mark.parametrize(
    "name",
    [
        "../stolen.safetensors",
        "/etc/stolen.safetensors",
        "sub/model.safetensors",
        "..",
        "model.bin",
        "model.safetensors/",
        "",
    ],
)
def test_an_index_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "stolen.safetensors").write_bytes(b"")
    assert "not a safetensors file in its directory" in refusal(with_index(tmp_path / "model", name))


def test_a_link_out_of_the_folder_by_name_alone_stays_a_name(tmp_path: Path) -> None:
    names = ("a.safetensors",)
    folder = with_index(tmp_path, *names, present=names)
    assert weight_files(folder) == {"tensor.0": folder / "a.safetensors"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    message = refusal(
        with_index(tmp_path, "model-1.safetensors", "model-2.safetensors", present=("model-1.safetensors",))
    )
    assert message.endswith("names model-2.safetensors, which does not exist")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": ["a"]}', "\ufeff{", "[" * 10_000]
)
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    assert "is not a safetensors index" in refusal(tmp_path)


def test_an_index_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(b"\xff\xfe\x00")
    assert "is not a safetensors index" in refusal(tmp_path)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "has neither model.safetensors nor" in refusal(tmp_path)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file"):
        config_digest(tmp_path)


def test_the_configs_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    assert config_digest(tmp_path) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_quantized_weights_are_refused_by_what_the_config_says(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": null}')
    refuse_unreadable(tmp_path)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    with pytest.raises(RunError, match="are quantized"):
        refuse_unreadable(tmp_path)


def test_weight_files_have_names_before_they_are_there(tmp_path: Path) -> None:
    assert weight_names(tmp_path) == ("model.safetensors",)
    assert weight_names(with_index(tmp_path, "b.safetensors", "a.safetensors")) == (
        "a.safetensors",
        "b.safetensors",
    )


def test_names_that_leave_the_folder_are_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a safetensors file in its directory"):
        weight_names(with_index(tmp_path, "../stolen.safetensors"))


def of_config(folder: Path, **config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_whole_file_comes_before_an_index_as_in_transformers(tmp_path: Path) -> None:
    folder = with_index(tmp_path, "a.safetensors", present=("a.safetensors", "model.safetensors"))
    assert weight_files(folder) == folder / "model.safetensors"
    assert weight_names(folder) == ("model.safetensors",)
    assert unread_index(folder) == "model.safetensors.index.json"


def test_an_index_alone_is_read(tmp_path: Path) -> None:
    assert unread_index(with_index(tmp_path, "a.safetensors", present=("a.safetensors",))) is None


def test_a_file_that_config_json_names_is_read(tmp_path: Path) -> None:
    folder = of_config(tmp_path, transformers_weights="mine.safetensors")
    (folder / "model.safetensors").write_bytes(b"")
    assert refusal(folder).endswith("has no mine.safetensors")
    (folder / "mine.safetensors").write_bytes(b"")
    assert weight_files(folder) == folder / "mine.safetensors"


@pytest.mark.parametrize("name", ["../x.safetensors", "sub/x.safetensors", "x.bin", 3, ""])
def test_config_json_cannot_name_a_file_elsewhere(tmp_path: Path, name: object) -> None:
    assert "not a safetensors file or index" in refusal(of_config(tmp_path, transformers_weights=name))


@pytest.mark.parametrize(
    ("file", "config", "message"),
    [
        ("adapter_config.json", {}, "has an adapter"),
        ("shard-00001-model-00001-of-00002.safetensors", {}, "a checkpoint of several ranks"),
        ("model.safetensors", {"fusion_config": {"patch_embeddings": True}}, "has a fusion_config"),
    ],
)
def test_what_transformers_would_add_to_the_weights_is_refused(
    tmp_path: Path, file: str, config: dict[str, object], message: str
) -> None:
    folder = of_config(tmp_path, **config)
    (folder / "model.safetensors").write_bytes(b"")
    (folder / file).write_bytes(b"")
    assert message in refusal(folder)
