"""Plans held against a model: which rule each name gets, whatever the order of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from planc.inventory.schema import Attention, Inventory, Kind, Module, Parameter
from planc.plan.auto import AutoRule
from planc.plan.bind import BoundPlan, bind
from planc.vocab import Replicate, Shard
from tests.plan.resolving import resolved
from tests.syntax.reading import covered

WEIGHT = Parameter("weight", (8, 8))
BIAS = Parameter("bias", (8,))
LAYERS = (0, 1)


def modules() -> tuple[Module, ...]:
    found = [
        Module("", "Model", Kind.CONTAINER),
        Module("embed", "Embedding", Kind.EMBEDDING, (WEIGHT,)),
        Module("layers", "ModuleList", Kind.MODULE_LIST),
    ]
    for layer in LAYERS:
        found += [
            Module(f"layers.{layer}", "Layer", Kind.CONTAINER),
            Module(f"layers.{layer}.q_proj", "Linear", Kind.LINEAR, (WEIGHT, BIAS)),
            Module(f"layers.{layer}.o_proj", "Linear", Kind.LINEAR, (WEIGHT,)),
            Module(f"layers.{layer}.norm", "Norm", Kind.NORM, (Parameter("weight", (8,)),)),
        ]
    return (*found, Module("head", "Linear", Kind.LINEAR, (WEIGHT,)))


def inventory(*, tp_plan: tuple[tuple[str, str], ...] = ()) -> Inventory:
    return Inventory(
        config_digest="",
        architecture="Model",
        model_type="model",
        vocab_size=8,
        hidden_size=8,
        max_positions=None,
        modules=modules(),
        attentions=(Attention("layers.0", 1, 1, 8),),
        tp_plan=tp_plan,
        blocks=("layers",),
    )


def orders(rules: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Every order of some rules."""
    return list(permutations(rules))


def text(block: str, rules: Sequence[str], *, optimizer: str = "") -> str:
    body = "\n".join(f"  {rule}" for rule in rules)
    return f"""\
model {{ hf = "m" }}
{block} {{
{body}
}}
data {{ source = text("a"), sequence_length = 8, micro_batch = 1 }}
optimizer {{
  kind = adamw(lr = 1e-3)
  {optimizer}
}}
train {{ steps = 1 }}
"""


def bound(block: str, *rules: str, tp_plan: tuple[tuple[str, str], ...] = ()) -> BoundPlan:
    return bind(resolved(text(block, rules)), inventory(tp_plan=tp_plan))


def styles(found: BoundPlan) -> dict[str, str]:
    return {fqn: assignment.style.name for fqn, assignment in found.styles.items()}


def conflicts(found: BoundPlan) -> set[str]:
    return {conflict.name for conflict in found.conflicts}


TP = "tensor_parallel on tp"
Q = '"layers.*.q_proj" -> colwise'
ONE = '"layers.1.q_proj" -> replicate'
ALL = '"layers.*.*" -> replicate'


def test_each_module_gets_its_rule_in_the_model_s_order() -> None:
    found = bound(TP, '"head" -> rowwise', Q)
    assert styles(found) == {"layers.0.q_proj": "colwise", "layers.1.q_proj": "colwise", "head": "rowwise"}
    assert list(found.styles) == ["layers.0.q_proj", "layers.1.q_proj", "head"]
    assert found.conflicts == ()


def test_a_rule_s_options_settle_the_use() -> None:
    found = bound(
        TP, '"head" -> colwise(input = Shard(1), output = Shard(-1))', '"embed" -> embedding_rowwise'
    )
    head, embed = found.styles["head"].use, found.styles["embed"].use
    assert (head.input, head.computes_on, head.output) == (Shard(1), Replicate(), Shard(-1))
    assert (embed.input, embed.output) == (Replicate(), Replicate())


def test_two_rules_that_differ_conflict_where_both_match() -> None:
    found = bound(TP, Q, ONE)
    assert conflicts(found) == {"layers.1.q_proj"}
    (conflict,) = found.conflicts
    plan = text(TP, [Q, ONE])
    assert (covered(plan, conflict.first), covered(plan, conflict.second)) == (Q, ONE)


def test_two_rules_that_agree_do_not_conflict() -> None:
    assert bound(TP, Q, '"layers.1.q_proj" -> colwise').conflicts == ()


def test_rules_that_differ_in_an_option_conflict() -> None:
    assert conflicts(bound(TP, '"head" -> colwise', '"head" -> colwise(output = Replicate())')) == {"head"}


@pytest.mark.parametrize("rules", orders((Q, f"override {ONE}", '"layers.0.q_proj" -> colwise')))
def test_an_override_wins_wherever_it_stands(rules: tuple[str, ...]) -> None:
    found = bound(TP, *rules)
    assert styles(found) == {"layers.0.q_proj": "colwise", "layers.1.q_proj": "replicate"}
    assert found.conflicts == ()


