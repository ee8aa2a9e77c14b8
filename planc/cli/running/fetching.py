"""Download Hugging Face Hub models before a run starts."""

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
    """Run `check`, and again after downloading a Hub model's config.json if that was missing.

    RunError if the download fails.
    """
    checked = check()
    if checked.plan is None or checked.inventory is not None or not is_hub(checked.plan.model.hf):
        return checked
    require_model(parse_hub(checked.plan.model.hf), with_weights=False, say=print_progress)
    return check()


def require_models(graph: Graph) -> None:
    """Download the missing files of a Hub model that a run reads. RunError if that fails."""
    paths = {op.path for op in graph.setup if isinstance(op, BuildModel | LoadWeights) and is_hub(op.path)}
    with_weights = any(isinstance(op, LoadWeights) for op in graph.setup)
    for path in sorted(paths):
        require_model(parse_hub(path), with_weights=with_weights, say=print_progress)


def print_progress(text: str) -> None:
    print(f"planc: {text}", file=sys.stderr, flush=True)
