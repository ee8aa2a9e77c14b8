"""`extends`: what a plan of two files means."""

from __future__ import annotations

import pytest

from planc.diagnostics import Diagnostic
from planc.plan.data import FileTokenizer, TextFiles
from planc.show.origin import chain
from planc.vocab import MeshDim
from tests.plan.linking import BASE, fault, faults, plan_of
from tests.plan.resolving import setting

EXTENDS = 'extends "base.plan"\n'


def extended(text: str) -> dict[str, str]:
    return {"x.plan": EXTENDS + text, "base.plan": BASE}


def at(problem: Diagnostic) -> str:
    return f"{problem.code.code} {problem.primary.span}"


def test_an_extending_plan_has_all_that_its_base_has() -> None:
    plan = plan_of(extended(""))
    assert (plan.name, plan.mesh.tp, plan.train.steps) == ("x", 2, 10)


def test_blocks_of_one_kind_merge() -> None:
    plan = plan_of(extended("mesh {\n  cp = 2\n}\n"))
    assert plan.mesh.sizes == {
        MeshDim.PP: 1,
        MeshDim.DP_REPLICATE: 1,
        MeshDim.DP_SHARD: 2,
        MeshDim.CP: 2,
        MeshDim.TP: 2,
    }


def test_extends_may_stand_anywhere_at_the_top_level() -> None:
    assert plan_of({"x.plan": "mesh { cp = 2 }\n" + EXTENDS, "base.plan": BASE}).mesh.cp == 2


def test_a_setting_of_the_base_needs_override() -> None:
    problem = fault(extended("train {\n  steps = 20\n}\n"))
    assert at(problem) == "P204 x.plan:3:3"
    assert [str(label.span) for label in problem.secondary] == ["base.plan:18:3"]
    assert "override steps" in (problem.help or "")
    assert problem.fix is not None and problem.fix.replacement == "override steps"


def test_an_equal_value_needs_override_too() -> None:
    assert at(fault(extended("train {\n  steps = 10\n}\n"))) == "P204 x.plan:3:3"


def test_override_gives_another_value_and_keeps_the_chain() -> None:
    plan = plan_of(extended("train {\n  override steps = 20\n}\n"))
    assert plan.train.steps == 20
    assert chain(plan.origins["train.steps"]) == ("x.plan:3", "overrides base.plan:18")


def test_override_of_what_no_base_gives_is_a_fault() -> None:
    assert at(fault(extended("mesh {\n  override cp = 2\n}\n"))) == "P210 x.plan:3:3"


def test_a_setting_given_twice_in_one_file_is_one_fault() -> None:
    assert at(fault(extended("mesh {\n  cp = 2\n  cp = 4\n}\n"))) == "P204 x.plan:4:3"


def test_an_override_given_twice_in_one_file_is_one_fault() -> None:
    text = "train {\n  override steps = 2\n  override steps = 4\n}\n"
    assert at(fault(extended(text))) == "P204 x.plan:4:3"


def test_a_chain_of_three_files_overrides_twice() -> None:
    files = {
        "x.plan": 'extends "mid.plan"\ntrain { override steps = 30 }\n',
        "mid.plan": EXTENDS + "train { override steps = 20 }\n",
        "base.plan": BASE,
    }
    plan = plan_of(files)
    assert plan.train.steps == 30
    assert chain(plan.origins["train.steps"]) == (
        "x.plan:2",
        "overrides mid.plan:2",
        "overrides base.plan:18",
    )


def test_a_parameter_of_the_base_is_visible() -> None:
    assert plan_of(extended("mesh { cp = tp_size }\n")).mesh.cp == 2


def test_override_gives_a_parameter_of_the_base_another_value() -> None:
    plan = plan_of(extended("override tp_size = 8\n"))
    assert plan.mesh.tp == 8
    assert chain(plan.origins["mesh.tp"])[-1] == "overridden at x.plan:2"


