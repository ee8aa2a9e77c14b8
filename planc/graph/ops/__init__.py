"""Every op, in one file for each part of a run. `OPS` has the classes of these files."""

from planc.graph.op import Op
from planc.graph.ops import (
    balance,
    checkpoint,
    data,
    forward_backward,
    gradients,
    images,
    optimizer,
    parallel,
    pipeline,
    readers,
    reporting,
    setup,
)
from planc.graph.ops.balance import *  # noqa: F403  # the files are the list of ops
from planc.graph.ops.checkpoint import *  # noqa: F403
from planc.graph.ops.data import *  # noqa: F403
from planc.graph.ops.forward_backward import *  # noqa: F403
from planc.graph.ops.gradients import *  # noqa: F403
from planc.graph.ops.images import *  # noqa: F403
from planc.graph.ops.optimizer import *  # noqa: F403
from planc.graph.ops.parallel import *  # noqa: F403
from planc.graph.ops.pipeline import *  # noqa: F403
from planc.graph.ops.readers import *  # noqa: F403
from planc.graph.ops.reporting import *  # noqa: F403
from planc.graph.ops.setup import *  # noqa: F403

_FILES = (
    *(setup, pipeline, parallel, optimizer, data, images, forward_backward, balance, gradients, readers),
    *(reporting, checkpoint),
)

OPS: tuple[type[Op], ...] = tuple(
    sorted(
        (
            kind
            for file in _FILES
            for kind in vars(file).values()
            if isinstance(kind, type) and issubclass(kind, Op)
            if kind.__module__ == file.__name__
        ),
        key=lambda kind: kind.stage,
    )
)
"""Every op, in the order of setup's stages, and of the files that follow them."""
