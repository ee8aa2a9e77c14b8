"""The optimizer and the schedule of a plan: planc's, or what its own code registers."""

from __future__ import annotations

from dataclasses import replace

from planc.extend.declarations import Declaration
from planc.extend.decorators import OPTIMIZER, SCHEDULE
from planc.extend.reference import Extension
from planc.plan.extensions import OrExtension
from planc.plan.optimizer import OPTIMIZERS, SCHEDULES, OwnOptimizer, OwnSchedule
from planc.plan.types import Variant


def _optimizer(extension: Extension, declaration: Declaration) -> OwnOptimizer:
    """The optimizer with the arguments that planc passes by itself, as groups and the schedule have them."""
    arguments = dict(extension.arguments)
    lr, weight_decay = arguments.pop("lr", 0.0), arguments.pop("weight_decay", 0.0)
    assert not isinstance(lr, str | tuple) and not isinstance(weight_decay, str | tuple), "they are numbers"
    return OwnOptimizer(
        lr=float(lr),
        weight_decay=float(weight_decay),
        extension=replace(extension, arguments=tuple(arguments.items())),
        state=dict(declaration.options).get("state", ()),
        decays=any(parameter.name == "weight_decay" for parameter in declaration.parameters),
    )


def _code(optimizer: OwnOptimizer) -> Extension:
    """The extension with all arguments that the plan gives."""
    varied = {"lr": optimizer.lr, **({"weight_decay": optimizer.weight_decay} if optimizer.decays else {})}
    arguments = (*varied.items(), *optimizer.extension.arguments)
    return replace(optimizer.extension, arguments=arguments)


def _schedule(extension: Extension, declaration: Declaration) -> OwnSchedule:
    return OwnSchedule(extension)


def _code_of_schedule(schedule: OwnSchedule) -> Extension:
    return schedule.extension


OPTIMIZER_KIND = OrExtension(OPTIMIZER, Variant(OPTIMIZERS, "optimizer"), _optimizer, _code)
SCHEDULE_KIND = OrExtension(SCHEDULE, Variant(SCHEDULES, "schedule"), _schedule, _code_of_schedule)
