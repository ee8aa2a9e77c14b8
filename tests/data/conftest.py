"""Processes that tokenize are forked from one that has imported what they need."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from planc.runtime.data.encoding import client
from tests.data.fork_server import ForkedProcess

REAL = ("test_data_encoding.py", "test_data_tokenizers.py")
"""Tests of the process itself: its start, its environment, its limits and its end."""


@pytest.fixture(autouse=True)
def _forked_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name not in REAL and sys.platform != "win32":
        forking = SimpleNamespace(PIPE=subprocess.PIPE, Popen=ForkedProcess)
        monkeypatch.setattr(client, "subprocess", forking)
