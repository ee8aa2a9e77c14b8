"""Imported configs: every key is in the plan or in a note, and the plan that comes out is sound."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from planc.api import check_source
from planc.import_configs import facts
from planc.import_configs.detect import Undetected
from planc.import_configs.facts import Fact
from planc.import_configs.importing import Result, import_config
from planc.import_configs.lowering import Target
from planc.import_configs.registry import KINDS
from planc.source import SourceFile
from planc.syntax.parse import parse

CONFIGS = Path(__file__).parent / "configs"
FILES = sorted(path for path in CONFIGS.glob("*/*") if path.is_file())
ROOT = Path(__file__).parents[2]
MODEL = "plans/models/tiny-llama"
LOADERS = {".toml": tomllib.loads, ".json": json.loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load}

OPTIONS: dict[str, dict[Fact, Any]] = {
    "torchtitan": {},
}
"""What files of a kind never have, and a launch gives."""


def flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The leaf keys of a loaded config, by a walk of its own."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from flat(inner, (*path, str(name)))
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for index, inner in enumerate(value):
            yield from flat(inner, (*path, str(index)))
    else:
        yield ".".join(path), value


def loaded(path: Path) -> dict[str, Any]:
    return dict(flat(LOADERS[path.suffix](path.read_text(encoding="utf-8"))))


def imported(path: Path, **more: Any) -> Result:
    kind = path.parent.name
    options = {facts.MODEL: MODEL, facts.WORLD_SIZE: 8, **OPTIONS[kind]}
    target = Target(lambda name: False, blocks_known=True)
    content = path.read_bytes()
    result = import_config(content, name=path.name, from_kind=None, options=options, target=target)
    assert not isinstance(result, Undetected), result
    assert result.kind.name == kind
    return result


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_key_is_in_the_plan_or_in_a_note(path: Path) -> None:
    result = imported(path)
    accounted = {one.key for one in result.imported} | {note.key for note in result.notes if note.line}
    assert accounted == set(loaded(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_note_is_at_the_line_of_its_key(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    result = imported(path)
    for one in (*result.imported, *(note for note in result.notes if note.line)):
        last = [part for part in one.key.split(".") if not part.isdecimal()][-1]
        assert one.line is not None and last in lines[one.line - 1], one


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_plan_parses_and_passes_the_check(path: Path) -> None:
    result = imported(path)
    assert result.text is not None, result.missing
    source = SourceFile("imported.plan", result.text)
    assert parse(source)[0] is not None
    checked = check_source(source, base=ROOT)
    errors = [one for one in checked.diagnostics if one.code.severity == "error"]
    assert not errors, errors


def test_every_kind_has_configs() -> None:
    assert {path.parent.name for path in FILES} == {kind.name for kind in KINDS}
