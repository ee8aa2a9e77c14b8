"""Fixes applied to a text."""

from __future__ import annotations

import re

from findings import check_text, codes, edit

from planc.diagnostics import Applicability, Diagnostic
from planc.diagnostics.fixes import apply_fixes, is_fixable
from planc.diagnostics.pages import page, pages
from planc.source import SourceFile


def fixed(text: str, *diagnostics: Diagnostic, with_unsafe: bool = False) -> tuple[str, int]:
    result = apply_fixes(SourceFile("x.plan", text), diagnostics, with_unsafe=with_unsafe)
    return result.text, len(result.applied)


def test_fixes_apply_in_any_order_wherever_they_stand() -> None:
    last, first = edit(2, 1, 3, "CCCC"), edit(1, 2, 3, "")
    assert fixed("ab\ncd\n", last, first) == ("a\nCCCC\n", 2)


def test_unsafe_fixes_wait_until_wanted() -> None:
    unsafe = edit(1, 1, 2, "A", applicability=Applicability.UNSAFE)
    assert fixed("ab", unsafe) == ("ab", 0)
    assert fixed("ab", unsafe, with_unsafe=True) == ("Ab", 1)


def test_a_template_is_never_applied() -> None:
    template = edit(1, 1, 2, "A", applicability=Applicability.DISPLAY_ONLY)
    assert fixed("ab", template) == ("ab", 0)
    assert fixed("ab", template, with_unsafe=True) == ("ab", 0)


def test_of_two_that_overlap_the_first_is_applied() -> None:
    assert fixed("abcd", edit(1, 2, 4, "X"), edit(1, 1, 3, "Y")) == ("Ycd", 1)


def test_neighbours_do_not_overlap() -> None:
    assert fixed("abcd", edit(1, 1, 3, "X"), edit(1, 3, 5, "Y")) == ("XY", 2)


def test_one_fix_of_two_findings_is_applied_once() -> None:
    assert fixed("abcd", edit(1, 1, 3, "X"), edit(1, 1, 3, "X")) == ("Xcd", 2)


def test_two_insertions_at_one_place_are_not_both_made() -> None:
    assert fixed("ab", edit(1, 2, 2, "X"), edit(1, 2, 2, "Y")) == ("aXb", 1)


def test_fixes_of_other_sources_are_left_alone() -> None:
    result = apply_fixes(SourceFile("y.plan", "ab"), [edit(1, 1, 2, "X")], with_unsafe=True)
    assert (result.text, result.applied) == ("ab", ())


def test_line_ends_stay_as_they_are() -> None:
    assert fixed("ab\r\ncd\r\n", edit(2, 1, 3, "x\ny")) == ("ab\r\nx\r\ny\r\n", 1)


def test_characters_beyond_ascii_are_one_column_each() -> None:
    assert fixed("数🎉b", edit(1, 3, 4, "X")) == ("数🎉X", 1)


def test_text_without_a_line_end_gets_none() -> None:
    assert fixed("a\nb", edit(2, 1, 2, "X")) == ("a\nX", 1)


EXAMPLES = [
    (code, text)
    for code in pages()
    for text in re.findall(r"^```plan fails\n(.*?)^```$", page(code) or "", re.MULTILINE | re.DOTALL)
    if not text.startswith("#")
]


def test_the_fixes_of_a_page_rid_its_example_of_the_finding() -> None:
    left = []
    for code, text in EXAMPLES:
        found = check_text(text)
        if any(is_fixable(one, with_unsafe=True) for one in found.diagnostics):
            result = apply_fixes(SourceFile("x.plan", text), found.diagnostics, with_unsafe=True)
            left.append((code, codes(check_text(result.text))))
            assert code in codes(found)
    assert [code for code, others in left if code in others] == []
    assert len(left) >= 5
