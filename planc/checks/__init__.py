"""Every rule, one file each, registered here in one tuple."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks import (
    attention_unsupported,
    auto_style_unknown,
    batch_indivisible,
    batch_over_tp,
    betas_exchanged,
    chat_without_template,
    checkpointing_on_list,
    colwise_without_rowwise,
    compiled_around_unit,
    compiled_list,
    compiled_ring,
    compiled_under_tp,
    computed_above_stored,
    decay_beyond_one,
    divided_norm_gradient,
    does_not_fit,
    eager_in_parts,
    empty_shards,
    epsilon_vanishes,
    evaluated_on_training,
    expectation_broken,
    features_apart,
    float16_unscaled,
    fused_projection,
    gathered_in_attention,
    gradients_unsummed,
    group_sets_nothing,
    head_output,
    heads_fixed,
    heads_indivisible,
    heads_partly_divided,
    implausible_values,
    kv_heads_indivisible,
    latent_projection,
    layouts_disagree,
    learning_rate_zero,
    missing_buffers,
    module_in_two_units,
    module_not_called,
    nested_checkpointing,
    nesterov_without_momentum,
    no_block_unit,
    no_such_dim,
    no_tensor_parallel_rules,
    norm_outside_sequence_parallel,
    norms_decayed,
    nothing_saved,
    offloaded_nowhere,
    output_used_whole,
    overlapping_rules,
    override_of_nothing,
    own_parameter,
    packed_projection,
    pattern_partial,
    pattern_unmatched,
    placed_by_model,
    policy_beyond_training,
    prepared_input_unread,
    profile_beyond_training,
    ragged_nodes,
    recomputed_in_pieces,
    recurrent_isolated,
    recurrent_under_cp,
    reduced_below_compute,
    reduced_in_few_bits,
    replicate_dim,
    ring_kernel,
    rowwise_without_colwise,
    schedule_beyond_training,
    sequence_beyond_positions,
    sequence_indivisible,
    sequence_over_cp,
    snapshot_on_cpu,
    style_kind,
    tied_parameters_apart,
    tied_placements,
    tokenizer_beyond_vocabulary,
    tokens_apart,
    tp_crosses_node,
    ulysses_heads,
    unit_on_container,
    unit_without_parameters,
    units_in_circle,
    unknown_data_format,
    unpinned_revision,
    unused_mesh_dim,
    updates_rounded_away,
    value_dim_under_cp,
    vocabulary_below_tp,
    warmup_beyond_training,
    weights_unset,
    width_indivisible,
    window_under_cp,
    world_size_mismatch,
)
from planc.checks.model import Rule, Subject
from planc.diagnostics import Diagnostic, Severity
from planc.plan.spec import Plan
from planc.source import Span

RULES: tuple[Rule, ...] = (
    # Patterns first: later rules leave out what is a mere consequence of these.
    pattern_unmatched.RULE,
    overlapping_rules.RULE,
    override_of_nothing.RULE,
    pattern_partial.RULE,
    world_size_mismatch.RULE,
    tp_crosses_node.RULE,
    ragged_nodes.RULE,
    unused_mesh_dim.RULE,
    gradients_unsummed.RULE,
    replicate_dim.RULE,
    no_tensor_parallel_rules.RULE,
    auto_style_unknown.RULE,
    style_kind.RULE,
    no_such_dim.RULE,
    heads_indivisible.RULE,
    kv_heads_indivisible.RULE,
    width_indivisible.RULE,
    vocabulary_below_tp.RULE,
    sequence_indivisible.RULE,
    colwise_without_rowwise.RULE,
    rowwise_without_colwise.RULE,
    heads_partly_divided.RULE,
    norm_outside_sequence_parallel.RULE,
    divided_norm_gradient.RULE,
    tokens_apart.RULE,
    features_apart.RULE,
    own_parameter.RULE,
    layouts_disagree.RULE,
    gathered_in_attention.RULE,
    fused_projection.RULE,
    packed_projection.RULE,
    latent_projection.RULE,
    placed_by_model.RULE,
    heads_fixed.RULE,
    output_used_whole.RULE,
    prepared_input_unread.RULE,
    batch_over_tp.RULE,
    head_output.RULE,
    module_not_called.RULE,
    tied_placements.RULE,
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
    offloaded_nowhere.RULE,
    missing_buffers.RULE,
    sequence_over_cp.RULE,
    window_under_cp.RULE,
    ulysses_heads.RULE,
    recurrent_under_cp.RULE,
    value_dim_under_cp.RULE,
    eager_in_parts.RULE,
    ring_kernel.RULE,
    batch_indivisible.RULE,
    expectation_broken.RULE,
    sequence_beyond_positions.RULE,
    tokenizer_beyond_vocabulary.RULE,
    recurrent_isolated.RULE,
    chat_without_template.RULE,
    unpinned_revision.RULE,
    unknown_data_format.RULE,
    evaluated_on_training.RULE,
    weights_unset.RULE,
    attention_unsupported.RULE,
    epsilon_vanishes.RULE,
    learning_rate_zero.RULE,
    betas_exchanged.RULE,
    decay_beyond_one.RULE,
    implausible_values.RULE,
    norms_decayed.RULE,
    updates_rounded_away.RULE,
    warmup_beyond_training.RULE,
    schedule_beyond_training.RULE,
    nesterov_without_momentum.RULE,
    group_sets_nothing.RULE,
    nothing_saved.RULE,
    policy_beyond_training.RULE,
    profile_beyond_training.RULE,
    snapshot_on_cpu.RULE,
    checkpointing_on_list.RULE,
    nested_checkpointing.RULE,
    recomputed_in_pieces.RULE,
    compiled_list.RULE,
    compiled_under_tp.RULE,
    compiled_ring.RULE,
    compiled_around_unit.RULE,
    float16_unscaled.RULE,
    # Last, since it takes an estimate and, where the plan does not fit, several.
    does_not_fit.RULE,
)


def run_checks(subject: Subject) -> Iterator[Diagnostic]:
    """The findings of all rules, in registration order, without mere consequences of one another."""
    found: set[tuple[str, str]] = set()
    has_error = False
    for rule in RULES:
        is_idle = rule.over is not None and subject.plan.mesh.size(rule.over) == 1
        if is_idle or any((rule.block, code.code) in found for code in rule.unless):
            continue
        if rule.of_sound and has_error:
            continue
        for diagnostic in rule.check(subject):
            found.add((_block(subject.plan, diagnostic.primary.span), diagnostic.code.code))
            has_error = has_error or diagnostic.severity is Severity.ERROR
            yield diagnostic


def _block(plan: Plan, span: Span) -> str:
    """The outermost block that a span is in: the last one to start before it."""
    starts = {
        (kind_span.line, kind_span.column): path
        for path, kind_span in plan.spans.items()
        if "." not in path and kind_span.file == span.file
    }
    before = [start for start in starts if start <= (span.line, span.column)]
    return starts[max(before)] if before else ""


__all__ = ["RULES", "Rule", "Subject", "run_checks"]
