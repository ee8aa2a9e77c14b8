"""Keep ranks of a single machine off the network: anyone who reaches their sockets could talk to them."""

from __future__ import annotations

import socket
from collections.abc import MutableMapping

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from planc.runtime.process import Launch

_INTERFACES = ("lo", "lo0")
"""Its name on Linux and macOS."""
_ADDRESSES = {"127.0.0.1": socket.AF_INET, "localhost": socket.AF_INET, "::1": socket.AF_INET6}


def keep_gloo_inside(environment: MutableMapping[str, str], *, launch: Launch) -> None:
    """Make gloo listen on the loopback interface, unless one is set or ranks are on other machines.

    By default it listens at the address that the machine's own name resolves to.
    """
    if not launch.is_one_machine or "GLOO_SOCKET_IFNAME" in environment:
        return
    for _, name in socket.if_nameindex():
        if name in _INTERFACES:
            environment["GLOO_SOCKET_IFNAME"] = name


def host_store(host: str, port: int, *, listener: socket.socket) -> TCPStore:
    """A store that is served on `listener` for as long as it is held."""
    descriptor = listener.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)


def listener(launch: Launch) -> int | None:
    """A descriptor that listens at the rendezvous address, if that is the loopback interface; else None.

    torch's store listens on every interface, whatever its address. OSError if the port is taken.
    """
    family = _ADDRESSES.get(launch.address or "")
    if family is None:
        return None
    assert launch.address is not None and launch.port is not None, "a launch with an address has a port"
    return socket.create_server((launch.address, launch.port), family=family).detach()
