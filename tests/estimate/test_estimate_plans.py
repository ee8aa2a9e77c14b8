"""What `planc estimate` says of every plan that ships."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from planc.cli.main import main
from tests.plans import canonical_plans

GOLDENS = Path(__file__).with_name("plans")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_estimate_golden(
    path: Path, match_golden: Callable[[Path, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", str(path)]) == 0
    # The first line has the plan's path and hash.
    _, _, body = capsys.readouterr().out.partition("\n")
    match_golden(GOLDENS / f"{path.stem}.txt", body)


def test_every_golden_has_its_plan() -> None:
    assert {path.stem for path in GOLDENS.iterdir()} == {path.stem for path in canonical_plans()}
