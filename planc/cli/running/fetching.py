"""Models of the Hugging Face hub, fetched before a run begins."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from planc.graph.graph import Graph
from planc.graph.ops import BuildModel, LoadWeights
from planc.hub.names import is_hub, parse_hub
from planc.runtime.fetch import require_model

if TYPE_CHECKING:
    # A compiled plan runs without the front end.
    from planc.api import Checked


def with_model(check: Callable[[], Checked]) -> Checked:
    """What `check` finds, with the config.json of a model of the hub fetched first where it is not here.

    RunError where it cannot be had.
    """
    checked = check()
    if checked.plan is None or checked.inventory is not None or not is_hub(checked.plan.model.hf):
        return checked
    require_model(parse_hub(checked.plan.model.hf), with_weights=False, say=say)
    return check()


def require_models(graph: Graph) -> None:
    """Fetches what a run reads of a model of the hub, and is not here. RunError where it cannot be had."""
    paths = {op.path for op in graph.setup if isinstance(op, BuildModel | LoadWeights) and is_hub(op.path)}
    with_weights = any(isinstance(op, LoadWeights) for op in graph.setup)
    for path in sorted(paths):
        require_model(parse_hub(path), with_weights=with_weights, say=say)


def say(text: str) -> None:
    print(f"planc: {text}", file=sys.stderr, flush=True)
