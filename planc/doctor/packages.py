"""The packages that planc works with: their ranges, the reason of each, and what is installed."""

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
    """A package with the range of its releases that planc works with, as pyproject.toml has it.

    `newest` is the one that the whole test suite runs with. `reason` is what the floor is for.
    """

    name: str
    floor: str
    newest: str
    reason: str
    below: str | None = None
    """The first release that is refused."""
    is_for_runs: bool = True
    """Whether checking plans does without it."""
    extra: str | None = None
    """The extra of planc that brings it, where only some plans need it."""

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
        "compiled plans, checkpoint manifests",
        "3",
        is_for_runs=False,
    ),
    Package("rich", "13.7", "15.0.0", "shows a run's progress", is_for_runs=False),
    Package(
        "torch",
        "2.13",
        "2.13.0",
        "FSDP2, DeviceMesh, context parallelism; below 2.13 threads crash process groups",
    ),
    Package(
        "transformers",
        "5.23",
        "5.23.0",
        "models, their own TP plans: older ones leave the embeddings out",
    ),
    Package("safetensors", "0.6", "0.8.0", "weights and checkpoints, without pickle"),
    Package("tokenizers", "0.22", "0.23.3", "tokenizer.json: data.tokenizer = file(...)"),
    Package("numpy", "2.0", "2.4.6", "token order and packing of data"),
)

TRACKERS: tuple[Package, ...] = (
    Package("tensorboard", "2.17", "2.21.0", "the plan's logging block names it", extra="tensorboard"),
    Package("wandb", "0.19", "0.31.0", "the plan's logging block names it", extra="wandb"),
)
"""Packages that a plan asks for by the tracker's name."""


def installed_versions() -> dict[str, str | None]:
    """The version of every package named here; None for one that is not installed. Imports none of them."""
    return {package.name: _installed(package.name) for package in (*PACKAGES, *TRACKERS)}


def package_checks(
    versions: Mapping[str, str | None], *, is_for_run: bool, trackers: Sequence[str] = ()
) -> Iterator[Check]:
    """A check a package. One that only runs need may be missing unless this is for a run."""
    yield Check(
        Section.PACKAGES,
        SourceFile("python", platform.python_version()),
        f"{PYTHON_FLOOR} or newer",
        "what planc itself is written in",
    )
    for package in (*PACKAGES, *(one for one in TRACKERS if one.name in trackers)):
        version = versions[package.name]
        text = version or ("not installed" if not package.is_for_runs else "not installed, only runs need it")
        observed = SourceFile(package.name, text)
        problems = tuple(_problems(package, version, observed, is_for_run=is_for_run))
        yield Check(Section.PACKAGES, observed, package.required, package.reason, problems)


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version: (2, 11) of 2.11.0a0+git. Empty for what does not start with one.

    Vendors ship pre-releases of what became the release; they count as it.
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
        text = f"{package.name} {version}, where planc needs {package.required}: {package.reason}"
        yield codes.OUTSIDE_RANGE.at(span, text, help=f"pip install '{wanted}'")
    elif numbers[:2] > release(package.newest)[:2]:
        text = f"planc is tested with {package.name} {package.newest}"
        help = f"if something fails that should not, try {package.name}=={package.newest}"
        yield codes.UNTESTED.at(span, text, help=help)
