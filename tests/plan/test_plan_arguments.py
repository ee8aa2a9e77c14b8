"""`--set` of one argument of a call: the others stay as the plan has them, wherever it has them from."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.plan import codes
from planc.plan.call_arguments import argument_targets
from planc.show.origin import chain, values
from planc.source import SourceFile
from planc.syntax.ast import Argument, Call, Ref, Value
from planc.syntax.parse import parse_assignment
from tests.plan import linking
from tests.plan.resolving import edited, fault, resolved, setting
from tests.plans import FULL, PLANS
from tests.syntax.reading import covered

KIND = "  kind = adamw(lr = lr, betas = [0.9, 0.95], weight_decay = 0.1)\n"
WHOLE_PLANS = tuple(path for path in sorted(PLANS.glob("*.plan")) if "model {" in path.read_text("utf-8"))


def call_of(text: str) -> Value:
    assignment, problems = parse_assignment(SourceFile("x", f"x = {text}"))
    assert assignment is not None, problems
    return assignment.value


def arguments_of(text: str) -> dict[str | None, str]:
    """The arguments of a call as it is written, each as text."""
    value = call_of(text)
    source = f"x = {text}"
    found = value.arguments if isinstance(value, Call) else ()
    return {name_of(one): covered(source, one.value.span) for one in found}


def name_of(argument: Argument) -> str | None:
    return argument.name.text if argument.name else None


def checked(text: str, *settings: str) -> Checked:
    sources = [SourceFile("--set" if n == 1 else f"--set[{n}]", one) for n, one in enumerate(settings, 1)]
    return check_source(SourceFile("x.plan", text), base=PLANS, settings=sources)


def test_one_argument_is_set_and_the_others_stay() -> None:
    plan = resolved(FULL, overrides=[setting("optimizer.kind.lr=2e-3")])
    assert values(plan)["optimizer.kind"] == values(resolved(FULL))["optimizer.kind"].replace(
        "0.004", "0.002"
    )


def test_the_origin_says_what_was_set_and_where_the_rest_is_from() -> None:
    plan = resolved(FULL, overrides=[setting("optimizer.kind.lr=2e-3")])
    set_here, written = chain(plan.origins["optimizer.kind"])
    assert set_here == "--set optimizer.kind.lr=2e-3"
    assert written.startswith("x.plan:")


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("optimizer.lr=2e-3", "optimizer.kind.lr=2e-3"),
        ("optimizer.min_factor=0.5", "optimizer.schedule.min_factor=0.5"),
    ],
)
def test_the_setting_may_be_left_out_where_one_call_of_the_block_takes_the_argument(
    short: str, whole: str
) -> None:
    one, other = (checked(FULL, text) for text in (short, whole))
    assert one.graph is not None and one.graph == other.graph
    assert one.plan is not None
    target = whole.partition("=")[0]
    assert one.plan.origins[target][0].text == f"--set {short}"


def test_an_argument_of_a_call_that_the_plan_does_not_have_is_refused_by_its_short_name_too() -> None:
    problem = fault(FULL, overrides=[setting("optimizer.momentum=0.9")])
    assert problem.primary.text == "the plan's `optimizer.kind` is `adamw`, which has no `momentum`"


def test_arguments_are_set_one_after_the_other_and_a_whole_value_in_between_counts() -> None:
    several = [
        setting("optimizer.kind.lr=1.0"),
        setting("optimizer.kind=sgd(lr = 2.0, momentum = 0.5)", name="--set[2]"),
        setting("optimizer.kind.momentum=0.9", name="--set[3]"),
    ]
    plan = resolved(FULL, overrides=several)
    assert values(plan)["optimizer.kind"].startswith("sgd(lr = 2.0, momentum = 0.9,")


def test_an_argument_of_a_default_is_set() -> None:
    text = edited(("  schedule = cosine(warmup = 10 steps, min_factor = 0.1)\n", ""))
    plan = resolved(text, overrides=[setting("optimizer.schedule.warmup=3 steps")])
    assert values(plan)["optimizer.schedule"] == "constant(warmup = 3 steps)"
    assert chain(plan.origins["optimizer.schedule"]) == ("--set optimizer.schedule.warmup=3 steps", "default")


def test_an_argument_of_a_call_that_is_written_bare_is_set() -> None:
    text = edited(("tokenizer = bytes", 'tokenizer = file("models/t")'))
    plan = resolved(text, overrides=[setting('data.tokenizer.end_of_document="<s>"')])
    assert (
        values(plan)["data.tokenizer"]
        == 'file("models/t", end_of_document = "<s>", begin_of_document = auto)'
    )


def test_an_argument_that_stands_without_its_name_is_replaced() -> None:
    text = edited(("tokenizer = bytes", 'tokenizer = file("models/t", end_of_document = "<s>")'))
    plan = resolved(text, overrides=[setting('data.tokenizer.path="models/u"')])
    assert (
        values(plan)["data.tokenizer"]
        == 'file("models/u", end_of_document = "<s>", begin_of_document = auto)'
    )


def test_an_argument_may_be_a_parameter() -> None:
    plan = resolved(FULL, overrides=[setting("optimizer.kind.weight_decay=lr")])
    assert "weight_decay = 0.004" in values(plan)["optimizer.kind"]


def test_an_argument_of_what_a_base_gives_is_set() -> None:
    files = {"x.plan": 'extends "base.plan"\n', "base.plan": linking.BASE}
    before = values(linking.plan_of(files))
    after = values(linking.plan_of(files, overrides=[setting("optimizer.kind.lr=0.5")]))
    assert {path for path in after if after[path] != before[path]} == {"optimizer.kind"}
    assert arguments_of(after["optimizer.kind"]) == {
        **arguments_of(before["optimizer.kind"]),
        "lr": "0.5",
    }


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("optimizer.kind.momentum=0.5", "`adamw` takes lr, betas, eps, weight_decay and implementation"),
        (
            "optimizer.schedule.decay=5 steps",
            "`cosine` takes warmup and min_factor; `decay` is an argument of `wsd`",
        ),
        ("data.source.patterns=3", "`python_stdlib` does not take arguments"),
        ("guard.loss_spike.window=9 steps", "set the whole call: `guard.loss_spike = stop(...)` or "),
        ('model.hf.revision="x"', "set the whole call: `model.hf = hub(...)`"),
        ("hardware.gpu.memory=3 GiB", "set the whole call: `hardware.gpu = device(...)`"),
    ],
)
def test_what_the_call_of_the_plan_does_not_take_is_refused_at_the_argument(text: str, help: str) -> None:
    problem = fault(FULL, overrides=[setting(text)])
    assert problem.code is codes.UNKNOWN_TARGET
    assert covered(text, problem.primary.span) == text.partition("=")[0].rpartition(".")[2]
    assert help in (problem.help or "")


def test_the_globs_of_a_source_are_not_one_argument() -> None:
    text = edited(("source = python_stdlib()", 'source = text("a.txt", "b.txt")'))
    problem = fault(text, overrides=[setting('data.source.patterns="c.txt"')])
    assert problem.help == "set the whole call: `data.source = text(...)`"


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ("optimizer.kind.lr=3.0", ("--set", 1)),
        ("optimizer.kind.betas=[0.95, 0.9]", ("--set", 1)),
        ("optimizer.kind.eps=0.1", ("--set", 1)),
        ("optimizer.kind.weight_decay=5.0", ("--set", 1)),
        ("optimizer.schedule.warmup=5_000 steps", ("--set", 1)),
    ],
)
def test_a_finding_on_an_argument_points_at_what_set_it(setting: str, where: tuple[str, int]) -> None:
    found = checked(FULL, setting)
    assert where in {(one.primary.span.file, one.primary.span.line) for one in found.diagnostics}


def test_a_finding_on_another_argument_points_into_the_plan() -> None:
    text = FULL.replace("betas = [0.9, 0.95]", "betas = [0.95, 0.9]")
    found = checked(text, "optimizer.kind.weight_decay=0.2")
    assert [one.primary.span.file for one in found.diagnostics if one.code.code == "P712"] == ["x.plan"]


@pytest.mark.sampled(every=27)
@pytest.mark.parametrize("path", WHOLE_PLANS, ids=lambda path: path.stem)
def test_every_argument_of_every_plan_can_be_set_alone(path: Path) -> None:
    """Set to another value it has that value; nothing else of the whole resolved plan is another."""
    text = path.read_text(encoding="utf-8")
    plan = checked(text).plan
    assert plan is not None
    before = values(plan)
    num_set = 0
    for target, owner in argument_targets().items():
        argument = target.rpartition(".")[2]
        if owner not in before or argument not in arguments_of(before[owner]):
            continue
        for other in _other_values(arguments_of(before[owner])[argument]):
            changed = checked(text, f"{target}={other}").plan
            assert changed is not None, f"{target}={other}"
            after = values(changed)
            assert {one for one in after if after[one] != before[one]} == {owner}
            assert arguments_of(after[owner]) == {**arguments_of(before[owner]), argument: other}
            num_set += 1
    assert num_set


def _other_values(text: str) -> tuple[str, ...]:
    """Another value of the same type, where the text says enough of it."""
    match call_of(text):
        case Ref() | Call():
            return ()
        case value if text.startswith('"'):
            return ('"another"',)
        case value if text == "[0.9, 0.95]":
            return ("[0.85, 0.95]",)
        case value if text.endswith("steps"):
            return ("7 steps",)
        case value if text == "false":
            return ("true",)
        case value:
            assert value is not None
            return ("0.25",) if "." in text and float(text) < 1e6 else ()


@pytest.mark.parametrize("target", sorted(argument_targets()))
def test_the_help_for_an_argument_without_its_setting_changes_nothing_else(target: str) -> None:
    """Whatever P215 offers for `block.argument` is one argument, and taken literally sets only that."""
    owner, _, argument = target.rpartition(".")
    short = f"{owner.partition('.')[0]}.{argument}"
    found = [one for one in checked(FULL, f"{short}=0.25").diagnostics if one.code is codes.UNKNOWN_TARGET]
    if not found:  # a setting of the block has this name
        return
    help = found[0].help or ""
    assert "(" not in help.partition("write")[2]
    plan = checked(FULL).plan
    assert plan is not None
    before = values(plan)
    if found[0].fix is None or argument not in arguments_of(before.get(owner, "x")):
        return
    after = checked(FULL, f"{found[0].fix.replacement}={arguments_of(before[owner])[argument]}").plan
    assert after is not None
    assert values(after) == before