@pytest.mark.parametrize("rules", orders((Q, ALL, f"override {ONE}")))
def test_an_override_settles_a_conflict_for_its_own_names_only(rules: tuple[str, ...]) -> None:
    assert conflicts(bound(TP, *rules)) == {"layers.0.q_proj"}


@pytest.mark.parametrize("rules", orders((Q, f"override {ONE}", 'override "layers.1.*" -> rowwise')))
def test_two_overrides_that_differ_conflict(rules: tuple[str, ...]) -> None:
    assert conflicts(bound(TP, *rules)) == {"layers.1.q_proj"}


AUTO = (("layers.*.q_proj", "colwise"), ("layers.*.o_proj", "rowwise"), ("layers.*", "rowwise"))


def test_auto_is_the_model_s_own_plan() -> None:
    found = bound(TP, "auto", tp_plan=AUTO)
    assert set(styles(found).items()) == {
        (f"layers.{layer}.{name}_proj", style)
        for layer in LAYERS
        for name, style in (("q", "colwise"), ("o", "rowwise"))
    }
    assert all(assignment.rule is None for assignment in found.styles.values())


def test_a_rule_beside_auto_adds_modules() -> None:
    found = bound(TP, "auto", '"head" -> colwise', tp_plan=AUTO)
    assert styles(found)["head"] == "colwise"
    assert len(found.styles) == 5
    assert found.conflicts == ()


@pytest.mark.parametrize("rules", orders(("auto", f"override {ONE}")))
def test_an_override_beside_auto_wins(rules: tuple[str, ...]) -> None:
    found = bound(TP, *rules, tp_plan=AUTO)
    assert styles(found)["layers.1.q_proj"] == "replicate"
    assert styles(found)["layers.0.q_proj"] == "colwise"
    assert found.conflicts == ()


def test_a_rule_that_differs_from_auto_conflicts() -> None:
    assert conflicts(bound(TP, "auto", ONE, tp_plan=AUTO)) == {"layers.1.q_proj"}


def test_a_rule_that_agrees_with_auto_is_the_one_that_counts() -> None:
    found = bound(TP, "auto", Q, tp_plan=AUTO)
    assert found.conflicts == ()
    assert found.styles["layers.0.q_proj"].rule is not None


def test_styles_of_the_model_that_planc_lacks_are_named() -> None:
    own = (("layers.*.q_proj", "moe_magic"), ("absent", "magic"), *AUTO)
    assert bound(TP, "auto", tp_plan=own).unknown_styles == (AutoRule("layers.*.q_proj", "moe_magic"),)


def test_no_tensor_parallel_block_gives_no_styles() -> None:
    assert bound("mesh", tp_plan=AUTO).styles == {}


FSDP = "fsdp on dp_shard"


def test_one_pattern_makes_a_unit_of_each_match() -> None:
    units = bound(FSDP, '"layers.*" -> unit').units
    assert [unit.fqns for unit in units] == [("layers.0",), ("layers.1",)]


def test_a_list_of_one_pattern_is_that_pattern() -> None:
    units = bound(FSDP, '["layers.*"] -> unit').units
    assert [unit.fqns for unit in units] == [("layers.0",), ("layers.1",)]


def test_a_list_of_patterns_makes_one_unit() -> None:
    units = bound(FSDP, '["head", "embed"] -> unit(reshard_after_forward = false)').units
    assert [(unit.fqns, unit.unit.reshard_after_forward) for unit in units] == [(("embed", "head"), False)]


@pytest.mark.parametrize(
    "rules", orders(('"layers.*" -> unit', '"layers.*.q_proj" -> unit', '"embed" -> unit'))
)
def test_units_stand_inside_before_outside_in_the_model_s_order(rules: tuple[str, ...]) -> None:
    units = bound(FSDP, *rules).units
    assert [unit.fqns[0] for unit in units] == [
        "layers.0.q_proj",
        "layers.1.q_proj",
        "layers.0",
        "layers.1",
        "embed",
    ]


@pytest.mark.parametrize(
    "rules",
    orders(('["layers.0.q_proj", "layers.1"] -> unit', '"layers.1.q_proj" -> unit', '"layers.0" -> unit')),
)
def test_a_unit_of_members_at_unlike_depths_stands_between_what_it_holds_and_what_holds_it(
    rules: tuple[str, ...],
) -> None:
    units = bound(FSDP, *rules).units
    assert [unit.fqns for unit in units] == [
        ("layers.1.q_proj",),
        ("layers.0.q_proj", "layers.1"),
        ("layers.0",),
    ]


def test_an_overriding_unit_takes_its_modules_from_a_list() -> None:
    found = bound(FSDP, '["head", "embed"] -> unit', 'override "head" -> unit(reshard_after_forward = false)')
    assert {unit.fqns for unit in found.units} == {("embed",), ("head",)}
    assert found.conflicts == ()


@pytest.mark.parametrize("rules", orders(('override ["head", "embed"] -> unit', 'override "head" -> unit')))
def test_overrides_that_group_a_module_differently_conflict(rules: tuple[str, ...]) -> None:
    assert conflicts(bound(FSDP, *rules)) == {"head"}


