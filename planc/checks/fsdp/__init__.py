"""Rules on FSDP: units, shards, and the dtypes that units compute and reduce in."""

from __future__ import annotations

from planc.checks.fsdp import (
    computed_above_stored,
    dtypes_in_unit,
    empty_shards,
    freed_after_forward,
    module_in_two_units,
    no_block_unit,
    offloaded_nowhere,
    reduced_below_compute,
    reduced_in_few_bits,
    replicate_dim,
    rounded_for_compute,
    tied_parameters_apart,
    unit_on_container,
    unit_without_parameters,
    units_in_circle,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    replicate_dim.RULE,
    unit_on_container.RULE,
    no_block_unit.RULE,
    tied_parameters_apart.RULE,
    module_in_two_units.RULE,
    units_in_circle.RULE,
    unit_without_parameters.RULE,
    empty_shards.RULE,
    reduced_below_compute.RULE,
    reduced_in_few_bits.RULE,
    computed_above_stored.RULE,
    dtypes_in_unit.RULE,
    rounded_for_compute.RULE,
    offloaded_nowhere.RULE,
    freed_after_forward.RULE,
)
