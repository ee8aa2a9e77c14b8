"""Suppression comments, and the comments that planc finds at all."""

from __future__ import annotations

import pytest
from findings import check_text, codes

from planc.api import Checked
from planc.diagnostics import Severity
from planc.diagnostics.fixes import apply_fixes
from planc.source import SourceFile
from planc.syntax.tokens import comments

PLAN = """\
model {
  hf = "models/tiny-llama"
}
mesh {
  dp_shard = 2
}
fsdp on dp_shard {TRAILING
ABOVE  param_dtype = float16LINE
  "model.layers.*" -> unit
}
data {
  source = text("data/#1 # planc: ignore[P803] in a string.txt")
  sequence_length = 256
  micro_batch = 4
}
optimizer {
  kind = adamw(lr = 1e-3)
}
train {
  steps = 10
}
"""
"""Gives P803, a warning, on the line of float16."""

IGNORE = "# planc: ignore[P803] the loss is scaled elsewhere"


def text_with(*, above: str = "", line: str = "", trailing: str = "", plan: str = PLAN) -> str:
    return plan.replace("ABOVE", above).replace("LINE", line).replace("TRAILING", trailing)


def check(*, above: str = "", line: str = "", trailing: str = "") -> Checked:
    return check_text(text_with(above=above, line=line, trailing=trailing))


def test_the_plan_has_a_warning_and_strings_suppress_nothing() -> None:
    checked = check()
    assert codes(checked) == ["P803"]
    assert checked.diagnostics[0].severity is Severity.WARNING


@pytest.mark.parametrize(
    "line", [f"  {IGNORE}", "#planc:ignore[P803]: why", "  ## planc :  ignore [ P803 ] -- why", "\t" + IGNORE]
)
def test_comment_at_the_end_of_the_line_suppresses(line: str) -> None:
    assert codes(check(line=line)) == []


@pytest.mark.parametrize("above", [f"  {IGNORE}\n", f"  {IGNORE}\n  # as agreed\n", f"  # so:\n{IGNORE}\n"])
def test_comment_alone_above_the_line_suppresses(above: str) -> None:
    assert codes(check(above=above)) == []


@pytest.mark.parametrize("where", [{"above": f"  {IGNORE}\n\n"}, {"trailing": f"  {IGNORE}"}])
def test_comment_elsewhere_suppresses_nothing(where: dict[str, str]) -> None:
    assert sorted(codes(check(**where))) == ["P803", "P903"]


def test_suppressed_plan_compiles_to_the_same_graph() -> None:
    assert check(line=f"  {IGNORE}").graph == check().graph is not None


def test_several_codes_share_a_comment() -> None:
    plan = PLAN.replace('  "model.layers.*" -> unit\n', "").replace(
        "fsdp on dp_shard {TRAILING\nABOVE", "ABOVE"
    )
    one_line = plan.replace(
        "  param_dtype = float16LINE\n}", "fsdp on dp_shard { param_dtype = float16 }LINE"
    )
    assert sorted(codes(check_text(text_with(plan=one_line)))) == ["P502", "P803"]
    assert codes(check_text(text_with(line="  # planc: ignore[P803, P502] a toy", plan=one_line))) == []


@pytest.mark.parametrize(
    ("comment", "label"),
    [
        ("# planc: ignore", "the code in brackets is missing"),
        ("# planc: ignore[] why", "the code in brackets is missing"),
        ("# planc: ignore[,] why", "the code in brackets is missing"),
        ("# planc: ignore[P803 why", "the code in brackets is missing"),
        ("# planc: ignore[P803]", "the reason is missing"),
        ("# planc: ignore[P803] --", "the reason is missing"),
        ("# planc: ignroe[P803] why", "the only form is `ignore[CODE] reason`"),
        ("# planc: ignored[P803] why", "the only form is `ignore[CODE] reason`"),
        ("# planc:", "the only form is `ignore[CODE] reason`"),
        ("# planc: ignore[p803] why", "unknown code `p803`"),
        ("# planc: ignore[P803, float16-unscaled] why", "unknown code `float16-unscaled`"),
    ],
)
def test_malformed_comment_is_an_error_and_suppresses_nothing(comment: str, label: str) -> None:
    checked = check(line=f"  {comment}")
    assert sorted(codes(checked)) == ["P803", "P901"]
    (malformed,) = (found for found in checked.diagnostics if found.code.code == "P901")
    assert malformed.primary.text == label
    assert not checked.ok and checked.graph is None


