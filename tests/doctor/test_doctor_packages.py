"""Versions: ranges, what is missing, and that the ranges are those that pip is told."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from planc.doctor.examination import Check, Status
from planc.doctor.packages import PACKAGES, PYTHON_FLOOR, TRACKERS, package_checks, release
from tests.doctor.environments import ROOT, installed, present_versions, python

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def check_of(name: str, version: str | None, *, is_for_run: bool = True) -> Check:
    """The check of one package, the others being as they should."""
    checks = package_checks({**present_versions(), name: version}, is_for_run=is_for_run)
    return next(check for check in checks if check.observed.name == name)


def codes_of(check: Check) -> list[str]:
    return [problem.code.code for problem in check.problems]


def test_the_tested_releases_are_fine() -> None:
    checks = [*package_checks(present_versions(), is_for_run=True)]
    assert len(checks) == len(PACKAGES) + 1
    assert all(check.status is Status.OK and not check.problems for check in checks)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("torch", "2.1.0"),
        ("torch", "2.10.1+cu128"),
        ("torch", "2.10.1"),
        ("transformers", "4.19.0"),
        ("transformers", "5.2.0"),
        ("transformers", "5.22.0"),
        ("lark", "2.0.0"),
        ("pydantic", "3.0"),
        ("safetensors", "0.5.3"),
        ("rich", "unknown"),
    ],
)
def test_a_release_outside_the_range_is_refused(name: str, version: str) -> None:
    check = check_of(name, version)
    assert codes_of(check) == ["P910"]
    (problem,) = check.problems
    text = problem.primary.text
    assert text.startswith(f"planc needs {name} ") and f", found {version}: " in text
    assert problem.help and problem.help.startswith(f"pip install '{name}>=")


@pytest.mark.parametrize(
    "version",
    ["2.11.0", "2.12.1+cu130", "2.13", "2.13.0", "2.13.0a0+git1234", "2.13.1", "2.13.1.dev20260701"],
)
def test_a_release_in_the_range_passes(version: str) -> None:
    assert not check_of("torch", version).problems


def test_a_release_newer_than_the_tested_one_is_a_note() -> None:
    check = check_of("torch", "2.14.0")
    assert codes_of(check) == ["P912"]
    assert check.status is Status.OK


def test_a_package_of_runs_may_be_missing_until_a_plan_is_to_run() -> None:
    assert not check_of("torch", None, is_for_run=False).problems
    assert codes_of(check_of("torch", None)) == ["P911"]
    assert codes_of(check_of("lark", None, is_for_run=False)) == ["P911"]


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.13.0+cpu", (2, 13)), ("2.11.0a0+git", (2, 11)), ("10", (10,)), ("", ()), ("v2", ())],
)
def test_a_version_is_its_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers


def test_ranges_are_those_that_pip_is_told() -> None:
    declared = [*PYPROJECT["dependencies"], *PYPROJECT["optional-dependencies"]["run"]]
    ranges = {match[1]: match[2] for one in declared if (match := re.match(r"([\w-]+)(.*)", one))}
    for package in PACKAGES:
        upper = f",<{package.below}" if package.below else ""
        assert ranges[package.name] == f">={package.floor}{upper}"
    assert PYPROJECT["requires-python"] == f">={PYTHON_FLOOR}"


def test_tested_releases_are_those_of_the_constraints() -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    assert {package.name: pins[package.name] for package in PACKAGES} == present_versions()


def test_what_is_installed_is_read_without_importing_it(tmp_path: Path, light: Path) -> None:
    records = installed(tmp_path / "records", torch="2.1.0", transformers="4.19.0")
    program = (
        "import sys; from planc.doctor.packages import installed_versions\n"
        "print(installed_versions()); print({'torch', 'rich', 'pydantic'} & set(sys.modules))\n"
    )
    done = python("-c", program, path=(records, light), is_bare=True)
    found, imported = done.stdout.splitlines()
    assert "'torch': '2.1.0'" in found
    assert "'transformers': '4.19.0'" in found
    assert "'tokenizers': None" in found
    assert imported == "set()"


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_is_looked_for_where_a_plan_names_it(name: str) -> None:
    versions = {**present_versions(), name: None}
    assert name not in {check.observed.name for check in package_checks(versions, is_for_run=True)}
    checks = package_checks(versions, is_for_run=True, trackers=(name,))
    (check,) = (check for check in checks if check.observed.name == name)
    assert codes_of(check) == ["P911"]
    assert check.problems[0].help == f"pip install 'planc[{name}]'"


def test_the_extras_of_trackers_ask_for_the_floors() -> None:
    extras = PYPROJECT["optional-dependencies"]
    assert {one.extra: extras[one.extra] for one in TRACKERS} == {
        one.extra: [f"{one.name}>={one.floor}"] for one in TRACKERS
    }
