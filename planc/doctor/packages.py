"""Packages that planc needs: supported ranges, reasons, and installed versions."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from planc.diagnostics import Diagnostic
from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.source import SourceFile


@dataclass(frozen=True, slots=True)
class Package:
    """A package with its supported range of releases, as in pyproject.toml.

    `newest` is the release that the full test suite runs with. `reason` is the reason for the floor.
    """

    name: str
    floor: str
    newest: str
    reason: str
    below: str | None = None
    """The first unsupported release."""
    is_for_runs: bool = True
    """Whether only runs need it, not checks."""
    extra: str | None = None
    """The extra of planc that installs it, if only some plans need it."""

    @property
    def required(self) -> str:
        return f"{self.floor} or newer" + (f", below {self.below}" if self.below else "")


PYTHON_FLOOR = "3.11"
PACKAGES: tuple[Package, ...] = (
    Package("lark", "1.2", "1.3.1", "parses plans: strict LALR(1)", "2", is_for_runs=False),
    Package(
        "pydantic",
        "2.9",
        "2.14.3",
        "validates compiled plans and checkpoint manifests",
        "3",
        is_for_runs=False,
    ),
    Package("PyYAML", "6", "6.0.3", "reads configs for `planc import`", is_for_runs=False),
    Package("rich", "13.7", "15.0.0", "shows a run's progress", is_for_runs=False),
    Package(
        "torch",
        "2.11",
        "2.13.0",
        "FSDP2, DeviceMesh, autograd through collectives; planc is not tested with older releases",
    ),
    Package(
        "transformers",
        "5.23",
        "5.23.0",
        "models and their TP plans; older releases leave out the embeddings",
    ),
    Package("safetensors", "0.6", "0.8.0", "weights and checkpoints, without pickle"),
    Package("tokenizers", "0.22", "0.23.3", "tokenizer.json: data.tokenizer = file(...)"),
    Package("numpy", "2.0", "2.4.6", "token order and packing of data"),
)

TRACKERS: tuple[Package, ...] = (
    Package("tensorboard", "2.17", "2.21.0", "the plan's logging block names it", extra="tensorboard"),
    Package("wandb", "0.19", "0.31.0", "the plan's logging block names it", extra="wandb"),
)
"""Packages that a plan's trackers need."""


def installed_versions() -> dict[str, str | None]:
    """The version of every package above; None if not installed. Imports none of them."""
    return {package.name: _installed(package.name) for package in (*PACKAGES, *TRACKERS)}


def package_checks(
    versions: Mapping[str, str | None], *, is_for_run: bool, trackers: Sequence[str] = ()
) -> Iterator[Check]:
    """Check each package. One that only runs need may be missing unless `is_for_run`."""
    yield Check(
        Section.PACKAGES,
        SourceFile("python", platform.python_version()),
        f"{PYTHON_FLOOR} or newer",
        "the language of planc itself",
    )
    for package in (*PACKAGES, *(one for one in TRACKERS if one.name in trackers)):
        version = versions[package.name]
        text = version or (
            "not installed" if not package.is_for_runs else "not installed (only runs need it)"
        )
        observed = SourceFile(package.name, text)
        problems = tuple(_problems(package, version, observed, is_for_run=is_for_run))
        yield Check(Section.PACKAGES, observed, package.required, package.reason, problems)


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version: (2, 11) for 2.11.0a0+git. Empty if it does not start with a number.

    Vendors ship pre-releases, which count as the release.
    """
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    numbers = [int(number) for number in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _problems(
    package: Package, version: str | None, observed: SourceFile, *, is_for_run: bool
) -> Iterator[Diagnostic]:
    span = observed.whole()
    extra = f"planc[{package.extra or 'run'}]" if package.is_for_runs else "planc"
    if version is None:
        if is_for_run or not package.is_for_runs:
            text = f"{package.name} {package.required}: {package.reason}"
            yield codes.MISSING.at(span, text, help=f"pip install '{extra}'")
        return
    numbers = release(version)
    wanted = f"{package.name}>={package.floor}" + (f",<{package.below}" if package.below else "")
    if numbers < release(package.floor) or (package.below and numbers >= release(package.below)):
        text = f"planc needs {package.name} {package.required}, found {version}: {package.reason}"
        yield codes.OUTSIDE_RANGE.at(span, text, help=f"pip install '{wanted}'")
    elif numbers[:2] > release(package.newest)[:2]:
        text = f"planc is tested with {package.name} {package.newest}"
        help = f"if you see unexpected failures, try {package.name}=={package.newest}"
        yield codes.UNTESTED.at(span, text, help=help)
