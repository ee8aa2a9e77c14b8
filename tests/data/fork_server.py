"""Forks processes that tokenize from one that has imported transformers, which takes each most of a second.

What such a process has at its start, and what ends it, is of `test_data_encoding.py`, which starts real ones.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import Lock
from typing import NoReturn

ROOT = Path(__file__).parents[2]
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); " \
    "from tests.data.fork_server import serve; serve(int(sys.argv[2]))"  # fmt: skip
_IMPORTED = (
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
    *(
        f"planc.runtime.data.encoding.{name}"
        for name in ("document_marks", "loaded", "talk", "template", "turn")
    ),
)
_MAX_REQUEST = 1 << 16
_LOCK = Lock()


class ForkedProcess:
    """Replaces `subprocess.Popen` in `planc.runtime.data.encoding.client`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        env: Mapping[str, str],
        start_new_session: bool,
    ) -> None:
        assert (stdin, stdout, stderr, start_new_session) == (PIPE, PIPE, PIPE, True)
        assert "planc.runtime.data.encoding.worker" in command[-2]
        own_input, to_process = os.pipe()
        from_process, own_output = os.pipe()
        errors, own_errors = os.pipe()
        self._status, own_status = os.pipe()
        theirs = [own_input, own_output, own_errors, own_status]
        with _LOCK:
            socket.send_fds(_server(os.getpid()), [json.dumps(dict(env)).encode()], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(to_process, "wb"),
            os.fdopen(from_process, "rb"),
            os.fdopen(errors, "rb"),
        )
        self.pid = int(os.read(self._status, 20))
        self._code: int | None = None

    def kill(self) -> None:
        has_ended = self._code is not None or select.select([self._status], [], [], 0)[0]
        if not has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._code is None:
            self._code = int(os.read(self._status, 20))
            os.close(self._status)
        return self._code


@cache
def _server(process_id: int) -> socket.socket:
    """The server of this process; it ends with the last who may ask it."""
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = json.dumps([*dict.fromkeys([*(os.path.abspath(path) for path in sys.path), str(ROOT)])])
    command = (sys.executable, "-I", "-S", "-c", _START, path, str(its.fileno()))
    Popen(command, pass_fds=[its.fileno()], stdin=DEVNULL, stdout=DEVNULL, start_new_session=True)
    its.close()
    return own


def serve(channel: int) -> None:
    """Fork a process for each request: its environment, and what become its streams and its status."""
    requests = socket.socket(fileno=channel)
    from planc.runtime.data.encoding.isolation import set_up

    set_up(Path("/nonexistent"))
    for name in _IMPORTED:
        import_module(name)
    from planc.runtime.data.encoding import worker

    gc.freeze()
    # Nobody waits for the processes that wait for those that tokenize.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 4)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _keep(json.loads(request), descriptors, worker.main)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(environment: dict[str, str], descriptors: Sequence[int], main: Callable[[], None]) -> NoReturn:
    """Fork the process that tokenizes; write its id, and how it ends, to the last of the descriptors."""
    *streams, status = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process_id = os.fork()
    if process_id == 0:
        os.close(status)
        _tokenize(environment, streams, main)
    for stream in streams:
        os.close(stream)
    os.write(status, str(process_id).encode())
    _, code = os.waitpid(process_id, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(status, str(os.waitstatus_to_exitcode(code)).encode())
    os._exit(0)


def _tokenize(environment: dict[str, str], streams: Sequence[int], main: Callable[[], None]) -> NoReturn:
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    try:
        main()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
