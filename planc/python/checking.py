"""Check and compile a plan from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from planc.api import check_plan
from planc.cli.running.compiled import checked_for, load_compiled, of_checked
from planc.cli.running.run_errors import PlanRefused
from planc.cli.running.starting import Options
from planc.cli.support.count_sequences import count_known
from planc.cli.support.settings import settings_from
from planc.python.results import CheckResult, CompiledPlan
from planc.runtime.errors import RunError


def check(plan: str | Path, *, overrides: Sequence[str] = (), world_size: int | None = None) -> CheckResult:
    """The findings of `planc check` on a plan; nothing is raised for them.

    `overrides` are settings such as `"optimizer.lr=1e-4"`, as `--set` takes them. TP_SIZE, DP_SIZE and
    CP_SIZE in the environment count as they do for the command. RunError if one of these is malformed.
    """
    settings, errors = settings_from(texts("overrides", overrides), os.environ)
    if errors:
        raise RunError("; ".join(errors))
    path = Path(plan)
    checked = check_plan(path, settings=settings, world_size=world_size, count=count_known)
    return CheckResult(path, checked)


def compile(plan: str | Path, *, overrides: Sequence[str] = (), run_extensions: bool = False) -> CompiledPlan:
    """A plan ready to run, or one that `planc compile` wrote. PlanRefused if it has errors.

    `run_extensions` permits it to run the plan's own code, for its first look at a model class or data.

    A model of the Hub whose config is not in the cache is downloaded, and data is prepared if the number of
    steps follows from it.
    """
    path, settings = Path(plan), texts("overrides", overrides)
    if path.suffix == ".json":
        return CompiledPlan(load_compiled(path, settings))
    options = Options(path, settings)
    checked = checked_for(
        options, world_size=None, on_probe=None, say=lambda text: None, runs_extensions=run_extensions
    )
    if checked.graph is None:
        raise PlanRefused(CheckResult(path, checked).text.rstrip(), diagnostics=checked.diagnostics)
    return CompiledPlan(of_checked(checked, checked.graph, base=path.parent), checked.diagnostics)


def texts(name: str, values: Sequence[str]) -> tuple[str, ...]:
    """Settings as a tuple; ValueError for a bare text, whose letters would each be one."""
    if isinstance(values, str):
        raise ValueError(f"{name} takes a list of texts: [{values!r}]")
    return tuple(values)
