"""`extension`: what a plan's own Python files register, read from their syntax."""

from __future__ import annotations

import hashlib

import pytest

from planc.extend import KINDS
from planc.extend.declarations import read_declarations
from planc.extend.reference import Extension
from planc.plan import codes
from planc.plan.blocks import BLOCKS
from planc.plan.keys import keys, type_of
from planc.plan.overrides import parse_override
from planc.source import SourceFile
from tests.plan.linking import BASE, fault, faults, plan_of

NAMED = 'extension "losses.py"\n'
LOSSES = """\
from planc.extend import loss

raise SystemExit("nothing of this runs")


@loss("focal")
def focal(logits, labels, *, input_ids, gamma: float = 2.0, by_label=None):
    ...


@loss("squared")
def squared(logits, labels, *, scale: float):
    ...
"""


def using(written: str, *, losses: str = LOSSES, named: str = NAMED) -> dict[str, str]:
    """A plan whose loss is `written`."""
    plan = BASE.replace("train {", f"train {{\n  loss = {written}")
    assert plan != BASE
    return {"x.plan": named + plan, "losses.py": losses}


def loss_of(written: str, *, losses: str = LOSSES) -> Extension:
    loss = plan_of(using(written, losses=losses)).train.loss
    assert isinstance(loss, Extension)
    return loss


def test_a_plan_has_its_own_loss_with_the_digest_of_its_file() -> None:
    digest = hashlib.sha256(LOSSES.encode()).hexdigest()
    assert loss_of("focal") == Extension(
        entry="focal", kind="loss", file="losses.py", digest=digest, arguments=()
    )


def test_arguments_are_in_the_order_of_the_code_and_of_the_types_it_names() -> None:
    loss = loss_of("focal(by_label = [1, 0.5, true], gamma = 3)")
    assert loss.arguments == (("gamma", 3.0), ("by_label", (1, 0.5, True)))
    assert type(loss.arguments[0][1]) is float


def test_a_resolved_plan_writes_a_loss_as_it_was_written() -> None:
    (spec,) = (one for one in keys(BLOCKS["train"].record) if one.name == "loss")
    for written in ("focal", "focal(gamma = 3.0)", 'focal(gamma = 3.0, by_label = [1, 2.5, "x", true])'):
        assert type_of(spec).render(loss_of(written)) == written


def test_another_text_of_the_file_is_another_loss() -> None:
    assert loss_of("focal") != loss_of("focal", losses=LOSSES + "# changed\n")


@pytest.mark.parametrize(
    "imported",
    ["from planc import extend", "from planc import extend as planc_extend", "import planc.extend"],
)
def test_decorators_are_known_by_any_import(imported: str) -> None:
    prefix = {"from planc import extend": "extend", "import planc.extend": "planc.extend"}
    decorator = f"@{prefix.get(imported, 'planc_extend')}.loss"
    text = f'{imported}\n{decorator}("mine")\ndef f(logits, labels): ...\n'
    assert loss_of("mine", losses=text).entry == "mine"


FAULTS = [
    ("focall", LOSSES, "P212 x.plan", "`focall` is not a loss", "did you mean `focal`?"),
    ("focal(gama = 1)", LOSSES, "P211 x.plan", "no argument `gama`", "did you mean `gamma`?"),
    ("focal(3)", LOSSES, "P211 x.plan", "takes its arguments by name", "write `name = value`"),
    ('focal(gamma = "x")', LOSSES, "P205 x.plan", "expected a number", "write `gamma = ...` with a number"),
    ("focal(by_label = 3 steps)", LOSSES, "P208 x.plan", "unexpected unit", ""),
    ("focal(input_ids = 1)", LOSSES, "P211 x.plan", "no argument `input_ids`", ""),
    ("squared", LOSSES, "P211 x.plan", "`squared` needs `scale`", "add `scale = ...`"),
    ("cross_entropy", LOSSES, "P242 x.plan:1:1", "uses nothing of `losses.py`", "use `focal`"),
    ("focal", "x = (\n", "P241 losses.py:1", "not valid Python", "correct the file's syntax"),
    ("focal", "x = 1\n", "P241 x.plan:1:11", "registers nothing", "`@loss(...)`"),
    (
        "focal",
        LOSSES.replace("*, input_ids,", "input_ids,"),
        "P241 losses.py:7:1",
        "by position",
        "write `def",
    ),
    ("focal", LOSSES.replace('"focal"', "name"), "P241 losses.py:6:2", "plain string", '`@loss("focal")`'),
    (
        "focal",
        LOSSES.replace('"squared"', '"focal"'),
        "P204 x.plan:1:11",
        "registers the loss `focal` again",
        "",
    ),
    (
        "cross_entropy",
        LOSSES.replace('"focal"', '"cross_entropy"'),
        "P204 x.plan",
        "planc's own loss",
        "register it by another name",
    ),
]


