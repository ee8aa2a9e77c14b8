from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from planc.extend.kind import Kind, mark

MODEL = Kind("model", "model.architecture", passes=("config",))
M = TypeVar("M", bound=Callable[..., Any])


def model(name: str) -> Callable[[M], M]:
    return lambda target: mark(MODEL, target, name)
