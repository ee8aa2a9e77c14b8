"""Files that ask for much are refused by their size, not read. Plans: `tests/robustness/bad_inputs.py`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.errors import CorruptCheckpointError
from planc.runtime.checkpoint_format.manifest import MANIFEST_NAME, Manifest, seal
from planc.runtime.checkpoint_format.verify import read_manifest, verify
from planc.runtime.errors import RunError
from planc.runtime.model_files import weight_names
from tests.checkpoints.sample import manifest_at, save_sample
from tests.patience import PATIENCE_SECONDS


def grow(path: Path, num_bytes: int) -> None:
    with path.open("ab") as stream:
        stream.truncate(num_bytes)


def test_a_manifest_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    directory = save_sample(tmp_path, step=3)
    grow(directory / MANIFEST_NAME, 2**40)
    with pytest.raises(CorruptCheckpointError, match="larger than a manifest can be"):
        read_manifest(directory)


def test_a_manifest_nested_deeply_is_refused_in_time(tmp_path: Path) -> None:
    directory = save_sample(tmp_path, step=3)
    (directory / MANIFEST_NAME).write_text('{"a":' * 1_000_000, encoding="utf-8")
    began = time.process_time()
    with pytest.raises(CorruptCheckpointError, match="is not a manifest"):
        read_manifest(directory)
    assert time.process_time() - began < PATIENCE_SECONDS


def test_a_manifest_of_a_tensor_that_no_memory_holds_is_no_checkpoint(tmp_path: Path) -> None:
    directory = save_sample(tmp_path, step=3)
    manifest: Manifest = manifest_at(3)
    tensor = manifest.tensors["model.weight"].model_copy(update={"shape": (2**62, 2**62)})
    text = seal(manifest.model_copy(update={"tensors": {"model.weight": tensor}}))
    (directory / MANIFEST_NAME).write_text(text, encoding="utf-8")
    began = time.process_time()
    assert any("elements are in no chunk" in problem.text for problem in verify(directory))
    assert time.process_time() - began < PATIENCE_SECONDS


def test_an_index_of_many_megabytes_is_not_read(tmp_path: Path) -> None:
    grow(tmp_path / "model.safetensors.index.json", 2**40)
    with pytest.raises(RunError, match="larger than an index can be"):
        weight_names(tmp_path)
