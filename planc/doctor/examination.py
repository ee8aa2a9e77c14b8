"""Checks of a machine as data: what was found, what is required and why, and problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from planc.diagnostics import Diagnostic, Severity
from planc.source import SourceFile


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Section(StrEnum):
    """The subject of a check, in the order of a report."""

    PACKAGES = "packages"
    DEVICES = "devices"
    LAUNCH = "launch"
    VARIABLES = "variables"
    STORAGE = "storage"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `observed` is its name and what was found, as a text that findings point into."""

    section: Section
    observed: SourceFile
    required: str = ""
    reason: str = ""
    problems: tuple[Diagnostic, ...] = ()

    @property
    def status(self) -> Status:
        """The status of the worst problem; notes do not count."""
        severities = {problem.severity for problem in self.problems}
        if Severity.ERROR in severities:
            return Status.ERROR
        return Status.WARNING if Severity.WARNING in severities else Status.OK


@dataclass(frozen=True, slots=True)
class Report:
    """All checks, by section."""

    checks: tuple[Check, ...]

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return tuple(problem for check in self.checks for problem in check.problems)

    @property
    def sources(self) -> Mapping[str, SourceFile]:
        """The texts that findings point into, by name, without the plan's own."""
        return {check.observed.name: check.observed for check in self.checks}

    @property
    def ok(self) -> bool:
        """Whether no check has an error."""
        return all(check.status is not Status.ERROR for check in self.checks)
