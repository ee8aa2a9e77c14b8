"""The metrics and callbacks of a plan, which its own code registers."""

from __future__ import annotations

from typing import Any

from planc.extend.callback import CALLBACK
from planc.extend.declarations import Declaration
from planc.extend.metric import METRIC
from planc.extend.reference import Extension, OwnCallback, OwnMetric
from planc.plan.extensions import OnlyExtension
from planc.plan.types import List


def _metric(extension: Extension, declaration: Declaration) -> OwnMetric:
    return OwnMetric(extension=extension, reduce=_chosen(declaration, "reduce", "mean"))


def _callback(extension: Extension, declaration: Declaration) -> OwnCallback:
    ranks = _chosen(declaration, "ranks", "zero")
    return OwnCallback(extension=extension, ranks=ranks, points=declaration.methods)


def _chosen(declaration: Declaration, option: str, default: str) -> Any:
    """The word of an option, which is one of its kind's."""
    (word,) = dict(declaration.options).get(option, (default,))
    return word


def _code(value: OwnMetric | OwnCallback) -> Extension:
    return value.extension


def _name(value: OwnMetric | OwnCallback) -> str:
    return value.extension.entry


METRICS = List(OnlyExtension(METRIC, _metric, _code), name_of=_name)
CALLBACKS = List(OnlyExtension(CALLBACK, _callback, _code), name_of=_name)
