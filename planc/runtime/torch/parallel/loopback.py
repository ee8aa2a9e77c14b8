"""Keeps ranks that share one machine off the network: whoever reaches their sockets could talk to them."""

from __future__ import annotations

import socket
from collections.abc import MutableMapping

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from planc.runtime.process import Launch

_INTERFACES = ("lo", "lo0")
"""What Linux and macOS call it."""
_ADDRESSES = {"127.0.0.1": socket.AF_INET, "localhost": socket.AF_INET, "::1": socket.AF_INET6}


def keep_gloo_inside(environment: MutableMapping[str, str], *, launch: Launch) -> None:
    """Makes gloo listen on the loopback interface, unless an interface is chosen or ranks are elsewhere too.

    By default it listens where the machine's own name leads.
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
    """A descriptor that listens where the ranks will meet, if that is the loopback interface; else None.

    torch's store listens on every interface, whatever its address. OSError where the port is taken.
    """
    family = _ADDRESSES.get(launch.address or "")
    if family is None:
        return None
    assert launch.address is not None and launch.port is not None, "a launch with an address has a port"
    return socket.create_server((launch.address, launch.port), family=family).detach()
