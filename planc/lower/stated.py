"""The fields of an op that a plan has under their own names."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

from planc.graph.consequence import meanings
from planc.graph.op import Op
from planc.plan.spec import Plan


def stated(kind: type[Op], plan: Plan) -> dict[str, Any]:
    """The values of the fields whose name is that of the plan's key: no lowering repeats them."""
    return {name: attrgetter(key)(plan) for name, key in _keys(kind)}


@cache
def _keys(kind: type[Op]) -> tuple[tuple[str, str], ...]:
    found = meanings(kind).items()
    return tuple((name, one.key) for name, one in found if one.key.rpartition(".")[2] == name)
