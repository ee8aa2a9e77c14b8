"""What a change of a plan changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_source
from planc.diagnostics import Code
from planc.diff.differ import diff
from planc.diff.difference import Action, Change, Group, PlanDiff
from planc.diff.machine import render_diff_json
from planc.diff.side import Side, side_of
from planc.diff.text import render_markdown, render_text
from planc.graph.op import Op
from planc.source import SourceFile
from tests.plans import FULL, PLANS

GOLDENS = Path(__file__).parent


def _side(*edits: tuple[str, str], settings: tuple[str, ...] = (), text: str = FULL) -> Side:
    for old, new in edits:
        assert old in text, f"nothing to edit: {old}"
        text = text.replace(old, new)
    sources = [SourceFile(f"--set[{number}]", setting) for number, setting in enumerate(settings)]
    checked = check_source(SourceFile("x.plan", text), base=PLANS, settings=sources)
    side = side_of(checked, name="x.plan")
    assert side is not None, checked.diagnostics
    return side


def _diff(*settings: str) -> PlanDiff:
    return diff(_side(), _side(settings=settings))


def _change(found: PlanDiff, name: str) -> Change:
    return next(change for change in found.changes if change.name == name)


def _names(found: PlanDiff, group: Group) -> list[str]:
    return [change.name for change in found.changes if change.group is group]


MESH = ("mesh.tp=4", "mesh.dp_shard=1")


@pytest.mark.parametrize(
    ("render", "golden"),
    [
        (lambda found: render_text(found, colour=False), "mesh.txt"),
        (render_markdown, "mesh.md"),
        (render_diff_json, "mesh.json"),
    ],
)
def test_mesh_change_golden(
    render: Callable[[PlanDiff], str], golden: str, match_golden: Callable[[Path, str], None]
) -> None:
    match_golden(GOLDENS / golden, render(_diff(*MESH)))


@pytest.mark.parametrize(
    "edit",
    [
        ("mesh {", "# why\nmesh {"),
        ("param lr: float = 4e-3\n", "param rate: float = 4e-3\n"),
        ("= 4096", "= 4_096"),
    ],
)
def test_refactoring_is_no_semantic_change(edit: tuple[str, str]) -> None:
    edits = [edit, ("lr = lr", "lr = rate")] if "rate" in edit[1] else [edit]
    found = diff(_side(), _side(*edits))
    assert found.same_meaning
    assert found.num_changed == 0
    assert "no semantic change" in render_text(found, colour=False)


def test_new_warnings_are_listed_with_line_and_label() -> None:
    comment = ("mesh {", "mesh {  # planc: ignore[P304] one node")
    one, two = _side(comment), _side((comment[0], f"# Above.\n{comment[1]}"), ("4e-3", "4.0"))
    text = render_text(diff(_side(), one), colour=False)
    line = FULL[: FULL.index("mesh {")].count("\n") + 1
    assert (
        f"no semantic change\nWARNINGS\n    x.plan:{line}:9 [P903] this comment suppresses nothing: " in text
    )
    assert text.endswith(" 1 warning.\n")
    markdown = render_markdown(diff(one, two))
    assert "**New warnings**\n\n- x.plan:" in markdown and "P723" in markdown and "P903" not in markdown
    assert markdown.endswith(" 2 warnings (1 new).\n")
    assert render_text(diff(two, two), colour=False).endswith(" 2 warnings (none new).\n")


@pytest.mark.parametrize(
    ("edit", "settings", "name", "place"),
    [
        (("0.95]", "0.99]"), (), "optimizer betas", "kind ="),
        (("betas = [0.9, 0.95]", "betas = [0.8, 0.95], eps = 1e-9"), (), "optimizer eps", "kind ="),
        (("4e-3", "3e-3"), (), "optimizer lr", "kind = (param lr)"),
        (("0.95]", "0.99]"), ("lr=1e-3",), "optimizer betas", "kind ="),
        (("0.95]", "0.99]"), ("optimizer.kind.lr=1e-3",), "optimizer betas", "kind ="),
        (("0.95]", "0.99]"), ("optimizer.kind.lr=1e-3",), "optimizer lr", "--set optimizer.kind.lr=1e-3"),
        (("decay = 0.0)", "decay = 0.05)"), (), "weight_decay of 9 parameters", "-> group("),
        (("weight_decay = 0.1)", "weight_decay = 0.2)"), (), "weight_decay of 30 parameters", "kind ="),
    ],
)
def test_a_change_in_the_optimizer_is_at_the_line_that_makes_it(
    edit: tuple[str, str], settings: tuple[str, ...], name: str, place: str
) -> None:
    found = diff(_side(), _side(edit, settings=settings))
    head, space, via = place.partition(" (")
    line = next((n for n, text in enumerate(FULL.splitlines(), 1) if head in text), None)
    expected = f"x.plan:{line}{space}{via}" if line else place
    assert _change(found, name).place == expected


def test_resharding_is_one_line_with_kv_heads() -> None:
    change = _change(_diff("mesh.tp=4"), "30 modules resharded over tp")
    assert change.note == "kv heads per rank 2 -> 1"


def test_style_change_shows_local_shapes() -> None:
    found = diff(
        _side(), _side(('mlp.down_proj" -> rowwise(output = Shard(1))', 'mlp.down_proj" -> replicate'))
    )
    change = _change(found, "model.layers.{0..3}.mlp.down_proj")
    assert (change.old, change.new) == ("rowwise", "replicate")
    assert change.note == "weight [128, 176] -> [128, 352]"
    assert change.place.startswith("x.plan:")


def test_rules_that_change_alike_have_a_place_each() -> None:
    old = '"model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel'
    names = ("input_layernorm", "post_attention_layernorm")
    new = "\n  ".join(f'"model.layers.*.{name}" -> replicate' for name in names)
    found = diff(_side(), _side((old, new)))
    places = [change.place for change in found.changes if change.new == "replicate"]
    line = FULL[: FULL.index(old)].count("\n") + 1
    assert places == [f"x.plan:{line}", f"x.plan:{line + 1}"]


def test_boundary_change_shows_the_placements() -> None:
    found = diff(
        _side(),
        _side(
            (
                "colwise(input = Shard(1), output = Shard(-1))",
                "colwise(input = Shard(1), output = Replicate())",
            )
        ),
    )
    change = _change(found, "lm_head")
    assert change.old == "colwise(output = Shard(-1))"
    assert change.new == "colwise(output = Replicate())"


def test_losing_tensor_parallelism_is_one_line() -> None:
    found = _diff("mesh.tp=1")
    assert _names(found, Group.LAYOUT) == ["mesh.tp", "30 modules sharded over tp"]
    assert _change(found, "30 modules sharded over tp").action is Action.REMOVE


def test_unit_change_names_the_unit() -> None:
    found = diff(
        _side(),
        _side(('"model.layers.*" -> unit(reshard_after_forward = true)', '"model.layers.{0..1}" -> unit')),
    )
    assert _names(found, Group.LAYOUT) == ["FSDP unit model.layers.{2..3}"]
    assert _change(found, "FSDP unit model.layers.{2..3}").action is Action.REMOVE


def test_recomputation_change_names_the_modules() -> None:
    found = diff(_side(), _side(('"model.layers.*" -> none', '"model.layers.{0..1}" -> full')))
    assert _names(found, Group.LAYOUT) == ["activation_checkpoint model.layers.{0..1}"]


def test_recomputing_selectively_instead_of_fully_is_a_change_of_its_own() -> None:
    rule = '"model.layers.*" -> none'
    full, selective = (_side((rule, f'"model.layers.*" -> {mode}')) for mode in ("full", "selective"))
    change = _change(diff(full, selective), "activation_checkpoint model.layers.{0..3}")
    assert (change.action, change.old, change.new) == (Action.CHANGE, "full", "selective")


def test_compiling_otherwise_is_a_change_with_another_order_of_sums() -> None:
    blocks = (
        f'compile {{\n  backend = {backend}\n  "model.layers.*" -> region\n}}'
        for backend in ("aot_eager", "inductor")
    )
    eager, inductor = (_side(("tp = 2", "tp = 1"), ("data {", f"{block}\ndata {{")) for block in blocks)
    found = diff(eager, inductor)
    change = _change(found, "compile model.layers.{0..3}")
    assert (change.action, change.old, change.new) == (Action.CHANGE, "aot_eager", "inductor(default)")
    assert "compile" in _change(found, "reduction order").note


def test_offloading_is_a_change_of_the_layout() -> None:
    found = _diff("fsdp.cpu_offload=true")
    change = _change(found, "fsdp.cpu_offload")
    assert (change.group, change.action, change.new) == (Group.LAYOUT, Action.ADD, "true")


def test_units_ahead_are_a_change_of_the_layout() -> None:
    change = _change(_diff("fsdp.prefetch=2"), "fsdp.prefetch")
    assert (change.group, change.action, change.new) == (Group.LAYOUT, Action.ADD, "2")


def test_reducing_in_each_micro_batch_is_another_order_of_sums() -> None:
    found = _diff("fsdp.reduce_every=micro_batch")
    change = _change(found, "fsdp.reduce_every")
    assert (change.group, change.action, change.new) == (Group.NUMERICS, Action.ADD, "micro_batch")
    assert "fsdp.reduce_every" in _change(found, "reduction order").note


@pytest.mark.parametrize(
    ("settings", "action", "note"),
    [
        (("train.log_every=2 steps",), None, ""),
        (("mesh.tp=1",), Action.KEEP, "reshard on load"),
        (
            ("model.dtype=bfloat16",),
            Action.REPLACE,
            "refused: parameters are float32 in one and bfloat16 in the other",
        ),
        (('model.hf="models/qwen3-8b"',), Action.REPLACE, "refused: 360 parameters in one model only"),
    ],
)
def test_model_and_optimizer_checkpoint(settings: tuple[str, ...], action: Action | None, note: str) -> None:
    found = _diff(*settings)
    if action is None:
        assert "model, optimizer" not in _names(found, Group.CHECKPOINT)
    else:
        change = _change(found, "model, optimizer")
        assert (change.action, change.note) == (action, note)


def test_model_of_other_shapes_is_refused(tmp_path: Path) -> None:
    other = diff(
        _side(settings=('model.hf="models/llama-3.1-8b"',)),
        _side(settings=('model.hf="models/llama-3.1-405b"',)),
    )
    assert _change(other, "model, optimizer").note.startswith("refused: ")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("mesh.dp_shard=4", ("2", "4", "dp ranks")),
        ("data.shuffle_seed=7", (None, None, "refused: different data.shuffle_seed")),
        ("data.sequence_length=128", (None, None, "refused: different data.sequence_length")),
        ('data.source=text("a.txt")', (None, None, "refused: different data.source")),
    ],
)
def test_data_loader_checkpoint(setting: str, expected: tuple[str | None, str | None, str]) -> None:
    change = _change(_diff(setting), "data loader")
    assert (change.old, change.new, change.note) == expected
    assert change.action is Action.REPLACE


def test_micro_batch_leaves_the_data_loader_alone() -> None:
    found = _diff("data.micro_batch=8")
    assert "data loader" not in _names(found, Group.CHECKPOINT)
    assert _change(found, "tokens/step").action is Action.KEEP


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        (("size=4",), "x.plan:15 (param size, --set size=4)"),
        (("mesh.tp=4",), "--set mesh.tp=4"),
    ],
)
def test_place_names_the_parameter_and_what_set_it(settings: tuple[str, ...], place: str) -> None:
    edits = [("tp = 2", "tp = size"), ("param lr", "param size: int = 2\nparam lr")]
    found = diff(_side(*edits), _side(*edits, settings=settings))
    assert _change(found, "mesh.tp").place == place


def test_place_names_a_parameter_inside_a_call() -> None:
    assert _change(_diff("lr=1e-3"), "optimizer lr").place == "x.plan:49 (param lr, --set lr=1e-3)"


def test_weight_decay_names_the_parameters() -> None:
    found = diff(_side(), _side(('"**.*norm*" -> group', '"model.norm" -> group')))
    assert _names(found, Group.NUMERICS) == [
        "weight_decay model.layers.{0..3}.input_layernorm.weight",
        "weight_decay model.layers.{0..3}.post_attention_layernorm.weight",
    ]


ADAMW = "adamw(lr = lr, betas = [0.9, 0.95], weight_decay = 0.1)"


def test_a_learning_rate_of_their_own_names_the_parameters() -> None:
    found = diff(_side(), _side(("weight_decay = 0.0", "weight_decay = 0.0, lr = 0.1")))
    changes = [change for change in found.changes if change.group is Group.NUMERICS]
    assert {(change.old, change.new) for change in changes} == {("the optimizer's", "0.1")}
    assert "lr model.norm.weight" in [change.name for change in changes]


def test_a_rate_for_all_is_one_line() -> None:
    assert _names(_diff("lr=1e-3"), Group.NUMERICS) == ["optimizer lr"]


def test_a_checkpoint_of_another_optimizer_is_refused() -> None:
    found = diff(_side(), _side((ADAMW, "sgd(lr = lr)")))
    change = _change(found, "model, optimizer")
    assert change.action is Action.REPLACE
    assert change.note == "refused: one optimizer keeps exp_avg and exp_avg_sq, the other nothing"


def test_a_matrix_that_the_rest_takes_from_muon_is_named_and_refuses_a_checkpoint() -> None:
    muon = (ADAMW, "muon(lr = lr, weight_decay = 0.1, rest = adamw(lr = lr, weight_decay = 0.1))")
    rule = '"model.layers.1.mlp.up_proj" -> group(rest = true)\n  "**.*norm*"'
    found = diff(_side(muon), _side(muon, ('"**.*norm*"', rule)))
    change = _change(found, "rest model.layers.1.mlp.up_proj.weight")
    assert (change.old, change.new) == ("false", "true")
    note = _change(found, "model, optimizer").note
    assert note == "refused: one optimizer keeps momentum_buffer, the other exp_avg and exp_avg_sq"


def test_another_implementation_goes_on_from_a_checkpoint() -> None:
    found = diff(_side(), _side((ADAMW, ADAMW.replace(")", ", implementation = foreach)"))))
    assert [change.name for change in found.changes] == ["optimizer implementation"]


def test_broken_expectation_stands_at_the_change_that_breaks_it() -> None:
    new = _side(settings=("data.micro_batch=8",))
    assert new.plan is not None
    expectation = next(one for one in new.plan.expectations if one.subject == "gradient_accumulation")
    finding = Code("P999", "broken", "an expectation is broken").at(expectation.subject_span)
    found = diff(_side(), replace(new, diagnostics=(finding,)))
    (broken,) = _change(found, "gradient_accumulation").findings
    assert (broken.code, broken.place) == ("P999", f"x.plan:{expectation.span.line}")
    assert broken.breaks
    text = render_text(found, colour=False)
    assert "ERRORS" not in text
    assert text.endswith("1 error, 1 note.\n")


EXPORT = ("resume = latest", 'resume = latest\n  export "hf" { dtype = bfloat16 }')


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((), (EXPORT,), (Action.ADD, None, "at the end, bfloat16", "x.plan:59")),
        ((EXPORT,), (), (Action.REMOVE, "at the end, bfloat16", None, "x.plan:59")),
        (
            (EXPORT,),
            (EXPORT, ("= bfloat16", "= float16")),
            (Action.CHANGE, "at the end, bfloat16", "at the end, float16", "x.plan:59"),
        ),
    ],
)
def test_an_export_that_comes_goes_or_changes_is_shown_with_the_checkpoint(
    before: tuple[tuple[str, str], ...],
    after: tuple[tuple[str, str], ...],
    expected: tuple[Action, str | None, str | None, str],
) -> None:
    found = diff(_side(*before), _side(*after))
    change = _change(found, 'export "hf"')
    assert change.group is Group.CHECKPOINT
    assert (change.action, change.old, change.new, change.place) == expected
    assert found.num_changed == 1


def test_an_export_in_the_stored_dtype_by_name_is_no_semantic_change() -> None:
    bare, named = (
        ("resume = latest", f'resume = latest\n  export "hf" {{ {text} }}')
        for text in ("", "dtype = float32")
    )
    assert diff(_side(bare), _side(named)).same_meaning


def test_plan_that_breaks_a_rule_is_compared_all_the_same() -> None:
    found = _diff("mesh.tp=8")
    assert found.new.num_errors > 0
    assert _change(found, "mesh.tp").new == "8"
    assert "[P402]" in render_text(found, colour=False)


def test_same_side_twice_counts_only_unchanged() -> None:
    found = diff(_side(), _side())
    assert (found.num_changed, found.changes) == (0, ())
    assert found.num_unchanged > 30


def test_json_has_every_change() -> None:
    found = _diff(*MESH)
    document = json.loads(render_diff_json(found))
    assert [change["name"] for change in document["changes"]] == [change.name for change in found.changes]
    assert {change["action"] for change in document["changes"]} >= {"change", "remove", "replace", "keep"}


def test_names_cannot_steer_a_terminal_or_a_table() -> None:
    graph = _side().graph
    odd = replace(
        graph,
        setup=tuple(
            _with(op, "path", "a\x1b[2J|b") if op.name == "model.build" else op for op in graph.setup
        ),
    )
    found = diff(Side("old", graph), Side("new", odd))
    assert "\x1b" not in render_text(found, colour=False)
    assert "a\\\\x1b\\[2J\\|b" in render_markdown(found)


def _with(op: Op, name: str, value: object) -> Op:
    return replace(op, **{name: value})  # type: ignore[arg-type]  # the field is chosen at run time
