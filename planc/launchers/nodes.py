"""Placement of a mesh's ranks on nodes."""

from __future__ import annotations

from planc.devices.hardware import Device
from planc.launchers.errors import LaunchError
from planc.record import record
from planc.tables import plural


@record
class Nodes:
    """Nodes with an equal number of ranks each."""

    num_nodes: int
    ranks_per_node: int


def place(
    world_size: int, *, devices_per_node: int | None, device: Device | None, num_nodes: int | None
) -> Nodes:
    """The nodes of `world_size` ranks. The mesh's `devices_per_node` determines their number if it is set.

    Otherwise `num_nodes` does, or else the device's usual number per node. LaunchError if the number is
    unknown, or if the ranks do not fill whole nodes.
    """
    if devices_per_node is not None:
        return _from_mesh(world_size, devices_per_node=devices_per_node, num_nodes=num_nodes)
    most = device.devices_per_node if device else None
    if num_nodes is None:
        if most is None:
            raise LaunchError(
                f"the number of ranks per node is unknown ({world_size} ranks in total)",
                help="pass --nodes N, or set `mesh.devices_per_node`",
            )
        num_nodes = -(-world_size // most)
    if world_size % num_nodes:
        raise LaunchError(
            f"{world_size} ranks do not fill {num_nodes} nodes evenly [P305]",
            help=f"use {_divisors_near(world_size, num_nodes)} nodes",
        )
    ranks = world_size // num_nodes
    if most is not None and ranks > most:
        raise LaunchError(
            f"{plural(num_nodes, 'node')} with {plural(ranks, 'rank')} each, but `hardware.gpu` has "
            f"{plural(most, 'device')} per node",
            help="pass a larger --nodes, or set `mesh.devices_per_node` if your nodes have more",
        )
    return Nodes(num_nodes, ranks)


def _from_mesh(world_size: int, *, devices_per_node: int, num_nodes: int | None) -> Nodes:
    """The nodes of a mesh with `devices_per_node`; a plan that passes the check fills them (P305)."""
    needed = -(-world_size // devices_per_node)
    if num_nodes not in (None, needed):
        raise LaunchError(
            f"{world_size} ranks on nodes with {plural(devices_per_node, 'device')} need "
            f"{plural(needed, 'node')}, not {num_nodes} [P305]",
            help="leave out --nodes, or change `mesh.devices_per_node`",
        )
    return Nodes(needed, world_size // needed)


def _divisors_near(world_size: int, num_nodes: int) -> str:
    """The nearest numbers of nodes that divide `world_size`, as in `2 or 4`."""
    divisors = [number for number in range(1, world_size + 1) if world_size % number == 0]
    below = [number for number in divisors if number < num_nodes][-1:]
    above = [number for number in divisors if number > num_nodes][:1]
    return " or ".join(str(number) for number in (*below, *above))
