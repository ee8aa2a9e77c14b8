"""What does not parse: one located finding, with a way out."""

from __future__ import annotations

import pytest

from planc.diagnostics import Code
from planc.source import SourceFile, Span
from planc.syntax import codes
from planc.syntax.parse import MAX_CHARACTERS, MAX_DEPTH, MAX_DIGITS, parse, parse_assignment
from tests.syntax.reading import covered, parsed, refused


@pytest.mark.parametrize(
    ("text", "code", "place", "help"),
    [
        ("k = 'x'", "P101", "'", "double quotes"),
        ("k = 1;", "P101", ";", "comma"),
        ("k = a/b.c", "P102", ".", 'the path in quotes: `"a/b.c"`'),
        ('k = "x', "P101", '"', "close it"),
        ('k = "x\n', "P101", '"', "close it"),
        ("k = ٣", "P101", "٣", "ASCII"),
        ("k = 1٣", "P101", "٣", "ASCII"),
        ("é = 1", "P101", "é", "ASCII"),
        ("k = +1", "P102", "+", None),
        ("k = .5", "P102", ".", "number"),
        ("k =", "P103", "", None),
        ("k = \nl = 2", "P102", "\n", "expected"),
        ("k 2", "P102", "2", "key = value"),
        ("k = 1 2", "P102", "2", "end of line"),
        ("k = 1 a b = 2", "P102", "b", "end of line"),
        ("k = 1,, l = 2", "P102", ",", None),
        (", k = 1", "P102", ",", None),
        ("b { , }", "P102", ",", None),
        ("f = g(,)", "P102", ",", None),
        ("f = [,]", "P102", ",", None),
        ("f = [1 2]", "P102", "2", "`,`"),
        ("}", "P109", "}", "remove it"),
        ("b { ) }", "P102", ")", None),
        ("param x = 1", "P102", "=", "expected `:`"),
        ("param x: int", "P103", "", None),
        ("param x: int(1) = 1", "P102", ")", "`..`"),
        ('[] -> a', "P102", "]", "expected string"),
        ('"a" = 1', "P102", "=", '`"a" -> action`'),
        ('"a" -> "b"', "P102", '"b"', "expected name"),
        ("override auto", "P103", "", None),
        ("b on { }", "P102", "{", "expected name"),
        ("b ontp { }", "P102", "ontp", None),
        ('import "x" asx', "P102", "asx", "`as`"),
        ("b\n{ }", "P102", "{", None),
        ("a.b", "P103", "", None),
        ("extends x", "P102", "x", "string"),
        ('import "x.plan"\n', "P102", "\n", "as"),
        ("use\n", "P102", "\n", "name"),
    ],
)  # fmt: skip
def test_a_syntax_error_is_one_finding_at_its_place(
    text: str, code: str, place: str, help: str | None
) -> None:
    problem = refused(text)
    assert problem.code.code == code
    assert covered(text + "\n", problem.primary.span).strip() == place.strip()
    if help is not None:
        assert problem.help is not None
        assert help in problem.help


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("b {\n  a = 1\n", 1, 3),
        ("a = f(1,\n2", 1, 6),
        ("a = [[1], [2\n", 1, 11),
        ('"x" -> f("}"', 1, 9),
        ("a = 1\nb { # }\n", 2, 3),
    ],
)
def test_an_open_bracket_is_shown_where_it_opens(text: str, line: int, column: int) -> None:
    problem = refused(text)
    assert problem.code is codes.UNCLOSED
    assert problem.primary.span == Span("x.plan", line, column, line, column + 1)


FORBIDDEN = {
    "NUL": "\0",
    "escape": "\x1b",
    "lone carriage return": "\r",
    "C1 control": "\x9b",
    "byte-order mark": "\ufeff",
    "soft hyphen": "\u00ad",
    "zero-width space": "\u200b",
    "zero-width joiner": "\u200d",
    "right-to-left override": "\u202e",
    "right-to-left isolate": "\u2067",
    "Arabic letter mark": "\u061c",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "tag": "\U000e0041",
    "half a surrogate pair": "\ud800",
}


