"""Blocks inside blocks: what `export "hf" { ... }` means, what is wrong with it, and how files share one."""

from __future__ import annotations

import pytest

from planc.plan.blocks import BLOCKS, setting_paths
from planc.plan.checkpoint import ExportedWeights, ExportTime, HfExport
from planc.plan.spec import Plan
from planc.show.origin import chain
from planc.vocab import DType
from tests.plan import linking
from tests.plan.resolving import edited, fault, faults, resolved, setting

LAST = "  resume = latest\n"
ADAPTER_TOO = "did you mean `checkpoint.export.hf.when` or `checkpoint.export.adapter.when`?"
TRAINED = ExportedWeights.TRAINED
WRITTEN = HfExport(ExportTime.END, DType.BFLOAT16, merged=False, weights=TRAINED, push=None)
EXPORT = 'checkpoint {\n  export "hf" {\n    dtype = float16\n  }\n}\n'


def with_export(text: str) -> str:
    """The full plan with lines more in its `checkpoint` block, from line 59 on."""
    return edited((LAST, f"{LAST}{text}\n"))


def exports(plan: Plan) -> dict[str, HfExport]:
    assert plan.checkpoint is not None
    return dict(plan.checkpoint.export)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ('  export "hf" { when = end, dtype = bfloat16 }', {"hf": WRITTEN}),
        ('  export "hf" {\n    dtype = bfloat16\n    when = end\n  }', {"hf": WRITTEN}),
        (
            '  export "hf" { }',
            {"hf": HfExport(ExportTime.END, None, merged=False, weights=TRAINED, push=None)},
        ),
        (
            '  export "hf" { dtype = none }',
            {"hf": HfExport(ExportTime.END, None, merged=False, weights=TRAINED, push=None)},
        ),
    ],
)
def test_a_nested_block_becomes_its_record(text: str, expected: dict[str, HfExport]) -> None:
    assert exports(resolved(with_export(text))) == expected


@pytest.mark.parametrize(
    ("text", "code", "place", "words", "help"),
    [
        ('export "hff" { }', "P207", "59:9", "is not a label of `export`", "did you mean `hf`?"),
        ('export "onnx" { }', "P207", "59:9", "is not a label of `export`", "use `hf`"),
        ("export { }", "P209", "59:1", "`export` has no label", 'write `export "hf" {`'),
        ('export "" { }', "P209", "59:1", "`export` has no label", 'write `export "hf" {`'),
        ('exprt "hf" { }', "P201", "59:1", "no block `exprt` inside `checkpoint`", "did you mean `export`?"),
        ('export "hf" on tp { }', "P210", "59:16", "does not take mesh dims", None),
        ('export "hf" { dtyp = float16 }', "P202", "59:15", "`export` has no key", "did you mean `dtype`?"),
        ('export "hf" { dtype = int8 }', "P207", "59:23", "expected `float64`, `float32`", "use `float64`"),
        ('export "hf" { dtype = "float16" }', "P205", "59:23", "expected `float64`", "without quotes"),
        ('export "hf" { when = end, when = end }', "P204", "59:27", "given twice", None),
        ('export "hf" { override when = end }', "P210", "59:15", "overrides nothing", "remove `override`"),
        ('export "hf" { "lm_head" -> full }', "P210", "59:15", "not allowed in `export`", "move the rule to"),
        ('export "hf" { auto }', "P210", "59:15", "not allowed in `export`", None),
        ('export "hf" { export "hf" { } }', "P210", "59:15", "not allowed in `export`", "in `checkpoint`"),
        ("mesh { tp = 2 }", "P210", "59:1", "not allowed in `checkpoint`", "to the top level"),
        ('export = "hf"', "P202", "59:1", "has no key `export`", 'write `export "hf" { ... }`'),
        ("export", "P210", "59:1", "not allowed in `checkpoint`", 'write `export "hf" { ... }`'),
        ("when = end", "P202", "59:1", "has no key `when`", 'write `export "hf" { ... }` in `checkpoint`'),
    ],
)
def test_a_faulty_nested_block_is_one_finding(
    text: str, code: str, place: str, words: str, help: str | None
) -> None:
    found = fault(with_export(text))
    assert (found.code.code, str(found.primary.span)) == (code, f"x.plan:{place}")
    assert words in found.primary.text
    assert (help or "") in (found.help or "")


def test_a_nested_block_at_the_top_level_is_sent_home() -> None:
    found = fault(edited(("train {", 'export "hf" { }\ntrain {')))
    assert (found.code.code, found.primary.text) == ("P210", "`export` is not allowed at the top level")
    assert found.help == 'write `export "hf" { ... }` in `checkpoint`'


def test_a_second_block_of_a_label_is_reported_beside_the_first() -> None:
    found = fault(with_export('  export "hf" { }\n  export "hf" { }'))
    assert (found.code.code, str(found.primary.span)) == ("P204", "x.plan:60:3")
    assert [str(label.span) for label in found.secondary] == ["x.plan:59:3"]


def test_a_parameter_that_only_a_nested_block_reads_is_used() -> None:
    text = "param unread: int = 1\n" + with_export('  export "hf" { dtype = unread }')
    assert [one.code.code for one in faults(text)] == ["P207"]


