"""Plans and what a user reads of them: `x.plan` beside `x.out`, rewritten by --update-goldens.

A first comment may set the launch: `# world-size: 6`, `# set: mesh.tp=4`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from planc.api import check_source
from planc.diagnostics.human import HumanRenderer
from planc.source import SourceFile
from tests.plans import PLANS

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("*.plan"))
DIRECTIVE = re.compile(r"^# (world-size|set): (.+)$", re.MULTILINE)


def rendered(path: Path) -> str:
    """All findings on a plan, as on a terminal without colours."""
    text = path.read_text(encoding="utf-8")
    directives = DIRECTIVE.findall(text)
    sizes = [int(value) for name, value in directives if name == "world-size"]
    settings = [SourceFile(f"--set {value}", value) for name, value in directives if name == "set"]
    checked = check_source(
        SourceFile(path.name, text), base=PLANS, settings=settings, world_size=sizes[0] if sizes else None
    )
    return HumanRenderer(checked.sources).render(checked.diagnostics)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_rendered_findings(path: Path, match_golden: Callable[[Path, str], None]) -> None:
    match_golden(path.with_suffix(".out"), rendered(path))


def test_every_output_has_a_plan() -> None:
    assert {path.stem for path in HERE.glob("*.out")} == {path.stem for path in CASES}
