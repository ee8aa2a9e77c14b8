"""The shards by FSDP of a rank's experts, over the ranks that hold the same ones."""

from __future__ import annotations

from math import prod

from planc.inventory.routers import num_stacked
from planc.plan.bind import BoundPlan
from planc.plan.spec import Plan
from planc.vocab import Replicate, local_shape


def num_sharing(plan: Plan) -> int:
    """The ranks that hold the same experts, over which FSDP shards them: those of cp too. At least one."""
    spec, fsdp = plan.expert_parallel, plan.fsdp
    if spec is None:
        return 1
    dims = {*spec.on, *(fsdp.on if fsdp else ())}
    return prod(map(plan.mesh.size, dims)) // spec.size or 1


def shares_experts(bound: BoundPlan, fqn: str) -> bool:
    """Whether each of these ranks has an equal number of a module's experts. Else FSDP shards features."""
    module, spec = bound.inventory.get(fqn), bound.plan.expert_parallel
    assert module is not None and spec is not None, "ranks share experts of this model"
    return num_stacked(module) // spec.size % num_sharing(bound.plan) == 0


def shares_features(bound: BoundPlan, fqn: str) -> bool:
    """Whether the dimension after that of experts divides, for every parameter, as tp leaves it."""
    module, styled = bound.inventory.get(fqn), bound.styles.get(fqn)
    assert module is not None, "ranks share experts of this model"
    for parameter in module.parameters:
        placement = styled.placement(parameter.name) if styled else Replicate()
        shape = local_shape(parameter.shape, placement, parts=bound.plan.mesh.tp, index=0)
        if shape[1] % num_sharing(bound.plan):
            return False
    return True
