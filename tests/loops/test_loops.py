"""What one command writes, every other command takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.source import SourceFile
from planc.tune.base import commented, comments_of
from tests.loops.pairs import CONSUMERS, PRODUCERS, pairs, prepared

QUICK = ("new on CPUs", "import")


@pytest.mark.slow
def test_quick_pairs_of_commands_fit(tmp_path: Path) -> None:
    tried = list(pairs(prepared(tmp_path), quick=True, producers=QUICK))
    assert {pair.problem for pair in tried} == {""}, tried
    assert len(tried) == len(QUICK) * len(CONSUMERS)


@pytest.mark.slow
def test_every_pair_of_commands_fits(tmp_path: Path) -> None:
    tried = list(pairs(prepared(tmp_path), quick=False))
    assert [pair for pair in tried if pair.problem] == []
    assert len(tried) > len(PRODUCERS) * len(CONSUMERS)


PLAN = """\
# Written by planc new (pretrain) for 2 ranks.

# The model.
model {
  hf = "model"
}

optimizer {
  # The rate.
  # It was tried.
  kind = adamw(lr = 1e-3)
  clip_grad_norm = 1.0  # as others
  # What is not here any more.
  schedule = constant
}
"""


def test_comments_stay_above_what_they_are_about() -> None:
    comments = comments_of(SourceFile("x.plan", PLAN))
    kept = commented(
        "optimizer {\n  kind = adamw(lr = 1e-3)\n  clip_grad_norm = 1.0\n}\n", comments["optimizer"]
    )
    assert kept.splitlines() == [
        "# What is not here any more.",
        "optimizer {",
        "  # The rate.",
        "  # It was tried.",
        "  kind = adamw(lr = 1e-3)",
        "  # as others",
        "  clip_grad_norm = 1.0",
        "}",
    ]
    assert commented("model {\n}\n", comments["model"]) == "# The model.\nmodel {\n}\n"
