"""The style guide of planc's prose holds in its code, pages and documents."""

from __future__ import annotations

from tests.prose import offences, offences_in


def test_no_text_offends_the_guide() -> None:
    """`python -m tests.prose` prints each offence with what to write instead."""
    assert list(offences([])) == []


def test_offences_are_found_outside_code() -> None:
    text = "this is no plan, and `it is no plan` stands here\nso that it goes on"
    assert [(found.line, found.advice) for found in offences_in(text, path="x.md")] == [
        (1, "write `is not a`"),
        (2, "write `so`, or `to`"),
        (2, "write `continue`, or `resume`"),
    ]
