"""What a release is made of agrees with itself: version, addresses, image, hooks, action."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from planc import __version__
from planc.diagnostics.pages import DOCUMENTATION, pages, url
from tests.patience import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_address_of_the_documentation_is_one() -> None:
    assert PROJECT["urls"]["Documentation"] == DOCUMENTATION
    assert url(pages()[0]) == f"{DOCUMENTATION}/errors/{pages()[0]}.html"


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (str(citation["version"]), citation["license"]) == (__version__, PROJECT["license"])
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_changelog_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[?{re.escape(__version__)}\]?", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["README.md", "docs/how-to/review-in-ci.md", "action.yml"])
def test_hooks_and_action_are_shown_at_this_versions_tag(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    used = re.findall(r"OWNER/planc@(\S+)|^ +rev: (\S+)", text, re.MULTILINE)
    assert {tag for found in used for tag in found if tag} <= {f"v{__version__}"}


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        *sources, _ = shlex.split(line)
        assert [name for name in sources if not (ROOT / name).exists()] == []
        assert [name for name in sources if f"!{name}" not in ignored] == []


def test_the_image_has_a_python_that_planc_takes() -> None:
    found = re.search(r"^ARG PYTHON=(\d+)\.(\d+)$", DOCKERFILE, re.MULTILINE)
    assert found is not None
    assert (int(found[1]), int(found[2])) >= (3, 11)


@pytest.mark.skipif(os.name != "posix", reason="a script of bash")
def test_ci_builds_the_image_only_where_a_builder_is(tmp_path: Path) -> None:
    """`docker` without a daemon is no builder."""
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\n[ "$1" != info ]\n')
    docker.chmod(0o755)
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, str(ROOT / ".ci" / "image")],
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, "no container builder here: the image is not built\n")
