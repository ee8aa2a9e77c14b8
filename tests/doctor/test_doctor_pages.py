"""The commands on the pages of machine codes do what the pages say."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from planc.diagnostics import Code
from planc.diagnostics.pages import page
from planc.doctor.codes import CODES
from tests.doctor.environments import python

BLOCK = re.compile(r"^```text\n\$ (.*)\n(.*)\n```$", re.MULTILINE)
DESCRIBED = ("P910", "P911", "P912", "P913", "P918", "P921", "P922", "P923", "P927", "P929", "P930", "P945")
"""Codes whose pages can only describe the machine; tests beside this one make it, or its data."""
RUN = tuple(
    (code.code, command, outcome)
    for code in CODES
    if code.code not in DESCRIBED
    for command, outcome in BLOCK.findall(page(code.code) or "")
)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.code)
def test_a_page_shows_the_line_that_a_reader_has_before_them(code: Code) -> None:
    _, shown = BLOCK.findall(page(code.code) or "")[0]
    assert shown == f"{code.severity}[{code.code}]: {code.summary}"


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("code", "command", "outcome"), RUN, ids=lambda value: str(value)[:50])
def test_a_pages_command_gives_its_code(code: str, command: str, outcome: str, light: Path) -> None:
    prefix, _, line = command.rpartition("; ")
    words = line.split()
    start = words.index("planc")
    environment = dict(word.split("=", 1) for word in words[:start])
    arguments = words[start + 1 :]
    # Only a plan, and devices, take the seconds of importing PyTorch.
    is_light = "CUDA_VISIBLE_DEVICES" not in environment and not any(".plan" in word for word in arguments)
    environment.setdefault("CUDA_VISIBLE_DEVICES", "")
    done = python(
        "-m",
        "planc",
        *arguments,
        path=(light,) if is_light else (),
        is_bare=is_light,
        environment=environment,
        shell_prefix=prefix,
    )
    assert (code in done.stdout) is (outcome != "ok"), done.stdout + done.stderr
    assert done.returncode == (1 if outcome.startswith("error") else 0)
    if outcome != "ok":
        assert outcome in done.stdout


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_taken_port_is_named_with_a_free_one(taken_port: int, light: Path) -> None:
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(taken_port),
    }
    done = python("-m", "planc", "doctor", path=(light,), is_bare=True, environment=environment)
    assert done.returncode == 1
    assert "error[P918]" in done.stdout
    assert re.search(r"choose another port: \d+ is free", done.stdout)