def test_units_that_differ_conflict() -> None:
    found = bound(FSDP, '"layers.*" -> unit', '"layers.1" -> unit(reshard_after_forward = false)')
    assert conflicts(found) == {"layers.1"}


def decays(*rules: str) -> BoundPlan:
    return bind(resolved(text("mesh", [], optimizer="\n  ".join(rules))), inventory())


def test_an_optimizer_group_takes_the_parameters_of_a_module() -> None:
    found = decays('"layers.0.q_proj" -> group(weight_decay = 0.0)').weight_decay
    assert {fqn: decay for fqn, (decay, _) in found.items()} == {
        "layers.0.q_proj.weight": 0.0,
        "layers.0.q_proj.bias": 0.0,
    }


def test_an_optimizer_group_takes_parameters_by_name() -> None:
    found = decays('"**.bias" -> group(weight_decay = 0.0)').weight_decay
    assert list(found) == [f"layers.{layer}.q_proj.bias" for layer in LAYERS]


def test_a_module_s_group_does_not_reach_the_modules_inside() -> None:
    found = decays('"layers.0" -> group(weight_decay = 0.0)')
    assert found.weight_decay == {}
    assert [selection.matched for selection in found.selections] == [()]


@pytest.mark.parametrize(
    "rules",
    orders(
        (
            '"**.q_proj" -> group(weight_decay = 0.5)',
            'override "**.bias" -> group(weight_decay = 0.0)',
            '"layers.0.q_proj.weight" -> group(weight_decay = 0.5)',
        )
    ),
)
def test_an_overriding_group_wins_wherever_it_stands(rules: tuple[str, ...]) -> None:
    found = decays(*rules)
    assert found.conflicts == ()
    assert {fqn: decay for fqn, (decay, _) in found.weight_decay.items()} == {
        f"layers.{layer}.q_proj.{name}": decay
        for layer in LAYERS
        for name, decay in (("weight", 0.5), ("bias", 0.0))
    }


def test_groups_that_differ_conflict_on_the_parameter() -> None:
    found = decays('"**.q_proj" -> group(weight_decay = 0.5)', '"**.bias" -> group(weight_decay = 0.0)')
    assert conflicts(found) == {f"layers.{layer}.q_proj.bias" for layer in LAYERS}


def test_a_group_leaves_alone_what_it_does_not_set() -> None:
    found = decays('"layers.0.q_proj" -> group(lr = 0.5)', '"layers.1.q_proj" -> group(weight_decay = 0.0)')
    assert {fqn: lr for fqn, (lr, _) in found.learning_rates.items()} == {
        "layers.0.q_proj.weight": 0.5,
        "layers.0.q_proj.bias": 0.5,
    }
    assert list(found.weight_decay) == ["layers.1.q_proj.weight", "layers.1.q_proj.bias"]


def test_tied_parameters_are_found_under_their_owner_s_name() -> None:
    tied = replace(inventory(), ties=(("embed.weight", "head.weight"),))
    plan = resolved(text("mesh", [], optimizer='"embed" -> group(weight_decay = 0.0)'))
    assert list(bind(plan, tied).weight_decay) == ["embed.weight"]


def test_checkpointing_wraps_what_is_full() -> None:
    found = bound("activation_checkpoint", '"layers.*" -> full', 'override "layers.1" -> none')
    assert list(found.checkpointed) == ["layers.0"]
    assert not found.selective


def test_checkpointing_is_selective_where_the_plan_says_so() -> None:
    found = bound("activation_checkpoint", '"layers.*" -> full', 'override "layers.1" -> selective')
    assert list(found.checkpointed) == ["layers.0", "layers.1"]
    assert found.selective == {"layers.1"}


def test_buffers_of_context_parallel_are_bound() -> None:
    found = bound("context_parallel on cp", '"{input_ids,labels}" -> Shard(1)', '"position_ids" -> Shard(0)')
    assert {name: tensor_dim for name, (tensor_dim, _) in found.buffers.items()} == {
        "input_ids": 1,
        "labels": 1,
        "position_ids": 0,
    }


def test_sequence_tensors_need_no_rules() -> None:
    """Each has one legal placement; a written rule wins, so that a wrong one is a finding."""
    for rules, position_dim in (((), 1), (('"position_ids" -> Shard(0)',), 0)):
        found = bound("context_parallel on cp", *rules)
        dims = {name: tensor_dim for name, (tensor_dim, _) in found.buffers.items()}
        assert dims == {"input_ids": 1, "labels": 1, "position_ids": position_dim}


def test_every_pattern_is_noted_with_what_it_matched() -> None:
    found = bound(TP, Q, '["head", "tail"] -> rowwise')
    assert {selection.pattern.text: selection.matched for selection in found.selections} == {
        "layers.*.q_proj": ("layers.0.q_proj", "layers.1.q_proj"),
        "head": ("head",),
        "tail": (),
    }
