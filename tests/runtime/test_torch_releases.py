"""What planc takes from PyTorch has the names of the oldest supported release and of the newest."""

from __future__ import annotations

import re
import subprocess
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.fsdp import fully_shard

from planc.doctor.packages import PACKAGES
from planc.runtime.torch import private
from tests.gpu.site import ROOT

NAMES = ("all_gather_single", "all_gather_single_autograd", "reduce_scatter_single")
"""Of 2.13; older releases have `_tensor` for `_single`."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_old", [False, True], ids=["2.13", "2.11"])
def test_a_renamed_collective_is_found(monkeypatch: pytest.MonkeyPatch, name: str, is_old: bool) -> None:
    before = name.replace("_single", "_tensor")
    names = {before: "old"} if is_old else {before: "old", name: "new"}
    monkeypatch.setattr(private, "functional_collectives", SimpleNamespace(**names))
    assert private._renamed(name, before=before) == ("old" if is_old else "new")


@pytest.mark.parametrize(
    ("state", "groups"),
    [
        ({"_fsdp_param_groups": ["one", "two"]}, ["one", "two"]),
        ({"_fsdp_param_group": "one"}, ["one"]),
        ({"_fsdp_param_group": None}, []),
    ],
    ids=["2.13", "2.11", "2.11 without parameters"],
)
def test_the_groups_of_a_unit_are_found(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], groups: list[str]
) -> None:
    unit: Any = object()
    monkeypatch.setattr(fully_shard, "state", lambda _: SimpleNamespace(**state))
    assert list(private.parameter_groups(unit)) == groups


def test_the_oldest_release_is_the_one_that_the_suites_run_with() -> None:
    """`make test-oldest` reads it from pyproject.toml, which is the doctor's floor."""
    floor = next(one.floor for one in PACKAGES if one.name == "torch")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"torch>={floor}" in extras["optional-dependencies"]["run"]
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    script = re.search(r"sed -n '(.*)' pyproject\.toml", text)
    assert script is not None
    argv = ["sed", "-n", script[1], "pyproject.toml"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"torch=={floor}.*"]
