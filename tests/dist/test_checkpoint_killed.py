"""Saves that are cut off by SIGKILL, at instants that nobody chose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import WAIT_SECONDS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_a_killed_save_leaves_the_step_before_whole(count: int, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.dist.killed_saves", str(tmp_path), str(count))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "a child that fails says why"
    result = json.loads(done.stdout)
    assert (result["kills"], result["wrong"]) == (count, [])
    assert result["last_step"] > 0, "some saves were finished"
    assert result["cut_off"] > 0, "and some were not"
