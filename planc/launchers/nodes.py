"""How a mesh's ranks lie on nodes."""

from __future__ import annotations

from planc.devices.hardware import Device
from planc.launchers.errors import LaunchError
from planc.record import record


@record
class Nodes:
    """Equal nodes, each with as many ranks."""

    num_nodes: int
    ranks_per_node: int


def place(
    world_size: int, *, devices_per_node: int | None, device: Device | None, num_nodes: int | None
) -> Nodes:
    """The nodes of `world_size` ranks. `devices_per_node` is the mesh's, and settles how many there are.

    Where the mesh leaves it open, `num_nodes` decides, and else as few nodes as the device comes in.
    LaunchError where nothing says how many, and where ranks and nodes do not fit each other.
    """
    if devices_per_node is not None:
        return _told(world_size, devices_per_node=devices_per_node, num_nodes=num_nodes)
    most = device.devices_per_node if device else None
    if num_nodes is None:
        if most is None:
            raise LaunchError(
                f"nothing says how many of the {world_size} ranks one node has",
                help="give --nodes, or set mesh.devices_per_node",
            )
        num_nodes = -(-world_size // most)
    if world_size % num_nodes:
        raise LaunchError(
            f"the ranks do not fill whole nodes: {world_size} ranks on {num_nodes} nodes [P305]",
            help=f"{world_size} ranks lie on {_divisors_near(world_size, num_nodes)} nodes",
        )
    ranks = world_size // num_nodes
    if most is not None and ranks > most:
        raise LaunchError(
            f"{_nodes(num_nodes)} of {ranks} ranks each, but hardware.gpu comes with {most} devices a node",
            help="give more --nodes, or set mesh.devices_per_node if yours have more",
        )
    return Nodes(num_nodes, ranks)


def _told(world_size: int, *, devices_per_node: int, num_nodes: int | None) -> Nodes:
    """The nodes of a mesh that says how many devices one has; a plan that checks clean fills them (P305)."""
    told = -(-world_size // devices_per_node)
    if num_nodes not in (None, told):
        raise LaunchError(
            f"{world_size} ranks on nodes of {devices_per_node} devices take {_nodes(told)}, "
            f"not {num_nodes} [P305]",
            help="leave --nodes out, or change mesh.devices_per_node",
        )
    return Nodes(told, world_size // told)


def _nodes(number: int) -> str:
    return f"{number} node{'s' if number != 1 else ''}"


def _divisors_near(world_size: int, num_nodes: int) -> str:
    """`2 or 4`: the numbers of whole nodes on either side of `num_nodes`."""
    divisors = [number for number in range(1, world_size + 1) if world_size % number == 0]
    below = [number for number in divisors if number < num_nodes][-1:]
    above = [number for number in divisors if number > num_nodes][:1]
    return " or ".join(str(number) for number in (*below, *above))