@pytest.mark.parametrize("character", FORBIDDEN.values(), ids=FORBIDDEN)
@pytest.mark.parametrize("around", ["{}k = 1", 'k = "a{}b"', "k = 1 # a{}b\n", "k{} = 1", "k = 1\n{}"])
def test_a_character_that_misleads_a_reader_is_refused_everywhere(character: str, around: str) -> None:
    text = around.format(character)
    problem = refused(text)
    assert problem.code is codes.NOT_TEXT
    before = text[: text.index(character)]
    assert (problem.primary.span.line, problem.primary.span.column) == (
        before.count("\n") + 1,
        len(before.rpartition("\n")[2]) + 1,
    )
    assert f"U+{ord(character):04X}" in problem.primary.text


def test_other_unicode_is_welcome_in_strings_and_comments() -> None:
    assert len(parsed('k = "数据/ä 🙂"  # Größe ≤ 3').statements) == 1


def test_a_file_may_be_as_large_as_the_budget() -> None:
    assert parsed("#" * MAX_CHARACTERS).statements == ()


def test_a_larger_file_is_refused() -> None:
    assert refused("#" * (MAX_CHARACTERS + 1)).code is codes.TOO_LARGE


def nested(depth: int) -> str:
    return f"k = {'[' * depth}1{']' * depth}"


def test_nesting_as_deep_as_the_budget_parses() -> None:
    assert len(parsed(nested(MAX_DEPTH)).statements) == 1


@pytest.mark.parametrize("text", [nested(MAX_DEPTH + 1), "b { " * (MAX_DEPTH + 1), "[" * 100_000])
def test_deeper_nesting_is_refused_at_the_bracket(text: str) -> None:
    problem = refused(text)
    assert problem.code is codes.TOO_DEEP
    assert covered(text, problem.primary.span) in "[{"


def test_brackets_in_strings_and_comments_do_not_nest() -> None:
    brackets = "[" * (MAX_DEPTH + 1)
    assert len(parsed(f'k = "{brackets}" # {brackets}').statements) == 1


@pytest.mark.parametrize("text", ["9" * 5000, "1." + "0" * 5000, "1e" + "9" * 5000, "1_" * 50 + "1"])
def test_an_endless_number_is_refused(text: str) -> None:
    problem = refused(f"k = {text}")
    assert problem.code is codes.NUMBER_TOO_LONG
    assert str(MAX_DIGITS) in problem.primary.text


@pytest.mark.parametrize("text", ['k = "{}"', "k = 1 # {}", "k = a{}"])
def test_digits_are_counted_in_numbers_only(text: str) -> None:
    assert len(parsed(text.format("9" * 100)).statements) == 1


@pytest.mark.parametrize(
    ("text", "code", "column"),
    [
        ("", "P103", 1),
        ("=", "P102", 1),
        ("a=", "P103", 3),
        ("a", "P103", 2),
        (".a=1", "P102", 1),
        ("a.=1", "P102", 3),
        ("a=1 b c", "P102", 7),
        ("a=1\n", "P102", 4),
        ("a\n=1", "P102", 2),
        ("a=1,b=2", "P102", 4),
        ("a = models/x.y", "P102", 13),
        ('a="x', "P101", 3),
        ("a=1;rm", "P101", 4),
        ("{a=1}", "P102", 1),
    ],
)
def test_a_malformed_assignment_says_how_one_is_written(text: str, code: str, column: int) -> None:
    assignment, problems = parse_assignment(SourceFile("--set", text))
    assert assignment is None
    (problem,) = problems
    assert (problem.code.code, problem.primary.span.column) == (code, column)
    assert "name=value" in (problem.help or "")


@pytest.mark.parametrize(
    ("text", "code"), [('a="\ud800"', codes.NOT_TEXT), ("a=" + "9" * 5000, codes.NUMBER_TOO_LONG)]
)
def test_the_budgets_hold_for_assignments(text: str, code: Code) -> None:
    _, (problem,) = parse_assignment(SourceFile("--set", text))
    assert problem.code is code


def test_codes_are_unique() -> None:
    assert len({code.code for code in codes.CODES}) == len(codes.CODES)


def test_findings_name_the_source() -> None:
    _, (problem,) = parse(SourceFile("folder/y.plan", "}"))
    assert problem.primary.span.file == "folder/y.plan"
