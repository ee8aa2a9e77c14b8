"""Safe fixes, wherever planc offers one: a plan checks no worse with them, and they leave the rest alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random

import pytest

from planc.api import Checked, check_source
from planc.checks.phases import phase_of
from planc.diagnostics import Diagnostic
from planc.diagnostics.fixes import apply_fixes
from planc.show.origin import values
from planc.source import SourceFile
from tests.plans import PLANS
from tests.robustness.fuzz import seeds

ROUNDS = 10
PLAN_TEXTS: Mapping[str, str] = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted(PLANS.glob("*.plan"))
}
WORD = re.compile(r"[A-Za-z_]{4,}")
RULE = re.compile(r'^  "[^"]+" -> .*$', re.MULTILINE)


@cache
def checked(text: str) -> Checked:
    return check_source(SourceFile("x.plan", text), base=PLANS)


def after_fixes(text: str) -> tuple[str, Checked, set[int]]:
    """The text as `--fix` leaves it, what is found then, and the lines that were changed."""
    found, lines = checked(text), set[int]()
    for _ in range(ROUNDS):
        fixed = apply_fixes(SourceFile("x.plan", text), found.diagnostics, with_unsafe=False)
        if not fixed.applied:
            break
        lines |= {one.fix.span.line for one in fixed.applied if one.fix is not None}
        text = fixed.text
        found = checked(text)
    return text, found, lines


def worse(text: str) -> list[str]:
    """What is found after `--fix` and was not before, but what a check could not see before and that
    does not stand where something was fixed."""
    before = checked(text)
    fixed, found, lines = after_fixes(text)
    if fixed == text:
        return []
    assert not any(is_safe(one) for one in found.diagnostics), "nothing is left to fix"
    reached = max((phase_of(one.code) for one in before.diagnostics), default=0)
    left = Counter(one.code.code for one in before.diagnostics)
    new = []
    for one in found.diagnostics:
        left[one.code.code] -= 1
        is_hidden = before.bound is None and phase_of(one.code) > reached and not named(one) & lines
        if left[one.code.code] < 0 and not is_hidden:
            new.append(f"{one.code.code} {one.primary.span} {one.primary.text}")
    return new


def named(found: Diagnostic) -> set[int]:
    return {label.span.line for label in (found.primary, *found.secondary)}


def is_safe(found: Diagnostic) -> bool:
    return found.fix is not None and found.fix.is_safe and found.fix.span.file == "x.plan"


def changes(text: str) -> Iterator[tuple[str, str, str]]:
    """Each fix that could be applied to a text: the code, what it replaces, and what it writes."""
    for one in checked(text).diagnostics:
        if one.fix is None or one.fix.span.file != "x.plan" or one.fix.applicability == "display-only":
            continue
        span, lines = one.fix.span, text.split("\n")
        if span.line == span.end_line:
            yield (
                one.code.code,
                lines[span.line - 1][span.column - 1 : span.end_column - 1],
                one.fix.replacement,
            )


@cache
def corpus() -> tuple[str, ...]:
    """Every plan of the tests, of the pages, and of those that ship."""
    return tuple(dict.fromkeys(seeds()))


@pytest.mark.slow
def test_no_safe_fix_of_the_corpus_makes_a_plan_worse() -> None:
    found = {text: worse(text) for text in corpus()}
    assert {text: new for text, new in found.items() if new} == {}


@pytest.mark.slow
def test_no_fix_of_the_corpus_replaces_a_call_with_its_arguments() -> None:
    """A value with arguments is never replaced as a whole: what it does not name would be lost."""
    num_fixes = 0
    for text in corpus():
        for code, old, new in changes(text):
            num_fixes += 1
            assert "(" not in old and "=" not in old, f"{code} replaces {old!r} by {new!r}"
    assert num_fixes > 20


@pytest.mark.slow
def test_a_fix_changes_no_setting_of_a_plan_that_resolves() -> None:
    """What is wrong with such a plan lies in its rules, expectations or comments."""
    num_compared = 0
    for text in corpus():
        before = checked(text)
        fixed = apply_fixes(SourceFile("x.plan", text), before.diagnostics, with_unsafe=True).text
        after = checked(fixed) if before.plan is not None and fixed != text else None
        if before.plan is not None and after is not None and after.plan is not None:
            num_compared += 1
            assert values(after.plan) == values(before.plan)
    assert num_compared > 5


def test_a_choice_is_not_made_the_same_as_another() -> None:
    text = PLAN_TEXTS["quickstart"].replace("models/tiny-llama", "models/tiny-llama4")
    wrong = text.replace("{q,k,v}_proj", "{q,k}_norm")
    (found,) = (one for one in checked(wrong).diagnostics if "{q,k}_norm" in line_of(wrong, one))
    assert found.help == "did you mean `qk_norm`?"
    assert not is_safe(found)
    assert after_fixes(wrong)[0] == wrong


def line_of(text: str, found: Diagnostic) -> str:
    return text.split("\n")[found.primary.span.line - 1]


def test_a_rule_of_another_model_stays_as_it_is() -> None:
    rules = """  "model.layers.*.mlp.gate_up_proj" -> colwise
  "model.layers.*.self_attn.qkv_proj" -> colwise
