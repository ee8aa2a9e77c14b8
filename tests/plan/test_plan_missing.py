"""What a plan lacks: one finding a block, with what to write."""

from __future__ import annotations

import re

from planc.diagnostics import Applicability
from planc.plan.blocks import BLOCKS
from planc.plan.keys import type_of
from planc.plan.missing import required
from planc.plan.overrides import parse_override
from planc.plan.scope import Scope
from planc.source import SourceFile
from tests.plan.resolving import edited, fault, resolved


def test_missing_keys_are_one_finding_with_a_template() -> None:
    text = edited(("  sequence_length = 256\n", ""), ("  micro_batch = 4\n", ""))
    problem = fault(text)
    assert problem.primary.text == "`data` needs `sequence_length` and `micro_batch`"
    assert problem.fix is not None and problem.fix.applicability is Applicability.DISPLAY_ONLY
    lines = text.split("\n")
    row, column = problem.fix.span.line - 1, problem.fix.span.column - 1
    assert lines[row][column:] == "}"
    lines[row] = lines[row][:column] + problem.fix.replacement + lines[row][column:]
    filled = re.sub(r"<[^>]*>  # .*, such as (.*)", r"\1", "\n".join(lines))
    assert resolved(filled).data.sequence_length == 2048


def test_every_required_key_has_an_example_that_converts() -> None:
    for kind, shape in BLOCKS.items():
        for spec_field in required(shape.record):
            written = SourceFile("example", f"{kind}.x = {spec_field.metadata['example']}")
            value, problems = parse_override(written, kind="set")
            assert value is not None, problems
            assert type_of(spec_field).convert(value.assignment.value, Scope({})) is not None


def test_a_missing_block_comes_with_its_required_keys() -> None:
    block = "train {" + edited().partition("train {")[2].partition("}")[0] + "}\n"
    problem = fault(edited((block, "")))
    assert problem.fix is not None and problem.fix.applicability is Applicability.DISPLAY_ONLY
    assert re.fullmatch(r"\ntrain \{\n  steps = <.*>  # .*, such as 1000\n\}\n", problem.fix.replacement)
