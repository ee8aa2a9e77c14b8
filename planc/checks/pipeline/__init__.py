"""Rules on pipelines: which layers each stage has, what crosses from stage to stage, and idle ranks."""

from planc.checks.pipeline import (
    beyond_pipelines,
    few_micro_batches,
    gathered_each_micro_batch,
    layers_without_stages,
    model_not_shown,
    more_stages_than_layers,
    stage_of_other_module,
    stage_trains_nothing,
    stages_out_of_order,
    uneven_stages,
    unit_across_stages,
    value_crosses_stages,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    beyond_pipelines.check,
    more_stages_than_layers.check,
    stage_of_other_module.check,
    layers_without_stages.check,
    stages_out_of_order.check,
    value_crosses_stages.check,
    model_not_shown.check,
    unit_across_stages.check,
    few_micro_batches.check,
    stage_trains_nothing.check,
    uneven_stages.check,
    gathered_each_micro_batch.check,
)