@pytest.mark.parametrize(("written", "losses", "place", "text", "help"), FAULTS)
def test_wrong_extensions_are_refused_in_place(
    written: str, losses: str, place: str, text: str, help: str
) -> None:
    problem = fault(using(written, losses=losses))
    assert f"{problem.code.code} {problem.primary.span}".startswith(place)
    assert text in problem.primary.text
    assert help in (problem.help or "")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("losses.txt", "P241"),
        ("../losses.py", "P231"),
        ("/tmp/losses.py", "P232"),
        ("https://x/losses.py", "P232"),
        ("missing.py", "P231"),
    ],
)
def test_a_file_is_a_python_file_of_the_plans_tree(path: str, code: str) -> None:
    files = using("cross_entropy", named=f'extension "{path}"\n') | {"losses.txt": LOSSES}
    assert fault(files).code.code == code


def test_a_file_is_named_once() -> None:
    problem = fault(using("focal", named=NAMED + NAMED))
    assert (problem.code, str(problem.primary.span)) == (codes.DUPLICATE, "x.plan:2:1")


def test_a_base_brings_its_own_files_from_its_own_directory() -> None:
    files = using("focal")
    base = {"bases/b.plan": files["x.plan"], "bases/losses.py": LOSSES}
    loss = plan_of({"x.plan": 'extends "bases/b.plan"\n', **base}).train.loss
    assert isinstance(loss, Extension) and loss.file == "bases/losses.py"


def test_a_line_that_python_ends_and_a_plan_does_not_is_no_place() -> None:
    problem = faults(using("focal", losses="x = 1\ry = (\r"))[0]
    assert str(problem.primary.span) == "losses.py:1:1"


def test_an_argument_of_own_code_is_set_alone() -> None:
    override, problems = parse_override(SourceFile("--set", "train.loss.gamma=0.5"), kind="set")
    assert override is not None and not problems
    loss = plan_of(using("focal(gamma = 3, by_label = [1])"), overrides=(override,)).train.loss
    assert isinstance(loss, Extension) and dict(loss.arguments) == {"gamma": 0.5, "by_label": (1,)}
    other, _ = parse_override(SourceFile("--set", "train.loss.alpha=0.5"), kind="set")
    assert other is not None
    assert fault(using("focal"), overrides=(other,)).code is codes.UNKNOWN_TARGET


OPTIMIZERS = """\
from planc.extend import optimizer


@optimizer("plain", state=("momentum",))
def plain(parameter, gradient, state, *, lr, step): ...
"""
OPTIMIZER_FAULTS = [
    ("*, lr, step", "*, rate: float = 1e-3, step", "an optimizer takes `lr` by name", "state, *, lr, ...)`"),
    ('("momentum",)', '("momentum", "step")', "a value of its own as `step`", "parameter `step`"),
]


@pytest.mark.parametrize(("old", "new", "text", "help"), OPTIMIZER_FAULTS)
def test_an_optimizer_takes_the_rate_and_leaves_the_count_of_steps(
    old: str, new: str, text: str, help: str
) -> None:
    assert not read_declarations(OPTIMIZERS, kinds=KINDS)[1]
    _, (problem,) = read_declarations(OPTIMIZERS.replace(old, new), kinds=KINDS)
    assert text in problem.text and help in problem.help
