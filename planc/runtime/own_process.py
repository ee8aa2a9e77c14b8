"""A process of its own for code that a plan brings: it can't change this one or end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import planc
from planc.extend.reference import Extension
from planc.strict_json import loads

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); " \
    "from importlib import import_module; import_module(sys.argv[2]).main()"  # fmt: skip


_LOOK_SECONDS = 0.2


class NoAnswerError(Exception):
    """The process ended, or took too long, as the message states."""


def ask(
    module: str,
    request: object,
    *,
    seconds: int,
    environment: Mapping[str, str],
    stops: Callable[[], bool] = lambda: False,
) -> Any:
    """Return a module's answer from its `main`, in a process with these variables too. NoAnswerError.

    The process ends early once `stops` is true.
    """
    root = str(Path(planc.__file__).parents[1])
    import_path = [*dict.fromkeys([*(os.path.abspath(entry) for entry in sys.path), root])]
    with subprocess.Popen(
        (sys.executable, "-c", _START, json.dumps(import_path), module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    ) as process:
        try:
            answer, errors = _communicate(process, json.dumps(request).encode(), seconds=seconds, stops=stops)
        finally:
            # It has ended, unless this process was interrupted, or waits no longer.
            process.kill()
    try:
        return loads(answer)
    except ValueError as error:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no message"]
        raise NoAnswerError(f"ends with exit code {process.returncode}: {lines[-1]}") from error


def _communicate(
    process: subprocess.Popen[bytes], request: bytes, *, seconds: int, stops: Callable[[], bool]
) -> tuple[bytes, bytes]:
    """The output of a process and its errors. NoAnswerError if it takes too long, or `stops` is true."""
    deadline, sent = time.monotonic() + seconds, [request]
    while True:
        try:
            output = process.communicate(sent.pop() if sent else None, timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired as error:
            if stops():
                raise NoAnswerError("was stopped") from error
            if time.monotonic() > deadline:
                raise NoAnswerError(f"takes more than {seconds:_} s") from error
        else:
            return output


def serve(answer: Callable[[Any], object]) -> None:
    """Answer the one request of this process. What the plan's code prints is not an answer."""
    answers = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(answer(loads(sys.stdin.buffer.read())))
    with os.fdopen(answers, "wb") as stream:
        stream.write(text.encode())


def extension_as_json(extension: Extension) -> dict[str, Any]:
    """An extension for a request, which `extension_of` reads."""
    return asdict(extension)


def extension_of(values: Mapping[str, Any]) -> Extension:
    """The extension of a request."""
    arguments = tuple(
        (name, tuple(value) if isinstance(value, list) else value) for name, value in values["arguments"]
    )
    return Extension(**{**values, "arguments": arguments})