"""
    text = PLAN_TEXTS["quickstart"].replace("on tp {\n", f"on tp {{\n{rules}")
    assert [one.code.code for one in checked(text).diagnostics] == ["P203", "P203"]
    assert after_fixes(text)[0] == text


def test_a_finding_that_was_hidden_elsewhere_holds_no_fix_back() -> None:
    text = PLAN_TEXTS["quickstart"].replace("  steps = 120", "  stepz = 120").replace("tp = 2", "tp = 3")
    fixed, found, _ = after_fixes(text)
    assert "  steps = 120" in fixed
    assert found.diagnostics


def test_a_fix_that_brings_a_finding_to_its_own_line_is_for_a_person_to_weigh() -> None:
    text = PLAN_TEXTS["quickstart"].replace("dtype = float32", "dtype = torch.bfloat16")
    text = text.replace("= 1.2e-2", "= 1e-4")
    (found,) = checked(text).diagnostics
    assert found.fix is not None and not found.fix.is_safe
    assert found.notes[-1].startswith("the fix is unsafe: it would cause P714")


def slipped(text: str, random: Random) -> str:
    """A text with two keys of the keyboard mixed up in one of its words, not in a comment."""
    lines = text.split("\n")
    at = random.choice([number for number, line in enumerate(lines) if WORD.search(line.partition("#")[0])])
    word = random.choice(list(WORD.finditer(lines[at].partition("#")[0])))
    place = random.randrange(word.start(), word.end() - 1)
    line = lines[at]
    lines[at] = random.choice(
        (
            line[:place] + line[place + 1] + line[place] + line[place + 2 :],
            line[:place] + line[place + 1 :],
            line[:place] + line[place] + line[place:],
            line[:place] + random.choice("aeiklnorstx") + line[place + 1 :],
        )
    )
    return "\n".join(lines)


def with_rule_of(text: str, other: str, random: Random) -> str:
    """A text with some rules of another plan in one of its blocks."""
    rules = RULE.findall(other)
    places = [
        match.end() + 1 for match in re.finditer(r"^(?:tensor_parallel|fsdp) on .*\{$", text, re.MULTILINE)
    ]
    if not rules or not places:
        return text
    at = random.choice(places)
    copied = "\n".join(random.sample(rules, min(len(rules), random.choice((1, 1, 2, 4)))))
    return f"{text[:at]}{copied}\n{text[at:]}"


def mixed_up(seed: int) -> str:
    """A canonical plan with slips of the keyboard, with rules of another model's plan, or with both."""
    random = Random(seed)
    name = random.choice(tuple(PLAN_TEXTS))
    text = PLAN_TEXTS[name]
    kind = seed % 3
    if kind != 0:
        text = with_rule_of(text, PLAN_TEXTS[random.choice(tuple(PLAN_TEXTS))], random)
    for _ in range(random.choice((1, 1, 2)) if kind != 1 else 0):
        text = slipped(text, random)
    return text


def assert_no_worse(seeds: range) -> None:
    found = {seed: worse(mixed_up(seed)) for seed in seeds}
    assert {seed: new for seed, new in found.items() if new} == {}


@pytest.mark.slow
def test_plans_with_slips_and_rules_of_other_models_are_fixed_to_no_worse_ones() -> None:
    assert_no_worse(range(90))
    fixed = [seed for seed in range(90) if after_fixes(mixed_up(seed))[0] != mixed_up(seed)]
    assert len(fixed) > 10, "some of them are fixed"


@pytest.mark.slow
def test_many_plans_with_slips_and_rules_of_other_models_are_fixed_to_no_worse_ones() -> None:
    assert_no_worse(range(90, 1500))


def test_fixes_of_an_included_file_that_depend_on_the_model_are_unsafe(tmp_path: Path) -> None:
    base = PLAN_TEXTS["quickstart"].replace("model.layers.*.mlp.down_proj", "model.layers.*.mlp.down_porj")
    text = 'extends "base.plan"\n'
    (tmp_path / "base.plan").write_text(base, encoding="utf-8")
    (tmp_path / "models").symlink_to(PLANS / "models")
    found = check_source(SourceFile("x.plan", text), base=tmp_path).diagnostics
    assert [one.fix.applicability for one in found if one.fix is not None] == ["unsafe"]
