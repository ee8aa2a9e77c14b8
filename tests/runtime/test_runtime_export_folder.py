"""The directory of an export: how weights are split into files, and how it is put into place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.errors import CheckpointError, CheckpointStorageError
from planc.runtime.checkpoint_format.shards import Entry
from planc.runtime.run_directory.export_folder import (
    ORIGIN_NAME,
    Description,
    begin,
    finish,
    plan_files,
    write_file,
)

WEIGHT = Entry("w", "float32", (2,))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "torch_dtype": "float32"}')
    return folder


def export(folder: Path, *, source: Path, step: int, tokenizer: Mapping[str, bytes] | None = None) -> str:
    """A whole export of one weight; what `finish` returns."""
    temporary = begin(folder)
    write_file(temporary / "model.safetensors", [WEIGHT], data=[memoryview(bytes(8))])
    files = {"model.safetensors": (WEIGHT,)}
    described = Description(
        source, tokenizer, config={"dtype": "float32"}, files=files, origin={"step": step}
    )
    return finish(temporary, folder, described=described)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def step_of(folder: Path) -> int:
    return int(json.loads((folder / ORIGIN_NAME).read_text())["step"])


@pytest.mark.parametrize(
    ("lengths", "files"),
    [
        ((2, 3), [("model.safetensors", ["0", "1"])]),
        ((), []),
        (
            (2, 2, 2),
            [("model-00001-of-00002.safetensors", ["0", "1"]), ("model-00002-of-00002.safetensors", ["2"])],
        ),
        (
            (9, 1, 9),
            [
                ("model-00001-of-00003.safetensors", ["0"]),
                ("model-00002-of-00003.safetensors", ["1"]),
                ("model-00003-of-00003.safetensors", ["2"]),
            ],
        ),
    ],
)
def test_files_hold_what_fits_in_the_models_order(
    lengths: tuple[int, ...], files: list[tuple[str, list[str]]]
) -> None:
    entries = [Entry(str(index), "float32", (length,)) for index, length in enumerate(lengths)]
    found = plan_files(entries, max_bytes=20)
    assert [(name, [entry.key for entry in held]) for name, held in found.items()] == files


def test_wider_elements_come_first_in_a_file() -> None:
    entries = [
        Entry("narrow", "bfloat16", (1,)),
        Entry("wide", "int64", (1,)),
        Entry("middle", "float32", ()),
    ]
    [held] = plan_files(entries, max_bytes=100).values()
    assert [entry.key for entry in held] == ["wide", "middle", "narrow"]


def test_an_export_stands_alone_in_its_place(tmp_path: Path, source: Path) -> None:
    assert export(tmp_path / "export/hf", source=source, step=3) == f"; without a tokenizer: none in {source}"
    assert names(tmp_path / "export") == ["hf"]
    assert names(tmp_path / "export/hf") == ["config.json", "model.safetensors", ORIGIN_NAME]
    config = json.loads((tmp_path / "export/hf/config.json").read_text())
    assert config == {"model_type": "llama", "torch_dtype": "float32", "dtype": "float32"}


def test_companions_go_along_and_nothing_else(tmp_path: Path, source: Path) -> None:
    companions = ("generation_config.json", "tokenizer.json", "merges.txt", "sentencepiece.bpe.model")
    for name in (*companions, "model.safetensors", "train.py", "README.md", "trainer_state.json"):
        (source / name).write_text(f"the model's own {name}")
    export(tmp_path / "hf", source=source, step=3)
    expected = sorted((*companions, "config.json", "model.safetensors", ORIGIN_NAME))
    assert names(tmp_path / "hf") == expected
    assert (tmp_path / "hf/merges.txt").read_text() == "the model's own merges.txt"
    assert (tmp_path / "hf/model.safetensors").stat().st_size < 200


def test_an_earlier_export_is_replaced_and_named(tmp_path: Path, source: Path) -> None:
    export(tmp_path / "hf", source=source, step=3)
    (source / "tokenizer.json").write_text("{}")
    assert export(tmp_path / "hf", source=source, step=6) == ", replacing the export of step 3"
    assert step_of(tmp_path / "hf") == 6
    assert names(tmp_path) == ["hf", "model"]


def test_what_planc_did_not_write_into_an_earlier_export_is_kept(tmp_path: Path, source: Path) -> None:
    export(tmp_path / "hf", source=source, step=3)
    (tmp_path / "hf" / "README.md").write_text("mine")
    (tmp_path / "hf" / "tokenizer.json").write_text("by hand")
    (tmp_path / "hf" / "notes").mkdir()
    (tmp_path / "hf" / "notes" / "x").write_text("mine")
    (tmp_path / "hf" / "model-00001-of-00002.safetensors").write_text("of an export of two files")
    said = export(tmp_path / "hf", source=source, step=6)
    assert said.startswith(", replacing the export of step 3, with README.md, notes, tokenizer.json of it")
    assert (tmp_path / "hf" / "README.md").read_text() == "mine"
    assert (tmp_path / "hf" / "notes" / "x").read_text() == "mine"
    assert "model-00001-of-00002.safetensors" not in names(tmp_path / "hf")
    # The new export's own tokenizer counts, and a third export still knows whose README.md is.
    (source / "tokenizer.json").write_text("the model's")
    export(tmp_path / "hf", source=source, step=9)
    assert (tmp_path / "hf" / "tokenizer.json").read_text() == "the model's"
    assert (tmp_path / "hf" / "README.md").read_text() == "mine"


def test_the_plans_tokenizer_goes_before_the_models(tmp_path: Path, source: Path) -> None:
    for name in ("generation_config.json", "tokenizer.json", "vocab.json"):
        (source / name).write_text("of model")
    templates = "additional_chat_templates/tools.jinja"
    content = b"of tokenizer"
    tokenizer = {"tokenizer.json": content, "config.json": content, templates: content}
    export(tmp_path / "hf", source=source, step=3, tokenizer=tokenizer)
    assert (tmp_path / "hf" / "tokenizer.json").read_text() == "of tokenizer"
    assert (tmp_path / "hf" / templates).read_text() == "of tokenizer"
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == "llama"
    assert (tmp_path / "hf" / "generation_config.json").read_text() == "of model"
    # Two tokenizers' files are no tokenizer.
    assert "vocab.json" not in names(tmp_path / "hf")


def test_a_tokenizer_that_is_missing_is_named(tmp_path: Path, source: Path) -> None:
    said = export(tmp_path / "hf", source=source, step=3, tokenizer={})
    assert said == "; without a tokenizer: the plan's is missing"


def test_an_earlier_export_stays_while_the_new_one_is_written(tmp_path: Path, source: Path) -> None:
    export(tmp_path / "hf", source=source, step=3)
    begin(tmp_path / "hf")
    assert step_of(tmp_path / "hf") == 3


def test_leftovers_of_a_dead_export_are_cleared(tmp_path: Path, source: Path) -> None:
    (begin(tmp_path / "hf") / "model.safetensors").write_text("half")
    export(tmp_path / "hf", source=source, step=3)
    assert names(tmp_path) == ["hf", "model"]


def test_an_export_left_aside_between_the_renames_comes_back(tmp_path: Path, source: Path) -> None:
    export(tmp_path / "hf", source=source, step=3)
    (tmp_path / "hf").rename(tmp_path / "hf.old.tmp")
    begin(tmp_path / "hf")
    assert step_of(tmp_path / "hf") == 3


@pytest.mark.parametrize("content", [None, "{}", "nonsense", '{"step": []}', "[" * 100_000])
def test_what_is_no_export_of_a_run_is_refused_and_kept(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "hf").mkdir()
    if content is not None:
        (tmp_path / "hf" / ORIGIN_NAME).write_text(content)
    before = names(tmp_path / "hf")
    with pytest.raises(CheckpointError, match="is not an export of a run"):
        begin(tmp_path / "hf")
    assert names(tmp_path / "hf") == before


def test_a_file_in_the_place_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "hf").write_text("mine")
    with pytest.raises(CheckpointError, match="is not an export of a run"):
        begin(tmp_path / "hf")
    assert (tmp_path / "hf").read_text() == "mine"


def test_what_the_system_refuses_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "export").write_text("a file where the folder should be")
    with pytest.raises(CheckpointStorageError, match="cannot begin an export"):
        begin(tmp_path / "export" / "hf")


def test_the_config_no_longer_says_that_weights_are_quantized(tmp_path: Path, source: Path) -> None:
    (source / "config.json").write_text('{"model_type": "llama", "quantization_config": {"bits": 4}}')
    export(tmp_path / "hf", source=source, step=1)
    assert "quantization_config" not in json.loads((tmp_path / "hf/config.json").read_text())
