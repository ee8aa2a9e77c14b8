"""The recorded session is what the server answers today."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.lsp.session import PAGE, page


def test_the_recorded_session_is_current(match_golden: Callable[[Path, str], None]) -> None:
    match_golden(PAGE, page())
