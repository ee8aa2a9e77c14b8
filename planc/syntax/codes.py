"""Codes of the syntax phase."""

from planc.diagnostics import Code

UNEXPECTED_CHARACTER = Code("P101", "unexpected-character", "unexpected character")
UNEXPECTED_TOKEN = Code("P102", "unexpected-token", "unexpected token")
UNEXPECTED_END = Code("P103", "unexpected-end", "unexpected end of file")
TOO_DEEP = Code("P104", "nesting-too-deep", "nesting is too deep")
TOO_LARGE = Code("P105", "file-too-large", "the file is too large")
NOT_TEXT = Code("P106", "not-text", "the file is not plain UTF-8 text")
NUMBER_TOO_LONG = Code("P107", "number-too-long", "the number has too many digits")
UNCLOSED = Code("P108", "unclosed-bracket", "unclosed bracket")
UNOPENED = Code("P109", "unopened-bracket", "unmatched closing bracket")
TOO_MANY_TOKENS = Code("P110", "too-many-tokens", "the plan has too many tokens")

CODES = (
    UNEXPECTED_CHARACTER,
    UNEXPECTED_TOKEN,
    UNEXPECTED_END,
    TOO_DEEP,
    TOO_LARGE,
    NOT_TEXT,
    NUMBER_TOO_LONG,
    UNCLOSED,
    UNOPENED,
    TOO_MANY_TOKENS,
)
