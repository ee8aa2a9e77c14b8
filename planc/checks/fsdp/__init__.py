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
    replicate_dim.check,
    unit_on_container.check,
    no_block_unit.check,
    tied_parameters_apart.check,
    module_in_two_units.check,
    units_in_circle.check,
    unit_without_parameters.check,
    empty_shards.check,
    reduced_below_compute.check,
    reduced_in_few_bits.check,
    computed_above_stored.check,
    dtypes_in_unit.check,
    rounded_for_compute.check,
    offloaded_nowhere.check,
    freed_after_forward.check,
)
