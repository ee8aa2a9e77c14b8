"""Every form in which findings leave planc for a program, registered here in one tuple.

The form for people is `planc.diagnostics.human`: it depends on the terminal, these do not.
"""

from __future__ import annotations

from collections.abc import Callable

from planc.diagnostics.github import render_github
from planc.diagnostics.gitlab import render_gitlab
from planc.diagnostics.machine import render_concise, render_json, render_json_lines
from planc.diagnostics.report import Report
from planc.diagnostics.sarif import render_sarif
from planc.record import record


@record
class Format:
    """A name for `--output-format`, and the function that gives the whole document."""

    name: str
    render: Callable[[Report], str]


def _render_junit(report: Report) -> str:
    from planc.diagnostics.junit import render_junit  # of XML, which no other form should wait for

    return render_junit(report)


FORMATS: tuple[Format, ...] = (
    Format("concise", lambda report: render_concise(report.diagnostics)),
    Format("json", lambda report: render_json(report.diagnostics)),
    Format("json-lines", lambda report: render_json_lines(report.diagnostics)),
    Format("github", render_github),
    Format("gitlab", render_gitlab),
    Format("junit", _render_junit),
    Format("sarif", render_sarif),
)
