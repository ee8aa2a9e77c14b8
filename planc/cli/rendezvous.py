"""`python -m planc.rendezvous`: host the store of a job's torchrun agents, so no node of the job has to.

If an agent hosts the store, losing its node ends the whole job, because the other agents can't reach the
store to agree on a restart.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from planc.cli.support.parser import Parser
from planc.launchers.job import Endpoint, read_endpoint
from planc.outgoing import guard

_DESCRIPTION = """\
Host the store where the nodes of an elastic job meet, until SIGTERM or Ctrl-C. It listens on the address of
HOST only; torchrun's own store listens on every interface. Anyone who can reach it can join the job."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    parser = Parser("planc.rendezvous", description=_DESCRIPTION)
    parser.add_argument("endpoint", type=read_endpoint, metavar="HOST:PORT", help="address to listen on")
    for stream in (sys.stdout, sys.stderr):
        guard(stream, environment=os.environ)
    endpoint = parser.parse_args(argv).endpoint
    try:
        listener = _listen(endpoint)
    except OSError as error:
        print(f"planc: error: cannot listen on {endpoint}: {error.strerror}", file=sys.stderr)
        sys.exit(6)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    _host(endpoint, listener)


def _listen(endpoint: Endpoint) -> socket.socket:
    """A socket that listens on the endpoint's address."""
    host = endpoint.host.strip("[]")
    family, _, _, _, address = socket.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family)


def _host(endpoint: Endpoint, listener: socket.socket) -> NoReturn:
    # Imported after the port is known to be free, since it takes seconds.
    from planc.runtime.torch.parallel.loopback import host_store

    store = host_store(endpoint.host.strip("[]"), endpoint.port, listener=listener)
    print(f"planc: nodes can meet at {endpoint}", flush=True)
    while store is not None:
        threading.Event().wait()
    raise AssertionError("the store is hosted")


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)