@pytest.mark.parametrize("comment", ["# planck: ignore", "# see planc: ignore[P803]", "# plan: x", "# planc"])
def test_other_comments_are_prose(comment: str) -> None:
    assert codes(check(line=f"  {comment}")) == ["P803"]


def test_error_is_not_suppressed_and_the_attempt_is_one_too() -> None:
    text = text_with(line="  # planc: ignore[P803] why").replace(
        "steps = 10", "stepz = 1  # planc: ignore[P202] why"
    )
    assert codes(check_text(text)) == ["P202", "P902"]


def test_suppressed_error_points_at_the_code() -> None:
    checked = check(line="  # planc: ignore[P803, P402] why")
    (found,) = (one for one in checked.diagnostics if one.code.code == "P902")
    line = text_with(line="  # planc: ignore[P803, P402] why").split("\n")[found.primary.span.line - 1]
    assert line[found.primary.span.column - 1 : found.primary.span.end_column - 1] == "P402"


def test_unused_is_not_judged_where_an_error_may_hide_the_finding() -> None:
    text = text_with(trailing="  # planc: ignore[P502] why").replace("steps = 10", "stepz = 10")
    assert codes(check_text(text)) == ["P202"]


def test_comment_in_the_plan_hides_no_finding_on_a_setting() -> None:
    checked = check_text(text_with(line=f"  {IGNORE}"), "fsdp.param_dtype=float16")
    assert [(found.code.code, found.primary.span.file) for found in checked.diagnostics] == [
        ("P803", "--set[0]"),
        ("P903", "x.plan"),
    ]


@pytest.mark.parametrize(
    ("where", "left"),
    [
        (
            {"line": "  # planc: ignore[P803] why", "trailing": "   # planc: ignore[P502] why"},
            "fsdp on dp_shard {\n",
        ),
        ({"above": "  # planc: ignore[P802] why\n"}, "fsdp on dp_shard {\n  param_dtype"),
        ({"line": "  # planc: ignore[P802,P803] why"}, "float16  # planc: ignore[P803] why\n"),
    ],
    ids=["trailing", "alone", "one of two"],
)
def test_fix_removes_what_is_not_needed(where: dict[str, str], left: str) -> None:
    source = SourceFile("x.plan", text_with(**where))
    diagnostics = check(**where).diagnostics
    assert apply_fixes(source, diagnostics, with_unsafe=False).applied == ()
    fixed = apply_fixes(source, diagnostics, with_unsafe=True).text
    assert left in fixed
    assert "P903" not in codes(check_text(fixed))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("a = 1 # b", [("# b", 7, False)]),
        ("  # b  \r\n", [("# b", 3, True)]),
        ('a = "#" # "b"', [('# "b"', 9, False)]),
        ('# "a', [('# "a', 1, True)]),
        ("## a # b", [("## a # b", 1, True)]),
        ('a = "b # c', [("# c", 8, False)]),
    ],
)
def test_comments_are_found_where_the_grammar_has_them(text: str, found: list[tuple[str, int, bool]]) -> None:
    got = [(one.text, one.span.column, one.is_alone) for one in comments(SourceFile("x.plan", text))]
    assert got == found


def test_spans_of_comments_cover_their_text() -> None:
    text = text_with(above="  # one\n", line="\t# two ", trailing="# three")
    for comment in comments(SourceFile("x.plan", text)):
        span = comment.span
        assert text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1] == comment.text
