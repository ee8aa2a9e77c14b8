"""The ways that collectives take: links inside a node, and network adapters between nodes.

Ranks are numbered by node, innermost mesh dim first, so a group's members of one node are neighbors. NCCL
builds as many rings as there are members in a node, and each crosses to the next node at the adapter of
another member. A rank's links and its adapter share what it sends by a ring, S bytes:

    n ranks, m of them in each node      through its links    through its adapter
    a group inside one node              S                    0
    a group of several nodes             S (m - 1) / m        S / m
    all-to-all of B bytes                B (m - 1) / n        B (n - m) / n
    a send to the next rank              S, in one node       S, of several nodes

The least that any algorithm moves is less: what a node's members receive from outside it, (n - m) B / m for
an all-gather of B bytes and the n-th part of it for a reduce-scatter; and where switches sum (NVLink SHARP,
InfiniBand SHARP), an all-reduce sends its input once. A message to one rank can use all of a node's adapters.
"""

from __future__ import annotations

from math import prod

from planc.estimate.result import Collective, Kind
from planc.graph.groups import Axis
from planc.record import record
from planc.vocab import GroupDim


@record
class Route:
    """One rank's part of one collective: bytes through its links and its adapter, and the steps of a ring.

    The least bytes are those of any algorithm.
    """

    link_bytes: float
    nic_bytes: float
    least_link_bytes: float
    least_nic_bytes: float
    link_steps: int
    nic_steps: int


def members_in_node(mesh: tuple[Axis, ...], over: tuple[GroupDim, ...], node: int | None) -> int:
    """The ranks of a group in the node of its first rank, itself included."""
    offsets = [0]
    for axis in (axis for axis in mesh if axis.dim in over):
        inside = axis.size if node is None else min(axis.size, -(-node // axis.stride))
        offsets = [first + axis.stride * index for index in range(inside) for first in offsets]
        offsets = [one for one in offsets if node is None or one < node]
    return len(offsets)


def members_of(one: Collective, mesh: tuple[Axis, ...], node: int | None) -> int:
    """The ranks of a collective's group in the node of its first rank; a pipeline's two ends may be apart."""
    found = members_in_node(mesh, one.over, node)
    size = prod(axis.size for axis in mesh if axis.dim in one.over)
    return found if one.group_size == size else one.group_size if found == size else 1


def route(collective: Collective, members: int) -> Route:
    """Route one of these collectives with `members` of its group in each node."""
    size, sent = collective.group_size, collective.sent_bytes / collective.count
    nodes = -(-size // members)
    crosses = nodes > 1
    steps = size - nodes, nodes - 1
    links, nic = (sent * (members - 1) / members, sent / members) if crosses else (sent, 0.0)
    outside = (size - members) * collective.input_bytes
    match collective.kind:
        case Kind.ALL_GATHER:
            return Route(links, nic, 0.0 if crosses else sent, outside / members, *steps)
        case Kind.REDUCE_SCATTER:
            return Route(links, nic, 0.0 if crosses else sent, outside / size / members, *steps)
        case Kind.ALL_REDUCE:
            inside, out = (
                (0.0, collective.input_bytes / members) if crosses else (float(collective.input_bytes), 0.0)
            )
            # A tree instead of a ring, where that has fewer steps.
            tree = 2 * (members - 1), 2 * (nodes - 1).bit_length()
            return Route(links, nic, inside, out, min(2 * steps[0], tree[0]), min(2 * steps[1], tree[1]))
        case Kind.ALL_TO_ALL:
            links, nic = (members - 1) * collective.input_bytes / size, outside / size
            return Route(links, nic, links, nic, min(1, members - 1), min(1, nodes - 1))
        case Kind.SEND | Kind.GATHER | Kind.BROADCAST:
            if crosses:
                return Route(0.0, sent, 0.0, sent / members, 0, 1)
            return Route(sent, 0.0, sent, 0.0, 1, 0)