def test_every_setting_of_a_nested_block_has_a_path() -> None:
    nested = [path for path in setting_paths() if path.count(".") > 1]
    assert nested == [
        "checkpoint.export.hf.when",
        "checkpoint.export.hf.dtype",
        "checkpoint.export.hf.merged",
        "checkpoint.export.hf.weights",
        "checkpoint.export.hf.push",
        "checkpoint.export.adapter.when",
        "checkpoint.export.adapter.weights",
        "checkpoint.export.adapter.push",
        *(f"logging.tracker.wandb.{name}" for name in ("project", "mode", "entity", "name")),
    ]
    assert BLOCKS["checkpoint"].names[0] in {path.rpartition(".")[2] for path in setting_paths()}


def test_the_command_line_sets_what_a_nested_block_says() -> None:
    override = setting("checkpoint.export.hf.dtype=float16")
    plan = resolved(with_export('  export "hf" { dtype = bfloat16 }'), overrides=(override,))
    assert exports(plan)["hf"].dtype is DType.FLOAT16
    origin = plan.origins["checkpoint.export.hf.dtype"]
    assert chain(origin) == ("--set checkpoint.export.hf.dtype=float16", "x.plan:59")


def test_the_command_line_adds_a_nested_block_as_it_does_a_block() -> None:
    plan = resolved(edited(), overrides=(setting("checkpoint.export.hf.when=end"),))
    assert exports(plan) == {"hf": HfExport(ExportTime.END, None, merged=False, weights=TRAINED, push=None)}
    assert chain(plan.origins["checkpoint.export.hf.dtype"]) == ("default",)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("checkpoint.export.hf.dtyp=float16", "did you mean `checkpoint.export.hf.dtype`?"),
        ("export.hf.when=end", ADAPTER_TOO),
        (
            "checkpoint.export.hf=end",
            "use a setting of `checkpoint.export.hf`: `when`, `dtype`, `merged`, `weights` or `push`",
        ),
        ("checkpoint.export=end", "`adapter.when`, `adapter.weights` or `adapter.push`"),
        ("checkpoint.export.onnx.when=end", ADAPTER_TOO),
    ],
)
def test_an_override_of_no_nested_setting_is_reported(text: str, near: str) -> None:
    found = fault(edited(), overrides=(setting(text),))
    assert found.code.code == "P215"
    assert near in (found.help or "")


@pytest.mark.parametrize("target", ["data.eval.held.every", "data.source.web.weight"])
def test_the_help_on_a_block_that_the_plan_named_leads_to_that_block(target: str) -> None:
    """An argument of another setting with the same name, such as `data.source.source`, was offered."""
    problem = fault(edited(), overrides=(setting(f"{target}=3"),))
    _, block, label, key = target.split(".")
    assert problem.code.code == "P215" and problem.fix is None
    assert (problem.help or "").startswith(f'change `{key}` in `{block} "{label}"` of the plan')


def extended(text: str) -> dict[str, str]:
    return {"x.plan": f'extends "base.plan"\n{text}', "base.plan": linking.BASE + EXPORT}


def test_a_base_gives_a_nested_block() -> None:
    assert exports(linking.plan_of(extended("")))["hf"].dtype is DType.FLOAT16


def test_nested_blocks_of_one_label_merge() -> None:
    plan = linking.plan_of(extended('checkpoint {\n  export "hf" {\n    when = end\n  }\n}\n'))
    assert exports(plan) == {
        "hf": HfExport(ExportTime.END, DType.FLOAT16, merged=False, weights=TRAINED, push=None)
    }
    assert chain(plan.origins["checkpoint.export.hf.dtype"]) == ("base.plan:22",)


def test_override_gives_a_nested_setting_of_the_base_another_value() -> None:
    text = 'checkpoint { export "hf" { override dtype = bfloat16 } }\n'
    plan = linking.plan_of(extended(text))
    assert exports(plan)["hf"].dtype is DType.BFLOAT16
    origin = chain(plan.origins["checkpoint.export.hf.dtype"])
    assert origin == ("x.plan:2", "overrides base.plan:22")


def test_a_nested_setting_of_the_base_needs_override() -> None:
    found = linking.fault(extended('checkpoint { export "hf" { dtype = bfloat16 } }\n'))
    assert (found.code.code, str(found.primary.span)) == ("P204", "x.plan:2:28")
    assert found.fix is not None and found.fix.replacement == "override dtype"


def test_a_nested_block_given_twice_in_one_file_is_one_fault() -> None:
    found = linking.fault(extended('checkpoint {\n  export "hf" { }\n  export "hf" { }\n}\n'))
    assert (found.code.code, str(found.primary.span)) == ("P204", "x.plan:4:3")


def test_a_fragment_brings_a_nested_block_with_its_parameters() -> None:
    files = {
        "x.plan": f'import "f.plan" as saved\n{linking.BASE}checkpoint {{ use saved.often }}\n',
        "f.plan": "param every: int = 5\n"
        'checkpoint "often" {\n  keep_last = every\n  export "hf" { dtype = bfloat16 }\n}\n',
    }
    plan = linking.plan_of(files)
    assert exports(plan) == {"hf": WRITTEN}
    origin = chain(plan.origins["checkpoint.export.hf.dtype"])
    assert origin == ("f.plan:4", "use saved.often (x.plan:21)")
