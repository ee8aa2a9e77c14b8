"""Sums of gradients over whole replicas, which run while backward computes the gradients of other layers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Work

from planc.graph.ops import AllReduceGradients
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.torch import private
from planc.runtime.torch.parallel.gradients import flattened
from planc.runtime.torch.parallel.local_parts import layout_of, local_of
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Gradients, Weights


@dataclass(slots=True)
class _Message:
    """Parameters by name, whose gradients are summed together."""

    parameters: Mapping[str, nn.Parameter]
    missing: set[str] = field(default_factory=set)
    """Parameters whose gradient this micro step has not computed yet."""
    is_gathered: bool = False
    """Every gradient is its part of `flat`, to which later micro steps add in place."""
    flat: Tensor | None = None
    parts: Sequence[Tensor] = ()
    works: list[Work] = field(default_factory=list)
    """The sums under way; empty if the message is not sent."""


class ReplicaSums:
    """The sums of a step, in messages that every replica sends in the same order.

    Each message waits for those before it. A parameter without a gradient is left out of its message, which
    is sent once backward has ended. The same parameters must be unused on every replica. They are, because
    all run the same layers, and experts are stacked in one parameter.

    `keeps_memory` is for CPUs: the system takes back what a step frees there, and zeroes each page again when
    it is used. A device's allocator keeps it, and forward can use it.
    """

    def __init__(
        self,
        messages: Iterable[Mapping[str, nn.Parameter]],
        *,
        groups: Sequence[ProcessGroup],
        keeps_memory: bool,
    ) -> None:
        self._messages = tuple(_Message(parameters) for parameters in messages)
        self._groups = groups
        self._keeps_memory = keeps_memory
        self.names = frozenset(name for message in self._messages for name in message.parameters)
        self._unsent: deque[_Message] = deque()
        self._final: set[str] = set()
        """The parameters whose last backward of the step has begun."""
        for message in self._messages:
            for name, parameter in message.parameters.items():
                arrived = partial(self._arrived, message, name)
                parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]

    def begin(self, names: Set[str], *, is_last: bool) -> None:
        """Let the next backward gather each message once these parameters complete it.

        The last one of a step sends it. Gathered in the first, it takes no more memory in the others.
        """
        for message in self._messages:
            message.missing |= names & message.parameters.keys()
        if not is_last:
            return
        if not self._final:
            self._unsent.extend(self._messages)
        self._final |= names

    def finish(self) -> None:
        """Send what is left, and wait for all sums."""
        while self._unsent:
            self._send()
        for message in self._messages:
            for work in message.works:
                work.wait()
            message.works.clear()
            message.is_gathered = False
            # A gradient alone in its message was not copied: the memory is its own.
            if not self._keeps_memory or len(message.parts) == 1:
                message.flat, message.parts = None, ()
        self._final.clear()

    def _arrived(self, message: _Message, name: str, _: Tensor) -> None:
        if message.works:
            raise RunError(
                f"backward adds to the gradient of {name} after its sum over replicas has started",
                help="the model's code runs a backward of its own inside backward, as reentrant activation "
                "checkpointing does: turn that off, or shard the model with an fsdp block",
            )
        message.missing.discard(name)
        if message.missing:
            # No other message waits for this gradient.
            return
        if all(parameter.grad is not None for parameter in message.parameters.values()):
            _gather(message)
        while self._unsent and self._is_complete(self._unsent[0]):
            self._send()

    def _is_complete(self, message: _Message) -> bool:
        return not message.missing and self._final.issuperset(message.parameters)

    def _send(self) -> None:
        message = self._unsent.popleft()
        _gather(message)
        if not message.is_gathered:
            return
        assert message.flat is not None, "it is gathered"
        for group in self._groups:
            for earlier in message.works:
                earlier.wait()
            work = dist.all_reduce(message.flat, group=group, async_op=True)
            assert work is not None, "this rank is one of the group"
            message.works.append(work)


@torch.no_grad()
def _gather(message: _Message) -> None:
    """Make the gradients of a message parts of one tensor, unless they are."""
    if message.is_gathered:
        return
    pairs = [(one, one.grad) for one in message.parameters.values() if one.grad is not None]
    if not pairs:
        return
    gradients = [local_of(gradient) for _, gradient in pairs]
    if [one.shape for one in gradients] == [part.shape for part in message.parts]:
        private.foreach_copy(message.parts, gradients)
    else:
        message.flat, message.parts = flattened(gradients)
    for (parameter, gradient), part in zip(pairs, message.parts, strict=True):
        parameter.grad = layout_of(gradient)(part)
    message.is_gathered = True


def begin_sums(sums: ReplicaSums | None, at: Position, pipeline: Pipeline | None, *, deferred: bool) -> None:
    """Let the last backward start the sums that `grads.all_reduce` waits for, if the graph has it.

    In a pipeline it is the last backward of a stage. If that defers gradients, they come by themselves.
    """
    if sums is None:
        return
    names: Set[str] = sums.names
    if pipeline is not None:
        names = {
            name
            for name in names
            if pipeline.stage_of(name) == at.stage and pipeline.defers(name) is deferred
        }
    sums.begin(names, is_last=at.is_last_micro_step)


def replica_sums(run: Run, mesh: Mesh, weights: Weights, pipeline: Pipeline | None) -> ReplicaSums | None:
    """The sums of the graph's `grads.all_reduce`; None if it has none."""
    op = next((op for op in run.graph.step if isinstance(op, AllReduceGradients)), None)
    if op is None:
        return None
    parameters = {name: one for name, one in _own_parameters(weights, pipeline).items() if one.requires_grad}
    sizes = ((name, one.dtype, one.nbytes) for name, one in parameters.items())
    return ReplicaSums(
        ({name: parameters[name] for name in names} for names in op.messages(sizes)),
        groups=[mesh.group(mesh_dim) for mesh_dim in op.over],
        keeps_memory=run.keeps_gradients,
    )


def _own_parameters(weights: Weights, pipeline: Pipeline | None) -> dict[str, nn.Parameter]:
    """The model's parameters by the names and in the order of this rank's modules.

    So a tied weight of a pipeline's last stage is where its head is.
    """
    copies = pipeline.copies if pipeline is not None else {}
    names: dict[nn.Parameter, str] = {}
    for name, parameter in weights.model.named_parameters(remove_duplicate=False):
        if name not in copies:
            names.setdefault(parameter, name)
    return {name: parameter for parameter, name in names.items()}


def all_reduce_gradients(run: Run, op: AllReduceGradients, gradients: Gradients, sums: ReplicaSums) -> None:
    """Wait until every gradient is the sum over the replicas of its parameter."""
    sums.finish()
