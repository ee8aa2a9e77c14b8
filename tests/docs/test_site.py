"""The site builds without warnings, with a page for each code, and with nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.generate import GENERATED
from planc.cli.main import COMMANDS
from planc.diagnostics.pages import pages
from planc.plan.blocks import BLOCKS
from planc.show.reference import topics
from tests.docs.pages import DOCS, ROOT
from tests.patience import WAIT_SECONDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("sphinx") is None, reason="sphinx is not installed"),
]

NEEDED = ("planc", "plans", "tests", "examples", "grammar", "README.md", "REFERENCE.md")
"""What pages include and link to."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy: generated pages would lie in the checkout."""
    folder = tmp_path_factory.mktemp("site")
    made = {str(DOCS / name) for name in GENERATED}

    def generated(parent: str, names: list[str]) -> list[str]:
        return [name for name in names if f"{parent}/{name}" in made or name == "__pycache__"]

    shutil.copytree(DOCS, folder / "docs", ignore=generated)
    for name in NEEDED:
        (folder / name).symlink_to(ROOT / name)
    built = folder / "build"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(built)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return built


def test_every_code_has_its_page(site: Path) -> None:
    assert sorted(page.stem for page in (site / "errors").glob("P*.html")) == list(pages())


def test_every_command_has_its_page(site: Path) -> None:
    found = {page.stem for page in (site / "reference" / "commands").glob("*.html")}
    assert found == {"index", *(command.name for command in COMMANDS)}


def test_every_block_style_op_and_code_is_in_the_reference(site: Path) -> None:
    kinds = {"blocks": BLOCKS, "styles": topics()["styles"], "ops": topics()["ops"]}
    for name, expected in kinds.items():
        text = (site / "reference" / f"{name}.html").read_text(encoding="utf-8")
        assert [one for one in expected if f">{one}<" not in text] == []


def test_links_lead_to_pages_and_to_places_on_them(site: Path) -> None:
    """Sphinx checks what it resolves; this is what browsers will follow."""
    anchors: dict[Path, set[str]] = {}
    wrong = []
    for page in sorted(site.rglob("*.html")):
        for link in set(re.findall(r'href="([^"]*)"', page.read_text(encoding="utf-8"))):
            name, _, anchor = link.partition("#")
            name = name.partition("?")[0]
            if "://" in name or name.startswith(("mailto:", "data:")):
                continue
            target = (page.parent / name).resolve() if name else page
            if not target.is_file():
                wrong.append(f"{page.relative_to(site)}: {link}")
            elif anchor and target.suffix == ".html":
                if target not in anchors:
                    anchors[target] = set(re.findall(r'id="([^"]*)"', target.read_text(encoding="utf-8")))
                if anchor not in anchors[target]:
                    wrong.append(f"{page.relative_to(site)}: {link}")
    assert wrong == []


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)"', text)
        loaded += re.findall(r'<link[^>]* rel="stylesheet"[^>]* href="(https?:[^"]*)"', text)
        assert loaded == [], page
