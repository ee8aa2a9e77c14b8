"""Checks of how this process was started: the launcher's variables and the rendezvous address."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping

from planc.doctor import codes
from planc.doctor.examination import Check, Section
from planc.runtime.errors import RunError
from planc.runtime.process import VARIABLES, Launch, read_launch
from planc.runtime.ranks.rank_claims import require_free_port
from planc.source import SourceFile, Span


def launch_checks(environment: Mapping[str, str]) -> Iterator[Check]:
    """Check the launch that the environment describes, and whether rank 0 can listen on its port."""
    given = [f"{name}={environment[name]}" for name in VARIABLES if name in environment]
    observed = SourceFile("launcher", "\n".join(given) or "none (a single process)")
    try:
        launch = read_launch(environment)
    except RunError as error:
        span = _line_of(observed, error.message)
        problem = codes.MALFORMED_LAUNCH.at(span, error.message, help=error.help)
        yield Check(Section.LAUNCH, observed, "", "torchrun sets these variables", (problem,))
        return
    yield Check(Section.LAUNCH, observed, "", "torchrun sets these variables")
    if launch.address is not None:
        yield _port(launch)
        yield _address(launch.address)


def _line_of(observed: SourceFile, message: str) -> Span:
    """The line of the first variable that a message names."""
    for number, line in enumerate(observed.lines, 1):
        if line.partition("=")[0] in message.split():
            return Span(observed.name, number, 1, number, len(line) + 1)
    return observed.start()


def _port(launch: Launch) -> Check:
    text = f"{launch.port}"
    if launch.rank != 0 or launch.agent_hosts_store:
        agent = "torchrun's agent listens there, on every interface"
        where = "on rank 0's machine" if launch.rank != 0 else agent
        return Check(Section.LAUNCH, SourceFile("port", f"{text}, {where}"))
    observed = SourceFile("port", text)
    try:
        require_free_port(launch)
    except RunError as error:
        problem = codes.PORT_TAKEN.at(observed.whole(), error.message, help=error.help)
        return Check(Section.LAUNCH, observed, "free", "rank 0 listens there", (problem,))
    return Check(Section.LAUNCH, observed, "free", "rank 0 listens there")


def _address(address: str) -> Check:
    observed = SourceFile("address", address)
    try:
        socket.getaddrinfo(address, None)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a host name"
        help = "set MASTER_ADDR to a host name or IP address of rank 0's machine that this machine can reach"
        problem = codes.UNRESOLVED.at(observed.whole(), reason or "unknown host", help=help)
        return Check(Section.LAUNCH, observed, "a known host", "ranks connect to it", (problem,))
    return Check(Section.LAUNCH, observed, "a known host", "ranks connect to it")
