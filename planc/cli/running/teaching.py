"""The computation of a teacher's log-probabilities: the plan's teacher on the ranks that were started."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planc.cli.running.compiled import checked_for, of_checked, print_progress
from planc.cli.running.evaluating import without_run
from planc.cli.running.run_errors import PlanRefused
from planc.cli.running.starting import Options
from planc.cli.support.plans import render_errors
from planc.hub.names import is_hub, parse_hub
from planc.plan.train import Distillation
from planc.runtime.errors import RunError
from planc.runtime.fetch import require_model
from planc.runtime.process import Launch

if TYPE_CHECKING:
    # Torch takes seconds to import, and other commands do without the front end.
    from planc.api import Checked
    from planc.runtime.torch.teaching import Stored


@dataclass(frozen=True, slots=True)
class Taught:
    """A plan's distillation, and the stored log-probabilities of its teacher."""

    loss: Distillation
    stored: Stored


def teach(options: Options, launch: Launch, *, runs_extensions: bool) -> Taught:
    """Store the log-probabilities of a plan's teacher. PlanRefused if the plan or its teacher has errors."""
    checked = checked_for(
        options, world_size=None, on_probe=None, say=print_progress, runs_extensions=runs_extensions
    )
    if checked.graph is None or checked.plan is None:
        raise _refused(checked)
    loss, base = checked.plan.train.loss, options.plan.parent
    if not isinstance(loss, Distillation):
        raise RunError(
            f"{options.plan} has no teacher",
            help="write `loss = distillation(teacher = ..., logits = ...)` in `train`",
        )
    if is_hub(loss.teacher):
        require_model(parse_hub(loss.teacher), with_weights=True, say=print_progress)
    checked = _of_teacher(checked, loss.teacher, base=base, num_ranks=launch.world_size)
    if checked.graph is None:
        raise _refused(checked)
    compiled = of_checked(checked, checked.graph, base=base)
    # Imported here because it takes seconds; errors that need no torch have been raised.
    from planc.runtime.torch.teaching import store_teacher

    def say(text: str) -> None:
        if launch.rank == 0:
            print_progress(f"teacher: {text}")

    with without_run(compiled, launch, runs_extensions=runs_extensions) as backend:
        folder = base / loss.logits
        stored = store_teacher(backend, folder, teacher=loss.teacher, top_k=loss.top_k, say=say)
    return Taught(loss, stored)


def _of_teacher(checked: Checked, teacher: str, *, base: Path, num_ranks: int) -> Checked:
    """The plan that computes the logits of a sound plan's teacher, with its own findings."""
    # Imported lazily, as all of the front end is.
    from planc.api import NO_MODEL
    from planc.capacity.draft import Draft
    from planc.checks import Subject, run_checks
    from planc.diagnostics import has_errors
    from planc.hub.user_dirs import cache_dir
    from planc.inventory.files import InventoryError
    from planc.inventory.known import KnownModels
    from planc.plan.bind import bind
    from planc.plan.teacher import teacher_plan
    from planc.solve import automatic

    assert checked.plan is not None
    try:
        inventory = KnownModels(base, cache_dir()).get(teacher, with_weights=True)
    except InventoryError as error:
        problem = NO_MODEL.at(checked.plan.span("train.loss"), error.message, help=error.help)
        return replace(checked, graph=None, diagnostics=(problem,))
    plan = teacher_plan(checked.plan, inventory, num_ranks=num_ranks)
    bound = bind(plan, inventory, automatic(plan, inventory))
    draft = Draft(bound)
    problems = tuple(run_checks(Subject(bound, num_ranks, base=base)))
    graph = None if has_errors(problems) else draft.compiled
    return replace(checked, plan=plan, inventory=inventory, graph=graph, diagnostics=problems)


def _refused(checked: Checked) -> PlanRefused:
    findings = render_errors(checked, stream=sys.stderr).rstrip("\n")
    return PlanRefused(findings, diagnostics=checked.diagnostics)
