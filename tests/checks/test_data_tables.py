"""P733: no source of rows reads tables of text, and the command of the help makes JSON lines of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from variants import Check

from tests.checks.test_classifier_rules import PLAN
from tests.plans import TINY

ROWS = [{"text": 'a "b", c', "label": "01"}, {"text": "", "label": "x"}]
TABLES = {
    "rows.csv": 'text,label\r\n"a ""b"", c",01\r\n,x\r\n',
    "rows.tsv": 'text\tlabel\n"a ""b"", c"\t01\n\tx\n',
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("call", ["jsonl", "chat", "hf_dataset"])
def test_tables_are_refused(name: str, call: str, check: Check) -> None:
    found = check(TINY.replace('text("data/*.txt")', f'{call}("{name}")')).diagnostics
    assert f"no reader for `{name}`" in [one.primary.text for one in found if one.code.code == "P733"]


@pytest.mark.parametrize("name", TABLES)
def test_the_command_of_the_help_converts_them(name: str, check: Check, tmp_path: Path) -> None:
    found = check(PLAN.replace("data/*.txt", name)).diagnostics
    (help,) = (one.help or "" for one in found if one.code.code == "P733")
    (tmp_path / name).write_text(TABLES[name], encoding="ascii", newline="")
    command = help.removeprefix("convert it: ").replace("FILE", "rows")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    lines = (tmp_path / "rows.jsonl").read_text(encoding="ascii").splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def test_json_lines_may_have_any_other_name(check: Check) -> None:
    assert check(PLAN).diagnostics == ()
