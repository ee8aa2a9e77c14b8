"""Patterns: what they match, what is wrong with them and where, and that no pattern is slow."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planc.plan import codes
from planc.plan.pattern import MAX_ALTERNATIVES, Fault, Pattern, parse_pattern
from planc.plan.resolve import MAX_PLAN_ALTERNATIVES
from planc.source import Span
from planc.syntax import ast
from tests.patience import PATIENCE_SECONDS
from tests.plan.resolving import TEXT, edited, faults

RUN = settings(max_examples=150, derandomize=True, deadline=None)
NAMES = (
    "model",
    "model.embed_tokens",
    "model.layers",
    *(f"model.layers.{i}.{part}" for i in (0, 1, 10) for part in ("mlp.up_proj", "self_attn.q_proj", "norm")),
    "model.norm",
    "lm_head",
)


def node(text: str) -> ast.Text:
    return ast.Text(text, Span("x.plan", 1, 1, 1, len(text) + 3))


def pattern(text: str) -> Pattern:
    found = parse_pattern(node(text))
    assert isinstance(found, Pattern), found
    return found


def wrong(text: str) -> Fault:
    found = parse_pattern(node(text))
    assert isinstance(found, tuple)
    return found


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("lm_head", ["lm_head"]),
        ("*", ["model", "lm_head"]),
        ("model.*", ["model.embed_tokens", "model.layers", "model.norm"]),
        ("*.norm", ["model.norm"]),
        ("**.norm", [f"model.layers.{i}.norm" for i in (0, 1, 10)] + ["model.norm"]),
        ("**", list(NAMES)),
        ("**.**", list(NAMES)),
        ("model.**", [name for name in NAMES if name.startswith("model")]),
        ("**.model", ["model"]),
        ("model.layers.*.mlp.*", [f"model.layers.{i}.mlp.up_proj" for i in (0, 1, 10)]),
        ("model.layers.1.norm", ["model.layers.1.norm"]),
        ("model.layers.1*.norm", ["model.layers.1.norm", "model.layers.10.norm"]),
        ("model.layers.{0..1}.norm", ["model.layers.0.norm", "model.layers.1.norm"]),
        ("model.layers.{0,10}.norm", ["model.layers.0.norm", "model.layers.10.norm"]),
        ("model.layers.{ 0, 10 }.norm", ["model.layers.0.norm", "model.layers.10.norm"]),
        ("**.{up,q}_{proj,x}", [n for n in NAMES if n.endswith("_proj")]),
        ("**.{mlp,self_attn}.*", [n for n in NAMES if n.endswith("_proj")]),
        ("{model,lm}*", ["model", "lm_head"]),
        ("*_*", ["lm_head"]),
        ("*m*h*d*", ["lm_head"]),
        ("mod", []),
        ("model.layers.{2..9}.norm", []),
        ("MODEL", []),
    ],
)
def test_a_pattern_selects(text: str, matched: list[str]) -> None:
    assert list(pattern(text).select(NAMES)) == matched


@pytest.mark.parametrize(
    ("text", "start", "end", "reason"),
    [
        ("", 0, 1, "name is missing"),
        ("a..b", 2, 3, "name is missing"),
        (".a", 0, 1, "name is missing"),
        ("a.", 2, 3, "name is missing"),
        ("a.{b", 2, 3, "never closed"),
        ("a.b}", 3, 4, "no brace is open here"),
        ("a}.{b", 1, 2, "no brace is open here"),
        ("a.{b,{c}}", 5, 6, "can't nest"),
        ("a.{b,,c}", 5, 6, "empty alternative"),
        ("a.{,c}", 3, 4, "empty alternative"),
        ("a.{c,}", 5, 6, "empty alternative"),
        ("a.{ }", 4, 5, "empty alternative"),
        ("a.{}", 3, 4, "empty alternative"),
        ("a.b**", 2, 5, "must be a whole part"),
        ("a.***", 2, 5, "must be a whole part"),
        ("a.{*,b}*", 2, 8, "must be a whole part"),
        ("a.b c", 3, 4, "` ` can't be part of"),
        ("a.b[0]", 3, 4, "`[` can't be part of"),
        ("a.{b.c,d}", 4, 5, "`.` can't be part of"),
        ("a.{b/c,d}", 4, 5, "`/` can't be part of"),
        ("é", 0, 1, "`é` can't be part of"),
        ("a." * 64 + "b", 0, 129, "more than 64 parts"),
        ("a.{\u0660,\u0661}", 3, 4, "can't be part of"),
        ("{\u0660..\u0663}", 1, 5, "two numbers"),
        ("{0..3,5}", 1, 7, "two numbers"),
        ("{0...3}", 1, 6, "two numbers"),
        ("{-1..3}", 1, 6, "two numbers"),
        ("{00..03}", 1, 7, "two numbers"),
        ("{0..9999999}", 1, 11, "10000000 numbers"),
        (f"{{0..{'9' * 5000}}}", 1, 5004, "two numbers"),
        ("{3..1}", 1, 5, "must ascend: `{1..3}`"),
        ("{0..999999}", 1, 10, "more than 10000"),
        ("{a,b,a}", 0, 7, "are the same"),
        ("{a,ab}{bc,c}", 0, 12, "are the same"),
        ("x." + "{a,b}" * 30, 2, 152, "more than"),
        (".".join(["{0..9999}"] * 2), 0, 19, "more than"),
    ],
)
def test_a_malformed_pattern_is_faulted_at_its_place(text: str, start: int, end: int, reason: str) -> None:
    found = wrong(text)
    assert found[:2] == (start, end)
    assert reason in found[2]


def test_a_range_may_be_as_long_as_the_budget() -> None:
    assert pattern(f"{{1..{MAX_ALTERNATIVES}}}").num_alternatives == MAX_ALTERNATIVES


def test_the_alternatives_of_a_whole_plan_have_a_budget() -> None:
    """One finding where it is passed, none for each of the thousand patterns after it."""
    many = MAX_PLAN_ALTERNATIVES // 5_000
    rules = "\n".join(f'"x{i}.{{1..5000}}" -> colwise' for i in range(many + 20))
    found = faults(edited(("tensor_parallel on tp {", f"tensor_parallel on tp {{\n{rules}")))
    assert [problem.code for problem in found] == [codes.BAD_PATTERN]
    first_rule = TEXT[: TEXT.index("tensor_parallel on tp")].count("\n") + 2
    assert found[0].primary.span.line == first_rule + many - 1


def expanded(text: str) -> Iterator[str]:
    """A pattern's readings without braces, one by one."""
    brace = re.search(r"\{([^{}]*)\}", text)
    if brace is None:
        yield text
        return
    low, dots, high = brace.group(1).partition("..")
    choices = [str(n) for n in range(int(low), int(high) + 1)] if dots else brace.group(1).split(",")
    for choice in choices:
        yield from expanded(text[: brace.start()] + choice + text[brace.end() :])


