"""The lexer and the TextMate grammar, held against `grammar/plan.lark` and every plan that ships."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark.lexer import PatternStr, TerminalDef
from pygments.token import Error, Keyword, Name, Number, Operator, Punctuation, String, Token, Whitespace

from planc.highlight import rules
from planc.highlight.pygments import TOKENS, PlanLexer
from planc.highlight.rules import CONSTANTS, OPENING_KEYWORDS, Kind
from planc.syntax.grammar import parser
from tests.plans import FULL, PLANS

ROOT = Path(__file__).parents[2]
TEXTS = {
    **{path.name: path.read_text() for path in sorted(PLANS.rglob("*.plan"))},
    "full": FULL,
    "every statement": """\
extends "base/h100.plan"
import "presets/llama.plan" as llama
param size: int(1 .. 8) = 2   # a range
param is_fast: bool = true
override llama.reshard = false
mesh { tp = size, dp_shard = -2_000 }
tensor_parallel on tp {
  use llama.sequence_parallel
  auto
  override ["a", "b"] -> rowwise(output = Shard(-1))
}
tensor_parallel "name" { "x" -> colwise }
fsdp on dp_shard, cp { }
optimizer { kind = adamw(lr = 1.2e-2, betas = [0.9, 0.95]) }
checkpoint { keep_last = 3, export "hf" { when = end, dtype = bfloat16 } }
expect { peak_memory < 60 GiB, world_size == 4, x >= 1.5e3s }
""",
}


def terminals() -> dict[str, TerminalDef]:
    return {terminal.name: terminal for terminal in parser().terminals}


def tokens(text: str) -> list[tuple[object, str]]:
    """What is left of a text without space, as Pygments sees it."""
    found = PlanLexer(stripnl=False, ensurenl=False).get_tokens(text)
    return [(kind, value) for kind, value in found if kind is not Whitespace]


def test_keywords_are_those_of_the_grammar() -> None:
    # Some are patterns that end where the word does.
    patterns = (terminal.pattern.value for terminal in terminals().values())
    words = {match[1] for pattern in patterns if (match := re.fullmatch(r"([a-z]+)(\(\?!.*\))?", pattern))}
    assert words == {*OPENING_KEYWORDS, *CONSTANTS}


def test_signs_of_the_grammar_are_operators_or_punctuation() -> None:
    signs = {
        terminal.pattern.value
        for terminal in terminals().values()
        if isinstance(terminal.pattern, PatternStr)
        and not terminal.pattern.value.isalpha()
        # A unit, which only follows a number.
        and terminal.pattern.value != "%"
    } | set(re.findall(r"[=!<>]+", terminals()["OPERATOR"].pattern.to_regexp().replace("(?:", "")))
    assert {"->", "..", "==", "<", "{", "]"} <= signs
    for sign in signs:
        ((kind, value),) = tokens(sign)
        assert value == sign
        assert kind in (Operator, Punctuation)


@pytest.mark.parametrize(
    ("terminal", "kind"),
    [
        ("STRING", String.Double),
        ("COMMENT", Token.Comment.Single),
        ("INT", Number.Integer),
        ("FLOAT", Number.Float),
        ("NAME", Name),
    ],
)
def test_whatever_is_one_terminal_is_one_token(terminal: str, kind: object) -> None:
    # Pygments takes a carriage return for the end of a line before any lexer sees it.
    alphabet = st.characters(exclude_characters="\r", codec="utf-8")
    pattern = terminals()[terminal].pattern.to_regexp()

    @settings(max_examples=60, deadline=None, database=None)
    @given(st.from_regex(pattern, fullmatch=True, alphabet=alphabet))
    def check(text: str) -> None:
        expected = Keyword.Constant if text in CONSTANTS else kind
        assert tokens(text) == [(expected, text)]

    check()


def test_words_are_keywords_only_where_the_grammar_has_them() -> None:
    assert tokens("use = on\nimport = 3\n")[0] == (Name.Attribute, "use")
    assert (Name, "on") in tokens("use = on\nimport = 3\n")
    assert (Keyword, "use") in tokens("use llama.x")


@pytest.mark.parametrize("name", TEXTS)
def test_no_plan_has_a_token_that_the_lexer_does_not_know(name: str) -> None:
    found = tokens(TEXTS[name])
    assert [value for kind, value in found if kind is Error] == []
    assert len({kind for kind, _ in found}) > 4


def test_every_kind_is_seen() -> None:
    assert {kind for kind, _ in tokens(TEXTS["every statement"])} == set(TOKENS.values())


def test_no_token_is_lost() -> None:
    for text in TEXTS.values():
        lexed = PlanLexer(stripnl=False, ensurenl=False).get_tokens(text)
        assert "".join(value for _, value in lexed) == text


def test_text_that_is_no_plan_is_an_error() -> None:
    assert (Error, "$") in tokens("mesh { tp = $ }")


def scopes(line: str, patterns: list[dict[str, object]]) -> Iterator[tuple[str, str]]:
    """(scope, text) of one line as an editor finds them: the leftmost match, of those the first pattern's."""
    position = 0
    while position < len(line):
        found = [
            (match.start(), number, match)
            for number, pattern in enumerate(patterns)
            if (match := re.compile(str(pattern["match"])).search(line, position))
        ]
        if not found:
            return
        _, number, match = min(found, key=lambda one: one[:2])
        captures = patterns[number].get("captures")
        if isinstance(captures, dict):
            yield from ((captures[key]["name"], match[int(key)]) for key in captures)
        else:
            yield str(patterns[number]["name"]), match[0]
        position = match.end()


@pytest.mark.parametrize("name", TEXTS)
def test_editors_see_what_pygments_sees(name: str) -> None:
    patterns = json.loads(rules.FILE.read_text())["patterns"]
    by_scope = {f"{kind}.plan": TOKENS[kind] for kind in Kind}
    seen = [
        (by_scope[scope], text) for line in TEXTS[name].split("\n") for scope, text in scopes(line, patterns)
    ]
    assert seen == tokens(TEXTS[name])


def test_the_textmate_grammar_is_the_one_made_from_the_rules(
    match_golden: Callable[[Path, str], None],
) -> None:
    match_golden(rules.FILE, rules.grammar_json())


def test_the_package_announces_the_lexer() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["pygments.lexers"]["plan"].partition(":")
    assert getattr(import_module(module), name) is PlanLexer
