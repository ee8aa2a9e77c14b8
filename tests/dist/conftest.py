"""Starts the rank server as soon as tests are collected, so its imports run during the first tests."""

from __future__ import annotations

import pytest

from tests.dist.pool import start_server


def pytest_collection_finish(session: pytest.Session) -> None:
    if any("dist" in item.path.parts for item in session.items):
        start_server()