def test_the_command_line_wins_over_the_file() -> None:
    plan = plan_of(extended("override tp_size = 8\n"), overrides=(setting("tp_size=4"),))
    assert plan.mesh.tp == 4
    assert chain(plan.origins["mesh.tp"])[-2:] == ("overridden at x.plan:2", "--set tp_size=4")


def test_an_override_that_stands_twice_says_what_to_remove() -> None:
    problem = fault(extended("override tp_size = 8\noverride tp_size = 4\n"))
    assert problem.help == "remove one `override tp_size = ...`"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("override tp_size = 9\n", "P206 x.plan:2:20"),
        ('override tp_size = "8"\n', "P205 x.plan:2:20"),
        ("tp_size = 8\n", "P204 x.plan:2:1"),
        ("override tp_size = 8\noverride tp_size = 4\n", "P204 x.plan:3:1"),
        ("override tp_siz = 8\n", "P215 x.plan:2:10"),
        ("override mesh.cp = 8\n", "P215 x.plan:2:10"),
        ("param cp: int = 2\noverride cp = 4\nmesh { cp = cp }\n", "P215 x.plan:3:10"),
        ("param tp_size: int = 2\n", "P204 x.plan:2:7"),
        ("cp = 2\n", "P210 x.plan:2:1"),
    ],
)
def test_a_faulty_override_of_a_parameter(text: str, place: str) -> None:
    assert at(fault(extended(text))) == place


def test_a_parameter_that_only_an_overridden_setting_read_is_no_fault() -> None:
    assert plan_of(extended("mesh { override tp = 4 }\n")).mesh.tp == 4


def test_a_value_for_a_parameter_that_nothing_reads_any_more_is_a_fault() -> None:
    text = "mesh { override tp = 4 }\n"
    problem = fault(extended(text + "override tp_size = 8\n"))
    assert at(problem) == "P214 x.plan:3:1"
    assert problem.help == "remove `override tp_size = ...`"
    problem = fault(extended(text), overrides=(setting("tp_size=8"),))
    assert at(problem) == "P214 --set:1:1"
    assert problem.help == "remove `--set tp_size=8`"


RULES = 'fsdp on dp_shard {\n  "model.layers.*" -> unit\n}\n'


def test_rules_add_up() -> None:
    files = {
        "x.plan": EXTENDS + 'fsdp {\n  "lm_head" -> unit(reshard_after_forward = false)\n}\n',
        "base.plan": BASE + RULES,
    }
    plan = plan_of(files)
    assert plan.fsdp is not None
    assert [rule.patterns[0].text for rule in plan.fsdp.rules] == ["model.layers.*", "lm_head"]
    assert [rule.span.file for rule in plan.fsdp.rules] == ["base.plan", "x.plan"]
    assert plan.fsdp.on == (MeshDim.DP_SHARD,)


def test_equal_mesh_dims_agree_in_any_order() -> None:
    base = BASE + RULES.replace("dp_shard {", "dp_shard, cp {")
    files = {"x.plan": EXTENDS + "fsdp on cp, dp_shard {\n}\n", "base.plan": base}
    plan = plan_of(files)
    assert plan.fsdp is not None and plan.fsdp.on == (MeshDim.DP_SHARD, MeshDim.CP)


def test_other_mesh_dims_than_the_base_has_are_a_fault() -> None:
    files = {"x.plan": EXTENDS + "fsdp on dp_shard, cp {\n}\n", "base.plan": BASE + RULES}
    problem = fault(files)
    assert at(problem) == "P204 x.plan:2:9"
    assert [str(label.span) for label in problem.secondary] == ["base.plan:20:9"]


def test_expectations_add_up() -> None:
    files = {
        "x.plan": EXTENDS + "expect { world_size == 4 }\n",
        "base.plan": BASE + "expect { tp == 2 }\n",
    }
    assert {one.subject for one in plan_of(files).expectations} == {"world_size", "tp"}


def test_a_second_extends_is_a_fault() -> None:
    files = {"x.plan": EXTENDS + 'extends "b.plan"\n', "base.plan": BASE, "b.plan": ""}
    assert at(fault(files)) == "P204 x.plan:2:1"


