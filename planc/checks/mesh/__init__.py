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
    world_size_mismatch.RULE,
    tp_crosses_node.RULE,
    ragged_nodes.RULE,
    unused_mesh_dim.RULE,
    gradients_unsummed.RULE,
    elastic_sizes.RULE,
    elastic_without_resume.RULE,
)
