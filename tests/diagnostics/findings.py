"""Made-up findings, and a plan with real ones, for tests of what is done with them."""

from __future__ import annotations

from planc.api import Checked, check_source
from planc.diagnostics import Applicability, Code, Diagnostic, Fix, Label, Severity
from planc.diagnostics.report import PlanFindings, Report
from planc.plan.codes import CODES
from planc.source import SourceFile, Span
from tests.plans import PLANS

ERROR = next(code for code in CODES if code.code == "P202")
WARNING = Code("P802", "nested-checkpointing", "a module is recomputed inside another", Severity.WARNING)
NOTE = Code("P803", "remark", "a remark", Severity.NOTE)

SETTING = SourceFile("--set", "mesh.tp=8")


def span(line: int, column: int, end_column: int, *, file: str = "plans/x.plan") -> Span:
    return Span(file, line, column, line, end_column)


def edit(
    line: int,
    column: int,
    end_column: int,
    text: str,
    *,
    applicability: Applicability = Applicability.SAFE,
) -> Diagnostic:
    """A finding whose fix replaces these columns."""
    place = span(line, column, end_column, file="x.plan")
    return ERROR.at(place, fix=Fix(place, text, applicability))


def plan_findings(
    *diagnostics: Diagnostic, file: str = "plans/x.plan", text: str = "ab\ncd\n"
) -> PlanFindings:
    sources = {file: SourceFile(file, text), SETTING.name: SETTING}
    return PlanFindings(file, diagnostics, sources, (SETTING.name,))


def report(*diagnostics: Diagnostic, text: str = "ab\ncd\n") -> Report:
    return Report((plan_findings(*diagnostics, text=text),), root="/repository")


def everything() -> tuple[Diagnostic, ...]:
    """A finding of each severity, with all that a finding can have, and one on a setting."""
    place = span(1, 1, 3)
    return (
        ERROR.at(
            place,
            "100% wrong: a, b",
            secondary=(Label(span(2, 1, 2), "here too"), Label(span(1, 6, 8, file="--set"), "and here")),
            notes=("a note",),
            help="do this",
            fix=Fix(place, "xy", Applicability.SAFE),
        ),
        WARNING.at(Span("plans/x.plan", 1, 2, 2, 1), "over two lines"),
        NOTE.at(span(2, 1, 3)),
        ERROR.at(
            span(1, 6, 8, file="--set"),
            "no such key",
            fix=Fix(span(1, 6, 8, file="--set"), "x", Applicability.SAFE),
        ),
    )


def check_text(text: str, *settings: str, world_size: int | None = None) -> Checked:
    """A text as `x.plan` beside the models of the repository."""
    sources = [SourceFile(f"--set[{number}]", setting) for number, setting in enumerate(settings)]
    return check_source(SourceFile("x.plan", text), base=PLANS, settings=sources, world_size=world_size)


def codes(checked: Checked) -> list[str]:
    return [diagnostic.code.code for diagnostic in checked.diagnostics]
