"""Every command where something is missing: it works, or says in a sentence what it needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.patience import WAIT_SECONDS
from tests.platforms.commands import COMMANDS, ROOT, Command

pytestmark = pytest.mark.slow

LACKS: Mapping[str, tuple[str, ...]] = {
    "windows": ("posix",),
    "base": ("torch", "transformers", "safetensors", "tokenizers", "datasets", "jinja2", "numpy"),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "safetensors": ("safetensors",),
    "numpy": ("numpy",),
    "data": ("tokenizers", "datasets", "jinja2"),
}
"""Environments, and what they lack."""
_WHOLE = ("windows", "base")
"""Those in which every command runs; in the others those that need libraries."""


def answers(
    made: Path, folder: Path, environment: str, commands: tuple[Command, ...] = COMMANDS, **variables: str
) -> dict[str, dict[str, Any]]:
    """What each command answers, run one after the other in a copy of the world."""
    place = folder / "wörld 1"
    shutil.copytree(made / "world", place, symlinks=True)
    cache = folder / "cache"
    shutil.copytree(made / "cache", cache)
    done = subprocess.run(
        [sys.executable, "-m", "tests.platforms.pretend", *LACKS.get(environment, ())],
        input=json.dumps([command.arguments for command in commands]),
        cwd=place,
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
            "PYTHONPATH": str(ROOT),
            "PLANC_CACHE": str(cache),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "hub"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUTF8": "1",
            **variables,
        },
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=WAIT_SECONDS,
    )
    # A command that ends the process has ended what should have come after it.
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {command.line: one for command, one in zip(commands, found, strict=True)}


def problem(command: Command, found: Mapping[str, Any], *, lacks: frozenset[str]) -> str:
    """What is wrong with an answer; empty if nothing is."""
    err = found["err"]
    if "Traceback" in err or "internal error" in err or "bug in planc" in err:
        return f"{command.line}: {err[-400:]}"
    if lacks & command.needs:
        named = " ".join((found["out"] + err).split())
        is_refused = found["code"] in (1, 2) and ("planc[run]" in named or "Windows" in named)
        return "" if is_refused else f"{command.line}: {found['code']}, not refused: {err[-400:]}"
    if "network" in command.needs:
        return "" if found["code"] == 2 else f"{command.line}: {found['code']}"
    # The doctor finds what is missing.
    wanted = (0, 1) if command.line.startswith("doctor") else (command.code,)
    return "" if found["code"] in wanted else f"{command.line}: {found['code']}: {err[-400:]}"


@pytest.mark.parametrize("environment", LACKS)
def test_every_command_works_or_says_what_it_needs(environment: str, made: Path, tmp_path: Path) -> None:
    lacks = frozenset(LACKS[environment])
    every = COMMANDS if environment in _WHOLE else [one for one in COMMANDS if one.needs]
    # What could train here is tested elsewhere.
    commands = tuple(one for one in every if "posix" not in one.needs or lacks & one.needs)
    found = answers(made, tmp_path, environment, commands)
    problems = [problem(command, found[command.line], lacks=lacks) for command in commands]
    assert [one for one in problems if one] == []


QUICK = tuple(one for one in COMMANDS if not one.needs)
"""The commands that need no library beyond planc's own."""


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "cp437"])
def test_output_reaches_streams_that_lack_its_characters(encoding: str, made: Path, tmp_path: Path) -> None:
    """As on a Windows console, or in a container without a locale: files are UTF-8 all the same."""
    locale = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    found = answers(made, tmp_path, "base", QUICK, PRETENDED_ENCODING=encoding, **locale)
    problems = [problem(command, found[command.line], lacks=frozenset()) for command in QUICK]
    assert [one for one in problems if one] == []
    compiled = json.loads((tmp_path / "wörld 1" / "out" / "x.json").read_text(encoding="utf-8"))
    assert compiled["plan_hash"]


def test_line_ends_change_nothing_but_the_text(made: Path, tmp_path: Path) -> None:
    """A checkout on Windows has carriage returns."""
    lines = ("compile x.plan -o out/x.json", "fmt formatted.plan", "review main")
    commands = tuple(map(Command, lines))
    place = tmp_path / "unix"
    unix = answers(made, place, "base", commands)
    windows = tmp_path / "windows"
    source = tmp_path / "crlf"
    shutil.copytree(made, source, symlinks=True)
    for plan in (source / "world").glob("*.plan"):
        plan.write_bytes(plan.read_bytes().replace(b"\n", b"\r\n"))
    crlf = answers(source, windows, "base", commands)
    hashes = [one[lines[0]]["err"] for one in (unix, crlf)]
    assert hashes[0] == hashes[1]
    assert b"\r\n" not in (place / "wörld 1" / "formatted.plan").read_bytes()
    assert "| x.plan | no semantic change |" in crlf[lines[2]]["out"]
    assert "| x.plan |" not in unix[lines[2]]["out"]
