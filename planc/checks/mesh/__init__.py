"""Rules on the mesh: its dims, its nodes, and the meshes that an elastic run shrinks to."""

from __future__ import annotations

from planc.checks.mesh import (
    elastic_sizes,
    elastic_without_resume,
    gradients_unsummed,
    ragged_nodes,
    tp_crosses_node,
    unused_mesh_dim,
    world_size_mismatch,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    world_size_mismatch.check,
    tp_crosses_node.check,
    ragged_nodes.check,
    unused_mesh_dim.check,
    gradients_unsummed.check,
    elastic_sizes.check,
    elastic_without_resume.check,
)
