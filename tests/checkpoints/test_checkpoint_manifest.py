"""The manifest refuses whatever it does not know."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from planc.runtime.checkpoint_format.errors import CorruptCheckpointError
from planc.runtime.checkpoint_format.manifest import Manifest
from planc.runtime.checkpoint_format.records import seal
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
        ("format_version", 3),
        ("mesh", {"dp_shard": 0}),
        ("mesh", {"warp": 2}),
        ("comment", "unknown"),
    ],
)
def test_a_field_of_another_type_or_name_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        parse({**sample_fields(), field: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fields: fields["parts"].pop(), "rank 1 writes chunks, but there are 1 parts"),
        (lambda fields: fields["parts"].__setitem__(1, None), "rank 1 writes chunks, but has no part"),
        (
            lambda fields: fields["parts"].append(fields["parts"][0]),
            "rank 2 has a part, but writes no chunk",
        ),
        (lambda fields: fields["contents"]["tensors"].clear(), "a grid belongs to no tensor"),
        (lambda fields: fields["contents"]["grids"].clear(), "grid 0 has another"),
        (lambda fields: grid(fields)["cuts"].pop(), "grid 0 has another"),
        (lambda fields: grid(fields)["cuts"][0].pop(), "a grid of 1 chunks has 2 writers"),
        (lambda fields: grid(fields)["cuts"][0][0].__setitem__(0, 1), "grid 0 has another"),
        (lambda fields: grid(fields)["cuts"][0][0].__setitem__(0, 0), "greater than or equal to 1"),
        (lambda fields: grid(fields)["writers"].clear(), "a grid of 2 chunks has 0 writers"),
        (lambda fields: grid(fields)["writers"].append([0, 0, 1]), "a grid of 2 chunks has 3 writers"),
        (lambda fields: grid(fields)["writers"][0].__setitem__(0, -1), "greater than or equal to 0"),
        (lambda fields: grid(fields)["writers"][0].__setitem__(1, 2**62), "writes chunks, but there are 2"),
        (lambda fields: grid(fields)["writers"][0].__setitem__(0, "../x"), "valid integer"),
    ],
)
def test_grids_and_parts_that_disagree_are_refused(
    change: Callable[[dict[str, Any]], object], said: str
) -> None:
    fields = sample_fields()
    change(fields)
    with pytest.raises(ValidationError, match=said):
        parse(fields)


def grid(fields: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = fields["contents"]["grids"][0]
    return found


def test_a_step_that_differs_from_its_progress_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"step is 4, but progress\.step is 3"):
        parse({**sample_fields(), "step": 4})


def test_a_newer_format_is_named(checkpoint: Path) -> None:
    text = json.dumps({**sample_fields(), "format_version": 5, "planc_version": "0.9.0", "signature": "new"})
    (checkpoint / "manifest.json").write_text(text)
    with pytest.raises(CorruptCheckpointError, match=r"is in format 5, written by planc 0\.9\.0"):
        read_manifest(checkpoint)


def test_the_former_format_is_named_with_the_version_that_wrote_it(checkpoint: Path) -> None:
    facts = {name: value for name, value in sample_fields().items() if name not in ("contents", "parts")}
    text = json.dumps({**facts, "format_version": 3, "tensors": {}, "files": {}})
    (checkpoint / "manifest.json").write_text(text)
    with pytest.raises(CorruptCheckpointError, match=r"is in format 3, written by planc 0\.1\.0") as caught:
        read_manifest(checkpoint)
    assert "the planc version that saved it" in caught.value.help


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
