"""The manifest refuses whatever it does not know."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from planc.runtime.checkpoint_format.errors import CorruptCheckpointError
from planc.runtime.checkpoint_format.manifest import Manifest, seal
from planc.runtime.checkpoint_format.verify import read_manifest
from tests.checkpoints.sample import manifest_at


def sample_fields() -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(manifest_at(3).model_dump_json())
    return fields


def parse(fields: dict[str, Any]) -> Manifest:
    return Manifest.model_validate_json(json.dumps(fields))


def test_a_manifest_survives_json_exactly() -> None:
    assert parse(sample_fields()) == manifest_at(3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", "3"),
        ("step", 3.0),
        ("step", -1),
        ("format_version", 1),
        ("mesh", {"dp_shard": 0}),
        ("mesh", {"warp": 2}),
        ("comment", "unknown"),
    ],
)
def test_a_field_of_another_type_or_name_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        parse({**sample_fields(), field: value})


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        ".x.safetensors",
        "x.safetensors\n",
        "x\u0000.safetensors",
        "manifest.json",
        "x.pt",
        "",
    ],
)
def test_a_file_name_that_is_not_one_plain_component_is_refused(name: str) -> None:
    fields = sample_fields()
    fields["files"][name] = fields["files"]["rank-00000.safetensors"]
    with pytest.raises(ValidationError, match="pattern"):
        parse(fields)


def test_a_chunk_in_an_unlisted_file_is_refused() -> None:
    fields = sample_fields()
    del fields["files"]["rank-00001.safetensors"]
    with pytest.raises(ValidationError, match=r"rank-00001\.safetensors, which is not among the files"):
        parse(fields)


def test_two_chunks_at_one_place_are_refused() -> None:
    fields = sample_fields()
    fields["tensors"]["model.other"] = fields["tensors"]["model.weight"]
    with pytest.raises(ValidationError, match="two chunks are at"):
        parse(fields)


def test_a_step_that_differs_from_its_progress_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"step is 4, but progress\.step is 3"):
        parse({**sample_fields(), "step": 4})


def test_a_newer_format_is_named(checkpoint: Path) -> None:
    text = json.dumps({**sample_fields(), "format_version": 4, "signature": "new"})
    (checkpoint / "manifest.json").write_text(text)
    with pytest.raises(CorruptCheckpointError, match="not in format 2 or 3"):
        read_manifest(checkpoint)


def test_the_manifest_of_another_step_is_refused(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text(seal(manifest_at(4)))
    with pytest.raises(CorruptCheckpointError, match="is for step 4"):
        read_manifest(checkpoint)


def test_a_directory_without_manifest_is_refused(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"has no manifest\.json"):
        read_manifest(checkpoint)


def test_bytes_that_are_not_text_are_refused(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_bytes(b"\x80\x04\x95")
    with pytest.raises(CorruptCheckpointError, match="not UTF-8"):
        read_manifest(checkpoint)


def test_a_symbolic_link_is_not_followed(checkpoint: Path, tmp_path: Path) -> None:
    manifest = checkpoint / "manifest.json"
    manifest.rename(tmp_path / "elsewhere.json")
    manifest.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(CorruptCheckpointError, match="it is a symbolic link"):
        read_manifest(checkpoint)


def test_an_error_reaches_another_process_whole() -> None:
    error = CorruptCheckpointError("what", help="how")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.message, copy.help) == (CorruptCheckpointError, "what", "how")


def test_a_changed_character_that_still_makes_a_manifest_is_refused(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    text = path.read_text()
    changed = text.replace('"samples_consumed":24', '"samples_consumed":25')
    assert changed != text
    path.write_text(changed)
    with pytest.raises(CorruptCheckpointError, match="has changed since it was saved"):
        read_manifest(checkpoint)


def test_a_manifest_without_its_own_hash_is_refused(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text(manifest_at(3).model_dump_json())
    with pytest.raises(CorruptCheckpointError, match="has changed since it was saved"):
        read_manifest(checkpoint)
