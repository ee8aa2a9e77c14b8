"""`optimizer.build`."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.graph.op import Effects, Op, Resource, Stage
from planc.record import record


@record(kw_only=True)
class ParameterGroup:
    """Parameters with equal options. `lr` is the peak of their learning rate."""

    lr: float
    weight_decay: float
    parameters: tuple[str, ...]


@record(kw_only=True)
class BuildOptimizer(Op):
    """The options of the other kind are None."""

    op: Literal["optimizer.build"] = "optimizer.build"
    stage: ClassVar[Stage] = Stage.OPTIMIZER
    summary: ClassVar[str] = "Builds the optimizer over the sharded parameters."
    kind: Literal["adamw", "sgd"]
    implementation: Literal["auto", "fused", "foreach", "for_loop"]
    lr: float
    betas: tuple[float, float] | None = None
    eps: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    groups: tuple[ParameterGroup, ...]
    """Every parameter is in exactly one."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """What the optimizer keeps for each parameter, each as large as it, by the names that torch has."""
        if self.kind == "adamw":
            return ("exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if self.momentum else ()

    def implementation_on(self, device: str) -> str:
        """What `auto` is on a device. On CUDA it is not torch's default for AdamW, which takes the square
        roots of all second moments first, as large as the parameters."""
        if self.implementation != "auto":
            return self.implementation
        on_cuda = {"adamw": "fused", "sgd": "foreach"}
        return on_cuda[self.kind] if device == "cuda" else "for_loop"

    def num_copies(self, group: ParameterGroup) -> int:
        """How many tensors as large as each parameter a step makes beside what stays.

        With `foreach` those of the whole group are there at once, with `for_loop` one parameter's. One kernel
        needs none (torch.optim.adam, torch.optim.sgd).
        """
        chosen = self.implementation_on("cuda")
        if chosen == "fused":
            return 0
        is_alone = chosen == "for_loop"
        if self.kind == "adamw":
            # The square root of the second moments, which a loop then divides into another tensor.
            return 2 if is_alone else 1
        decayed = int(group.weight_decay > 0)
        # The gradient with its decay; a loop adds the momentum to it in another tensor still.
        return decayed + int(is_alone and bool(self.nesterov))

    def effects(self) -> Effects:
        return Effects(reads=(Resource.WEIGHTS,), writes=(Resource.OPTIMIZER,))
