"""The sums of layers' outputs: in a pipeline, a loss is NaN on a rank that may not have caused it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from planc.runtime.torch.parallel.local_parts import local_of

if TYPE_CHECKING:
    # Lazy: it imports this module.
    from planc.runtime.torch.parallel.pipeline import Pipeline


class LayerOutputs:
    """The sum of what each module of this rank put out, by micro-batch of the step.

    NaN and inf stay in a sum, and nothing costs less: one reduction on the device for each module, which the
    host does not wait for. In float32 it overflows only where the next layer would. The head has none: its
    outputs are the largest tensor of all, and the loss shows them.
    """

    def __init__(
        self, model: nn.Module, pipeline: Pipeline, *, num_micro_batches: int, device: torch.device
    ) -> None:
        self._modules = [
            (stage, place, name)
            for stage in pipeline.own
            for place, name in enumerate(pipeline.op.stages[stage])
            if name != pipeline.op.head
        ]
        self._sums = torch.zeros(len(self._modules), num_micro_batches, device=device)
        for row, (_, _, name) in enumerate(self._modules):
            model.get_submodule(name).register_forward_hook(partial(self._note, pipeline, row))

    def _note(self, pipeline: Pipeline, row: int, module: nn.Module, inputs: object, output: object) -> None:
        hidden = output[0] if isinstance(output, Sequence) else output
        # A stage may have modules that put out no hidden states: complex rotations, a mask.
        if not module.training or not isinstance(hidden, Tensor) or not hidden.is_floating_point():
            return
        with torch.no_grad():
            local = local_of(hidden)
            dtype = torch.promote_types(local.dtype, torch.float32)
            self._sums[row, pipeline.now.micro_step].copy_(local.sum(dtype=dtype))

    def first_nonfinite(self) -> Iterator[tuple[int, int, str, int]]:
        """The first module with NaN or inf in its outputs, by stage and micro-batch.

        Its stage, its place there, its name, the micro-batch.
        """
        seen: set[tuple[int, int]] = set()
        for row, micro_step in (~self._sums.isfinite()).nonzero().tolist():
            stage, place, name = self._modules[row]
            if (stage, micro_step) not in seen:
                seen.add((stage, micro_step))
                yield stage, place, name, micro_step
