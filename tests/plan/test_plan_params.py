"""Parameters and overrides: what sets a value, and the chain that says so."""

from __future__ import annotations

import pytest

from planc.plan import codes
from planc.plan.blocks import BLOCKS
from planc.plan.keys import keys
from planc.plan.overrides import Override
from planc.vocab import MeshDim
from tests.plan.resolving import TEXT, edited, fault, faults, resolved, setting
from tests.syntax.reading import covered

LR = "param lr: float = 4e-3\n"
TP = "  tp = 2\n"
SIZED = edited((LR, f"{LR}param size: int(1..8) = 2\n"), (TP, "  tp = size\n"))


def origin(text: str, path: str, *overrides: Override) -> list[tuple[str, str]]:
    """The kinds and texts of a value's origin."""
    return [(step.kind, step.text) for step in resolved(text, overrides=overrides).origins[path]]


def test_a_parameter_gives_its_value() -> None:
    assert resolved(SIZED).mesh.tp == 2


@pytest.mark.parametrize(("kind", "name"), [("set", "--set"), ("environment", "TP_SIZE")])
def test_a_parameter_is_overridden(kind: str, name: str) -> None:
    override = setting("size=4", kind=kind, name=name)
    assert resolved(SIZED, overrides=[override]).mesh.tp == 4
    assert origin(SIZED, "mesh.tp", override)[0] == ("written", "")
    assert origin(SIZED, "mesh.tp", override)[-1][0] == kind


def test_the_last_override_wins_and_all_are_in_the_chain() -> None:
    overrides = [setting("size=4"), setting("size=8", name="--set[2]")]
    assert resolved(SIZED, overrides=overrides).mesh.tp == 8
    chain = origin(SIZED, "mesh.tp", *overrides)
    assert [text for kind, text in chain if kind == "set"] == ["--set size=4", "--set size=8"]


def test_the_chain_of_a_parameter_s_value_names_it() -> None:
    assert origin(SIZED, "mesh.tp") == [("written", ""), ("parameter", "size")]
    assert origin(TEXT, "mesh.tp") == [("written", "")]


def test_a_parameter_inside_a_call_is_in_the_chain() -> None:
    assert origin(TEXT, "optimizer.kind", setting("lr=1e-3")) == [
        ("written", ""),
        ("parameter", "lr"),
        ("set", "--set lr=1e-3"),
    ]


def test_a_parameter_stands_inside_calls_lists_and_expectations() -> None:
    text = edited(
        (LR, f"{LR}param beta: float = 0.8\nparam world: int = 4\n"),
        ("[0.9, 0.95]", "[beta, 0.95]"),
        ("world_size == 4", "world_size == world"),
    )
    plan = resolved(text, overrides=[setting("beta=0.7")])
    assert plan.optimizer.kind.betas == (0.7, 0.95)
    assert plan.expectations[0].value == 4


def test_a_parameter_in_a_rule_s_arguments_is_read() -> None:
    text = edited(
        (LR, f"{LR}param decay: float = 0.5\n"), ("group(weight_decay = 0.0)", "group(weight_decay = decay)")
    )
    assert resolved(text).optimizer.rules[0].action.weight_decay == 0.5


@pytest.mark.parametrize(
    ("kind", "default", "value", "found"),
    [
        ("int", "1", "2", 2),
        ("float", "1.0", "2", 2.0),
        ("string", '"a"', '"b"', "b"),
        ("bool", "true", "false", False),
    ],
)
def test_each_type_of_parameter_is_set(kind: str, default: str, value: str, found: object) -> None:
    use = {"int": "keep_last = p", "float": "clip = p", "string": "hf = p", "bool": "save_last = p"}[kind]
    text = edited(
        (LR, f"{LR}param p: {kind} = {default}\n"),
        *([("keep_last = 2", use)] if kind in ("int", "bool") else []),
        *([("clip_grad_norm = 1.0", "clip_grad_norm = p")] if kind == "float" else []),
        *([('hf = "models/tiny-llama"', use)] if kind == "string" else []),
    )
    plan = resolved(text, overrides=[setting(f"p={value}")])
    assert plan.checkpoint is not None
    values = {
        "int": plan.checkpoint.keep_last,
        "float": plan.optimizer.clip_grad_norm,
        "string": plan.model.hf,
        "bool": plan.checkpoint.save_last,
    }
    assert values[kind] == found


def test_a_float_parameter_is_no_integer_even_when_whole() -> None:
    text = edited((LR, f"{LR}param size: float = 2\n"), (TP, "  tp = size\n"))
    assert fault(text).code is codes.WRONG_TYPE


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("size=9", "P206", "9"),
        ("size=0", "P206", "0"),
        ("size=4.0", "P205", "4.0"),
        ('size="4"', "P205", '"4"'),
        ("size=4 garbage", "P208", "garbage"),
        ("size=size", "P205", "size"),
        ("size=lr", "P205", "lr"),
        ("size=1e999", "P205", "1e999"),
        ("mesh.tp=0", "P206", "0"),
        ("mesh.tp=4 garbage", "P208", "garbage"),
        ("mesh.tp=four", "P205", "four"),
        ("mesh.timeout=60", "P208", "60"),
        ("optimizer.kind=adam(lr=1.0)", "P212", "adam"),
    ],
)
def test_a_faulty_value_is_shown_in_the_setting(text: str, code: str, place: str) -> None:
    problem = fault(SIZED, overrides=[setting(text)])
    assert (problem.code.code, problem.primary.span.file) == (code, "--set")
    assert covered(text, problem.primary.span) == place


