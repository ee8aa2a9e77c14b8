"""Values that nobody has logged, in every place of a run's files: the page is written without them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planc.cli.main import main

HOSTILE = {
    "an integer of 400 digits": "9" * 400,
    "an integer of 5000 digits": "-" + "9" * 5000,
    "the largest integer that is read": str(2**127 - 1),
    "a float beyond all": "1e999",
    "the largest float": "-1.7e308",
    "half a surrogate pair": '"\\ud83d"',
    "nested deeply": "[" * 100_000 + "]" * 100_000,
    "a list": "[1]",
    "a table": '{"a": 1}',
    "a text": '"x"',
    "a truth": "true",
    "nothing": "null",
}
RANK_LOG = '{"time": "2026-01-01T00:00:00.000+00:00", "rank": 0, "event": "step", "memory_bytes": 5}\n'
_MARK = "@@"


def spoiled(line: str, hostile: str) -> Iterator[str]:
    """The JSON line with each of its values in turn replaced by a hostile text."""
    for place in _places(json.loads(line)):
        yield json.dumps(place).replace(f'"{_MARK}"', hostile)


def _places(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: one} for one in _places(inner))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from ([*value[:index], one, *value[index + 1 :]] for one in _places(inner))
    yield _MARK


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json", "logs/rank-0.jsonl"])
def test_a_page_of_a_run_with_a_hostile_value(
    name: str, hostile: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = run_folder / name, run_folder / "page.html"
    path.parent.mkdir(exist_ok=True)
    *others, last = (path.read_text() if path.exists() else RANK_LOG).splitlines()
    num_tried = 0
    for line in spoiled(last, HOSTILE[hostile]):
        path.write_text("\n".join([*others, line]) + "\n")
        assert main(["report", str(run_folder), "-o", str(page)]) == 0, (line[:300], capsys.readouterr().err)
        assert "Status" in page.read_text(encoding="utf-8")
        num_tried += 1
    assert num_tried > 3
