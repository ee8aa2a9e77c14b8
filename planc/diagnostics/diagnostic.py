"""The types of a diagnostic. A phase returns them; only the command line prints them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from planc.outgoing import bounded_text
from planc.record import record
from planc.source import Span


class Severity(StrEnum):
    """The weight of a finding: only an error keeps a plan from running."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@record
class Label:
    """A fact about one span. Its text may quote a name of any length from a file, and is bounded."""

    span: Span
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", bounded_text(self.text))


class Applicability(StrEnum):
    """Who may apply a fix.

    A safe one keeps what the author meant; an unsafe one is for a human to weigh. One for display only is a
    template that lacks what only a human knows, and is never applied.
    """

    SAFE = "safe"
    UNSAFE = "unsafe"
    DISPLAY_ONLY = "display-only"

    @classmethod
    def of(cls, *, is_safe: bool) -> Applicability:
        """Safe or unsafe."""
        return cls.SAFE if is_safe else cls.UNSAFE


@record
class Fix:
    """A replacement of one span."""

    span: Span
    replacement: str
    applicability: Applicability

    @property
    def is_safe(self) -> bool:
        return self.applicability is Applicability.SAFE


@record
class Diagnostic:
    """One finding: constant summary in `code`, particulars in the labels.

    `primary` is where to look; `secondary` labels show what else takes part (a parameter's default, the rule
    that this one overlaps).
    """

    code: Code
    primary: Label
    secondary: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    fix: Fix | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(map(bounded_text, self.notes)))
        object.__setattr__(self, "help", None if self.help is None else bounded_text(self.help))

    @property
    def severity(self) -> Severity:
        return self.code.severity


@record
class Code:
    """A kind of finding. `code` is stable and never reused; `name` is the fault in kebab case."""

    code: str
    name: str
    summary: str
    severity: Severity = Severity.ERROR

    def at(
        self,
        span: Span,
        text: str = "",
        *,
        secondary: tuple[Label, ...] = (),
        notes: tuple[str, ...] = (),
        help: str | None = None,
        fix: Fix | None = None,
    ) -> Diagnostic:
        """A diagnostic of this code at `span`."""
        return Diagnostic(self, Label(span, text), secondary, notes, help, fix)


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether any finding is an error."""
    return any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics)


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Sort by file, line and column; findings on one span keep their order."""
    return tuple(sorted(diagnostics, key=lambda diagnostic: diagnostic.primary.span))
