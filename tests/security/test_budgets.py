"""Files that ask for much are refused by their size, not read. Plans: `tests/robustness/bad_inputs.py`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planc.runtime.checkpoint_format.errors import CorruptCheckpointError
from planc.runtime.checkpoint_format.manifest import MANIFEST_NAME, Manifest
from planc.runtime.checkpoint_format.records import seal
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
    grid = manifest.contents.grids[0].model_copy(update={"cuts": (((2**61, 2),), ((2**62, 1),))})
    for grids in (manifest.contents.grids, (grid,)):
        contents = manifest.contents.model_copy(update={"tensors": {"model.weight": tensor}, "grids": grids})
        text = seal(manifest.model_copy(update={"contents": contents}))
        (directory / MANIFEST_NAME).write_text(text, encoding="utf-8")
        began = time.process_time()
        assert verify(directory) != ()
        assert time.process_time() - began < PATIENCE_SECONDS


def test_a_manifest_of_more_chunks_than_a_cluster_writes_is_refused_in_time(tmp_path: Path) -> None:
    directory = save_sample(tmp_path, step=3)
    text = (directory / MANIFEST_NAME).read_text(encoding="utf-8")
    cuts = '"cuts":[[[2,1],[1,1]],[[3,1]]],"writers":[[0,1,2]]'
    assert cuts in text
    many = '"cuts":[[[1,16777216]],[[1,16777216]]],"writers":[[0,0,16777216]]'
    (directory / MANIFEST_NAME).write_text(text.replace(cuts, many), encoding="utf-8")
    began = time.process_time()
    with pytest.raises(CorruptCheckpointError, match="chunks has"):
        read_manifest(directory)
    assert time.process_time() - began < PATIENCE_SECONDS


def test_a_part_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    directory = save_sample(tmp_path, step=3)
    grow(directory / "rank-00001.json", 2**40)
    assert [problem.subject for problem in verify(directory)] == ["rank-00001.json"]
    manifest = manifest_at(3)
    part = manifest.parts[1]
    assert part is not None
    large = part.model_copy(update={"size_bytes": 2**40})
    text = seal(manifest.model_copy(update={"parts": (manifest.parts[0], large)}))
    (directory / MANIFEST_NAME).write_text(text, encoding="utf-8")
    assert [problem.text for problem in verify(directory)] == ["is larger than a part can be"]


def test_an_index_of_many_megabytes_is_not_read(tmp_path: Path) -> None:
    grow(tmp_path / "model.safetensors.index.json", 2**40)
    with pytest.raises(RunError, match="larger than an index can be"):
        weight_names(tmp_path)
