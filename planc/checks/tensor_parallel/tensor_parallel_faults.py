"""Faults of single tensor-parallel rules, which make checks of the layouts between modules meaningless."""

from __future__ import annotations

from collections.abc import Callable

from planc.checks.patterns import overlapping_rules, pattern_partial, pattern_unmatched
from planc.checks.support.rule import Findings, Rule, Subject, reports
from planc.checks.tensor_parallel import auto_style_unknown, no_such_dim, no_tensor_parallel_rules, style_kind
from planc.diagnostics import Code
from planc.vocab import MeshDim

TENSOR_PARALLEL_FAULTS: tuple[Code, ...] = (
    pattern_unmatched.CODE,
    pattern_partial.CODE,
    overlapping_rules.CODE,
    style_kind.CODE,
    no_such_dim.CODE,
    auto_style_unknown.CODE,
    no_tensor_parallel_rules.CODE,
)


def judges_layouts(*codes: Code) -> Callable[[Callable[[Subject], Findings]], Rule]:
    """Makes the function below it a rule on layouts between modules, idle where single rules are at fault."""
    return reports(*codes, over=MeshDim.TP, block="tensor_parallel", unless=TENSOR_PARALLEL_FAULTS)
