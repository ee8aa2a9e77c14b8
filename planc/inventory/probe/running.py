"""The module whose own code runs, as a model does. Imports torch, for the probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn


def watch_running(named: Mapping[str, nn.Module]) -> Sequence[str]:
    """The modules whose forward has begun and not ended, by fqn, which changes as the model runs.

    The last one's own code is what runs.
    """
    running: list[str] = []

    def leave(*_: Any) -> None:
        running.pop()

    for fqn, module in named.items():
        module.register_forward_pre_hook(lambda *_, fqn=fqn: running.append(fqn))
        module.register_forward_hook(leave, always_call=True)
    return running