def fits(glob: str, part: str) -> bool:
    if not glob:
        return not part
    if glob[0] == "*":
        return any(fits(glob[1:], part[i:]) for i in range(len(part) + 1))
    return bool(part) and part[0] == glob[0] and fits(glob[1:], part[1:])


def runs(globs: Sequence[str], parts: Sequence[str]) -> bool:
    if not globs:
        return not parts
    if globs[0] == "**":
        return any(runs(globs[1:], parts[i:]) for i in range(len(parts) + 1))
    return bool(parts) and fits(globs[0], parts[0]) and runs(globs[1:], parts[1:])


def reference(text: str, name: str) -> bool:
    """Every reading tried against every split: slow, and too simple to be wrong."""
    return any(runs(reading.split("."), name.split(".")) for reading in expanded(text))


PARTS = st.text("ab0", min_size=1, max_size=3) | st.integers(0, 3).map(str)
SHOWN_NAMES = st.lists(PARTS, min_size=1, max_size=5).map(".".join)
CHOICES = st.lists(
    st.text("ab*", min_size=1, max_size=2).filter(lambda t: "**" not in t), min_size=1, max_size=3
)
BRACES = CHOICES.map(lambda choices: f"{{{','.join(choices)}}}") | st.just("{0..3}")
PIECES = st.sampled_from(["a", "b", "ab", "*", ""])
SEGMENTS = st.one_of(
    st.sampled_from(["**", "*", "a", "b", "a*", "*b", "a*b*"]), st.tuples(PIECES, BRACES, PIECES).map("".join)
)
PATTERNS = (
    st.lists(SEGMENTS, min_size=1, max_size=5)
    .map(".".join)
    .filter(lambda text: isinstance(parse_pattern(node(text)), Pattern))
)


