"""Rules on pipelines: which layers each stage has, what crosses from stage to stage, and idle ranks."""

from planc.checks.pipeline import (
    beyond_pipelines,
    few_micro_batches,
    gathered_each_micro_batch,
    layers_without_stages,
    model_not_shown,
    more_stages_than_layers,
    stage_of_other_module,
    stages_out_of_order,
    uneven_stages,
    unit_across_stages,
    value_crosses_stages,
)
from planc.checks.support.rule import Rule

RULES: tuple[Rule, ...] = (
    beyond_pipelines.RULE,
    more_stages_than_layers.RULE,
    stage_of_other_module.RULE,
    layers_without_stages.RULE,
    stages_out_of_order.RULE,
    value_crosses_stages.RULE,
    model_not_shown.RULE,
    unit_across_stages.RULE,
    few_micro_batches.RULE,
    uneven_stages.RULE,
    gathered_each_micro_batch.RULE,
)