def test_a_second_block_of_a_kind_in_one_file_is_one_fault() -> None:
    assert at(fault(extended("mesh { cp = 2 }\nmesh { cp = 4 }\n"))) == "P204 x.plan:3:1"


@pytest.mark.parametrize("text", ['mesh {\n  extends "b.plan"\n}\n', 'mesh {\n  import "b.plan" as b\n}\n'])
def test_an_include_in_a_block_is_misplaced(text: str) -> None:
    assert at(fault({"x.plan": BASE.replace("mesh {\n", text[:-2])})) == "P210 x.plan:6:3"


def test_a_fragment_in_a_plan_is_misplaced() -> None:
    problem = fault({"x.plan": BASE + 'fsdp "f" on dp_shard {\n}\n'})
    assert at(problem) == "P210 x.plan:20:6"
    assert "fragment" in (problem.help or "")


def test_syntax_errors_of_a_base_stand_in_the_base() -> None:
    assert at(fault({"x.plan": EXTENDS, "base.plan": "mesh {\n  tp = = 2\n}\n"})) == "P102 base.plan:2:8"


def test_faults_of_both_files_come_in_one_run() -> None:
    files = {"x.plan": EXTENDS + "mesh { cq = 2 }\n", "base.plan": BASE + "trian { }\n"}
    assert sorted(at(one) for one in faults(files)) == ["P201 base.plan:20:1", "P202 x.plan:2:8"]


def test_paths_start_at_the_folder_of_the_file_that_writes_them() -> None:
    base = BASE.replace('"models/tiny-llama"', '"../models/tiny-llama"').replace(
        "python_stdlib()", 'text("data/*.txt", "/abs/*.txt")'
    )
    tokenizer = 'data { tokenizer = file("models/t/tokenizer.json") }\n'
    plan = plan_of({"x.plan": 'extends "base/b.plan"\n' + tokenizer, "base/b.plan": base})
    assert plan.model.hf == "models/tiny-llama"
    assert plan.data.source == TextFiles(("base/data/*.txt", "/abs/*.txt"))
    assert plan.data.tokenizer == FileTokenizer("models/t/tokenizer.json", None, "auto")


def test_a_path_in_a_parameter_starts_where_it_is_written() -> None:
    base = 'param model: string = "here"\n' + BASE.replace('"models/tiny-llama"', "model")
    assert plan_of({"x.plan": 'extends "base/b.plan"\n', "base/b.plan": base}).model.hf == "base/here"
    files = {"x.plan": 'extends "base/b.plan"\noverride model = "there"\n', "base/b.plan": base}
    assert plan_of(files).model.hf == "there"
    plan = plan_of(files, overrides=(setting('model="set"'),))
    assert plan.model.hf == "set"


def layered(top: str) -> dict[str, str]:
    """A plan on a layer that overrides a rule of its base."""
    return {
        "x.plan": 'extends "mid.plan"\n' + top,
        "mid.plan": EXTENDS + 'fsdp {\n  override "lm_head" -> unit(reshard_after_forward = false)\n}\n',
        "base.plan": BASE + 'fsdp on dp_shard {\n  "lm_head" -> unit\n}\n',
    }


def test_rules_know_how_high_their_layer_lies() -> None:
    fsdp = plan_of(layered('fsdp {\n  override "lm_head" -> unit\n}\n')).fsdp
    assert fsdp is not None
    levels = [rule.level for rule in fsdp.rules]
    assert levels == sorted(set(levels))


def test_a_fragment_lies_below_the_block_that_uses_it() -> None:
    files = {
        "x.plan": 'import "p.plan" as p\n'
        + BASE
        + 'fsdp on dp_shard {\n  use p.f\n  override "lm_head" -> unit\n}\n',
        "p.plan": 'fsdp "f" {\n  override "lm_head" -> unit(reshard_after_forward = false)\n}\n',
    }
    fsdp = plan_of(files).fsdp
    assert fsdp is not None
    by_file = {rule.span.file: rule.level for rule in fsdp.rules}
    assert by_file["p.plan"] < by_file["x.plan"]
