"""Helps offer the plan's own values, and only what the plan can use."""

from __future__ import annotations

import pytest

from planc.api import Checked, check_source
from planc.diagnostics import Diagnostic
from planc.source import SourceFile
from tests.plans import PLANS

QUICKSTART = (PLANS / "quickstart.plan").read_text(encoding="utf-8")
REPLICATED = (PLANS / "launch-dp4.plan").read_text(encoding="utf-8")


def check(text: str, *, world_size: int | None = None) -> Checked:
    return check_source(SourceFile("x.plan", text), base=PLANS, world_size=world_size)


def first(old: str, new: str) -> Diagnostic:
    assert old in QUICKSTART
    return check(QUICKSTART.replace(old, new, 1)).diagnostics[0]


@pytest.mark.parametrize(
    ("old", "new", "help"),
    [
        ("world_size == 4", 'world_size == "4"', "write `world_size == 4`"),
        ("world_size == 4", 'world_size <= "16"', "write `world_size <= 16`"),
        ("float = 1.2e-2", "float = nan", "write a finite number: a plan can't hold `nan`"),
        ("float = 1.2e-2", "float = inf", "write a finite number: a plan can't hold `inf`"),
        (
            "micro_batch = 4",
            "micro_batch = 3",
            "set `micro_batch` to 1, 2 or 4, or set `tokens_per_step` to 3072 or 4608",
        ),
        (
            "  clip_grad",
            "  weight_decay = 0.2\n  clip_grad",
            "`weight_decay` is an argument of the optimizer: "
            "write `kind = adamw(lr = lr, weight_decay = 0.2)`",
        ),
        (
            'activation_checkpoint {\n  "model.layers.*" -> none\n}',
            "recompute_granularity = full",
            'write `activation_checkpoint { "model.layers.*" -> full }`',
        ),
    ],
)
def test_a_help_has_the_value_of_the_plan(old: str, new: str, help: str) -> None:
    assert first(old, new).help == help


def test_an_argument_beside_a_learning_rate_keeps_it() -> None:
    old = "  kind = adamw(lr = lr, betas = [0.9, 0.95], weight_decay = 0.1)"
    text = QUICKSTART.replace(old, "  lr = 1e-3\n  weight_decay = 0.1")
    helps = [str(one.help) for one in check(text).diagnostics]
    assert any("write `kind = adamw(lr = 1e-3, weight_decay = 0.1)`" in help for help in helps)


@pytest.mark.parametrize(("text", "absent"), [(QUICKSTART, ("cp",)), (REPLICATED, ("cp", "tp", "dp_shard"))])
def test_a_world_size_gets_only_dims_that_the_plan_uses(text: str, absent: tuple[str, ...]) -> None:
    (found,) = (one for one in check(text, world_size=8).diagnostics if one.code.code == "P301")
    assert "or set `dp_" in str(found.help)
    assert not any(f"`{mesh_dim} = " in str(found.help) for mesh_dim in absent)