def test_a_setting_is_overridden_and_keeps_its_first_place_in_the_chain() -> None:
    override = setting("mesh.tp=8")
    plan = resolved(TEXT, overrides=[override])
    assert plan.mesh.tp == 8
    assert plan.span("mesh.tp").file == "--set"
    assert origin(TEXT, "mesh.tp", override) == [("set", "--set mesh.tp=8"), ("written", "")]


def test_an_override_of_a_default_needs_no_written_key() -> None:
    assert resolved(TEXT, overrides=[setting("mesh.cp=4")]).mesh.cp == 4


def test_an_override_may_name_a_parameter() -> None:
    assert resolved(SIZED, overrides=[setting("mesh.dp_shard=size")]).mesh.dp_shard == 2


def test_an_override_opens_a_block_that_means_something_by_itself() -> None:
    text = TEXT.replace(TEXT[TEXT.index("checkpoint {\n  save") : TEXT.index("train {")], "")
    assert resolved(text).checkpoint is None
    plan = resolved(text, overrides=[setting("checkpoint.keep_last=5")])
    assert plan.checkpoint is not None
    assert plan.checkpoint.keep_last == 5


def test_an_override_does_not_open_a_block_that_needs_mesh_dims() -> None:
    problem = fault(TEXT, overrides=[setting("context_parallel.rotate=ring")])
    assert problem.code is codes.UNKNOWN_TARGET
    assert "no `context_parallel` block" in problem.primary.text


def test_a_parameter_whose_only_use_is_overridden_is_still_used() -> None:
    assert resolved(SIZED, overrides=[setting("mesh.tp=4")]).mesh.tp == 4


def test_a_replaced_value_is_not_judged() -> None:
    assert resolved(edited((TP, "  tp = 0\n")), overrides=[setting("mesh.tp=2")]).mesh.tp == 2


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("mesh.ttp=2", "did you mean `mesh.tp`?"),
        ("mehs.tp=2", "did you mean `mesh.tp`?"),
        ("szie=2", "did you mean `size`?"),
        ("tp=2", "did you mean `mesh.tp`?"),
        ("model.tp=2", "did you mean `mesh.tp`?"),
        ("mesh=2", "use a setting of `mesh`: `pp`, "),
        ("activation_checkpoint=2", "name a setting with its block"),
        ("nonsense=1", "name a setting with its block"),
        ("mesh.tp.size=2", "name a setting with its block"),
        ("fsdp.on=2", "use a setting of `fsdp`: `replicate_on`, "),
        ("mesh.ep=2", "did you mean `expert_parallel.size`?"),
        ("optimizer.lrr=2", "did you mean `optimizer.lr`?"),
        ("optimizer.learning_rate=2", "write `optimizer.kind.lr=...`"),
        ("optimizer.adamw.lr=2", "write `optimizer.kind.lr=...`"),
        ("eps=2", "write `optimizer.kind.eps=...`"),
        ("optimizer.kind.rl=2", "use an argument of `optimizer.kind`: `lr`, "),
        ("tensor_parallel.rules=2", "name a setting with its block"),
        ("expect.world_size=2", "change the `expect` block"),
        (f"{'x' * 10_000}=2", "name a setting with its block"),
    ],
)
def test_an_override_of_nothing_is_reported_with_what_it_may_mean(text: str, help: str) -> None:
    problem = fault(SIZED, overrides=[setting(text)])
    assert problem.code is codes.UNKNOWN_TARGET
    assert covered(text, problem.primary.span) == text.partition("=")[0]
    assert help in (problem.help or "")


def test_overriding_a_broken_parameter_adds_no_finding() -> None:
    found = faults(edited((LR, "param lr: flaot = 1.0\n")), overrides=[setting("lr=2.0")])
    assert [problem.code for problem in found] == [codes.UNKNOWN_NAME]


ABSENT = {
    "adapter": "adapter { kind = lora(rank = 1, alpha = 1) }",
    "context_parallel": "context_parallel on cp { }",
    "expert_parallel": "expert_parallel on dp_shard { size = 2 }",
    "elastic": "elastic on dp_shard { sizes = [1] }",
    "pipeline": "pipeline on pp {}",
    "profile": "profile { first_step = 1, last_step = 1 }",
}
"""Blocks that no override makes."""
SETTINGS = [f"{kind}.{f.name}" for kind, shape in BLOCKS.items() for f in keys(shape.record)]


@pytest.mark.parametrize("path", SETTINGS)
def test_every_setting_can_be_overridden(path: str) -> None:
    """With a value of no type at all, so that the finding proves that the setting read it."""
    block = ABSENT.get(path.partition(".")[0], "")
    text = edited(("data {", f"{block}\ndata {{"))
    overrides = [setting(f"{path}=f(0)")]
    found = [one for one in faults(text, overrides=overrides) if one.primary.span.file == "--set"]
    assert [one.code for one in found] in ([codes.WRONG_TYPE], [codes.UNKNOWN_ACTION])


def test_size_variables_are_overrides_of_the_mesh() -> None:
    override = setting("mesh.tp=4", kind="environment", name="TP_SIZE")
    plan = resolved(TEXT, overrides=[override])
    assert plan.mesh.size(MeshDim.TP) == 4
    assert plan.origins["mesh.tp"][0].kind == "environment"
    assert plan.span("mesh.tp").file == "TP_SIZE"
