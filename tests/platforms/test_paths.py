"""Paths as Windows writes them reach no artifact."""

from __future__ import annotations

import ntpath
import os
from pathlib import Path, PureWindowsPath

import pytest

from planc.graph.artifact import base_between


class Folder:
    """A folder of Windows whose links are resolved."""

    def __init__(self, path: str) -> None:
        self.path = PureWindowsPath(path)

    def resolve(self) -> PureWindowsPath:
        return self.path


@pytest.mark.parametrize(
    ("plan", "artifact", "base"),
    [
        (r"C:\work\plans", r"C:\work\out\deep", "../../plans"),
        (r"C:\work", r"C:\work", "."),
        (r"D:\plans", r"C:\out", "D:/plans"),
    ],
)
def test_the_way_to_a_plan_has_forward_slashes(
    plan: str, artifact: str, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sep", "\\")
    monkeypatch.setattr(os.path, "relpath", ntpath.relpath)
    found = base_between(Folder(artifact), plan_folder=Folder(plan))  # type: ignore[arg-type]
    monkeypatch.undo()
    assert found == base


def test_the_way_is_a_way(tmp_path: Path) -> None:
    assert base_between(tmp_path / "a", plan_folder=tmp_path / "b") == "../b"
