"""Every rule, one file each, registered here in one tuple."""

from __future__ import annotations

from collections.abc import Iterator

from planc.checks import (
    auto_style_unknown,
    batch_indivisible,
    checkpointing_on_list,
    colwise_without_rowwise,
    divided_norm_gradient,
    expectation_broken,
    float16_unscaled,
    gradients_unsummed,
    head_output,
    heads_indivisible,
    heads_partly_divided,
    kv_heads_indivisible,
    layouts_disagree,
    missing_buffers,
    module_in_two_units,
    nested_checkpointing,
    no_block_unit,
    no_tensor_parallel_rules,
    norm_outside_sequence_parallel,
    nothing_saved,
    overlapping_rules,
    pattern_partial,
    pattern_unmatched,
    ragged_nodes,
    replicate_dim,
    rowwise_without_colwise,
    sequence_beyond_positions,
    sequence_indivisible,
    sequence_over_cp,
    style_kind,
    tied_parameters_apart,
    tied_placements,
    tokenizer_beyond_vocabulary,
    tp_crosses_node,
    ulysses_heads,
    unit_on_container,
    unused_mesh_dim,
    vocabulary_below_tp,
    warmup_beyond_training,
    width_indivisible,
    window_under_cp,
    world_size_mismatch,
)
from planc.checks.model import Rule, Subject
from planc.diagnostics import Diagnostic
from planc.plan.spec import Plan
from planc.source import Span

RULES: tuple[Rule, ...] = (
    # Patterns first: later rules leave out what is a mere consequence of these.
    pattern_unmatched.RULE,
    overlapping_rules.RULE,
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
    layouts_disagree.RULE,
    head_output.RULE,
    tied_placements.RULE,
    unit_on_container.RULE,
    no_block_unit.RULE,
    tied_parameters_apart.RULE,
    module_in_two_units.RULE,
    missing_buffers.RULE,
    sequence_over_cp.RULE,
    window_under_cp.RULE,
    ulysses_heads.RULE,
    batch_indivisible.RULE,
    expectation_broken.RULE,
    sequence_beyond_positions.RULE,
    tokenizer_beyond_vocabulary.RULE,
    warmup_beyond_training.RULE,
    nothing_saved.RULE,
    checkpointing_on_list.RULE,
    nested_checkpointing.RULE,
    float16_unscaled.RULE,
)


def run_checks(subject: Subject) -> Iterator[Diagnostic]:
    """The findings of all rules, in registration order, without mere consequences of one another."""
    found: set[tuple[str, str]] = set()
    for rule in RULES:
        is_idle = rule.over is not None and subject.plan.mesh.size(rule.over) == 1
        if is_idle or any((rule.block, code.code) in found for code in rule.unless):
            continue
        for diagnostic in rule.check(subject):
            found.add((_block(subject.plan, diagnostic.primary.span), diagnostic.code.code))
            yield diagnostic


def _block(plan: Plan, span: Span) -> str:
    """The block that a span is in: the last one to start before it. Blocks do not nest."""
    starts = {
        (kind_span.line, kind_span.column): path
        for path, kind_span in plan.spans.items()
        if "." not in path and kind_span.file == span.file
    }
    before = [start for start in starts if start <= (span.line, span.column)]
    return starts[max(before)] if before else ""


__all__ = ["RULES", "Rule", "Subject", "run_checks"]
