"""The protocol by hand: messages to and from `planc lsp` as JSON, also those that no library would write."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from tests.patience import WAIT_SECONDS

Message = dict[str, Any]


class Wire:
    """A started server. `log` has every message in order, with whether the server sent it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self.stdin = process, process.stdin
        self.log: list[tuple[bool, Message]] = []
        self._arrived: queue.Queue[Message | None] = queue.Queue()
        self._last_id = 0
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def ask(self, method: str, params: Any) -> Message:
        """The answer to a request, with its `result` or its `error`."""
        self._last_id += 1
        number = self._last_id
        self.send({"id": number, "method": method, "params": params})
        return self.until(lambda message: message.get("id") == number and "method" not in message)

    def tell(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    def send(self, message: Message) -> None:
        self.log.append((False, message))
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def write(self, body: bytes) -> None:
        self.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.stdin.flush()

    def until(self, is_it: Callable[[Message], bool]) -> Message:
        """The next message of a kind; those before it are in the log."""
        while True:
            message = self._arrived.get(timeout=WAIT_SECONDS)
            assert message is not None, "the server ended"
            self.log.append((True, message))
            if is_it(message):
                return message

    def _read(self, stream: IO[bytes]) -> None:
        length = 0
        while header := stream.readline():
            if header.startswith(b"Content-Length:"):
                length = int(header.partition(b":")[2])
            elif not header.strip():
                self._arrived.put(json.loads(stream.read(length)))
        self._arrived.put(None)


@contextmanager
def wired(*, capabilities: Message | None = None, cwd: str | None = None) -> Iterator[Wire]:
    """A server of an editor with these capabilities; it ends with the block."""
    command = [sys.executable, "-m", "planc", "lsp"]
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, cwd=cwd) as process:
        wire = Wire(process)
        try:
            wire.ask("initialize", {"processId": None, "rootUri": None, "capabilities": capabilities or {}})
            wire.tell("initialized", {})
            yield wire
        finally:
            process.kill()