@RUN
@given(PATTERNS, st.lists(SHOWN_NAMES, max_size=12))
def test_matching_agrees_with_a_slow_matcher(text: str, names: list[str]) -> None:
    assert list(pattern(text).select(names)) == [name for name in names if reference(text, name)]


def only_choice(text: str, start: int, end: int, choice: str) -> str:
    """The pattern with one choice of one brace alone."""
    opened, closed = text.rindex("{", 0, start), text.index("}", end)
    return text[:opened] + choice + text[closed + 1 :]


@RUN
@given(PATTERNS, st.lists(SHOWN_NAMES, max_size=8))
def test_unmatched_choices_agree_with_a_slow_matcher(text: str, names: list[str]) -> None:
    parsed = pattern(text)
    expected = {
        (choice.start, choice.end, choice.text)
        for segment in parsed.segments
        if len(segment.alternatives) > 1
        for option in segment.alternatives
        for choice in option.choices
        if not any(
            reference(only_choice(text, choice.start, choice.end, choice.text), name) for name in names
        )
    }
    found = {(one.start, one.end, choice.text) for one in parsed.unmatched(names) for choice in one.choices}
    assert found == expected


def test_a_choice_is_used_by_any_of_a_segment_s_braces() -> None:
    """`q_norm` and `k_proj` are no modules, yet every choice has one."""
    assert list(pattern("{q,k}_{proj,norm}").unmatched(["q_proj", "k_norm"])) == []
    (unused,) = pattern("{q,v}_{proj,norm}").unmatched(["q_proj", "q_norm"])
    assert (unused.text, unused.start, unused.end) == ("v_proj", 0, 17)


def test_a_choice_that_another_covers_is_used() -> None:
    assert list(pattern("{q*,q_proj}").unmatched(["q_proj"])) == []


def test_numbers_of_a_range_are_unmatched_one_by_one() -> None:
    found = list(pattern("layers.{0..3}").unmatched(["layers.0", "layers.2"]))
    assert [(one.text, one.is_range, one.start, one.end) for one in found] == [
        ("1", True, 8, 12),
        ("3", True, 8, 12),
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("*a*a*a*a*b", "a" * 50_000),
        ("*" + "a*" * 200 + "b", "a" * 50_000),
        ("**.a.**.a.**.a.**.b", ".".join("a" * 20_000)),
        ("**.*.**.*.**.b", ".".join("a" * 20_000)),
        ("**." * 60 + "b", ".".join("a" * 20_000)),
    ],
)
def test_a_pathological_name_takes_linear_time(text: str, name: str) -> None:
    parsed = pattern(text)
    start = time.process_time()
    assert not parsed.matches(name)
    assert time.process_time() - start < PATIENCE_SECONDS


@pytest.mark.parametrize("text", ["**.*a*a*a*b", "**.**.**.x", "**.{mlp,self_attn}.**.x", "**.{0..999}.**.x"])
def test_fifty_thousand_names_are_matched(text: str) -> None:
    names = [f"model.layers.{i}.mlp.experts.{j}.aaaaaaaa_proj" for i in range(500) for j in range(100)]
    parsed = pattern(text)
    start = time.process_time()
    assert parsed.select(names) == ()
    assert list(parsed.unmatched(names)) == [
        option for segment in parsed.segments for option in segment.alternatives if option.choices
    ]
    assert time.process_time() - start < PATIENCE_SECONDS


def test_a_part_knows_its_offset() -> None:
    assert pattern("a.{b.c,d}".replace(".c", "")).parts == ((0, "a"), (2, "{b,d}"))
    assert pattern("model.{0..3}.x").parts == ((0, "model"), (6, "{0..3}"), (13, "x"))


def test_a_prefix_of_a_pattern_can_be_matched() -> None:
    parsed = pattern("model.layers.{0..1}.mlp.upp_proj")
    assert parsed.select(["model.layers.0.mlp"], num_segments=4)
    assert not parsed.select(["model.layers.2.mlp"], num_segments=4)
    assert not parsed.select(["model.layers.0"], num_segments=4)
