"""Starts the rank server as soon as tests are collected, and makes what several tests need."""

from __future__ import annotations

import pytest

from tests.dist.pool import start_server
from tests.faults import kills, runs


def pytest_collection_finish(session: pytest.Session) -> None:
    if any("faults" in item.path.parts for item in session.items):
        start_server()


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> kills.Scene:
    return kills.prepare(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> runs.Stage:
    return runs.prepare(tmp_path_factory.mktemp("stage"))


@pytest.fixture(scope="session")
def stage_behind(tmp_path_factory: pytest.TempPathFactory) -> runs.Stage:
    """Whose plans save while training continues."""
    return runs.prepare(tmp_path_factory.mktemp("stage-behind"), mode="async")
