"""`import` and `use`: fragments with parameters of their own."""

from __future__ import annotations

import pytest

from planc.diagnostics import Diagnostic
from planc.plan import codes
from planc.show.origin import chain
from tests.plan.linking import BASE, fault, faults, plan_of
from tests.plan.resolving import setting

IMPORT = 'import "p.plan" as p\n'
PRESET = """\
param resharded: bool = true
param seed: int(0..9) = 3
fsdp "units" {
  param_dtype = bfloat16
  "model.layers.*" -> unit(reshard_after_forward = resharded)
}
data "seeded" {
  shuffle_seed = seed
}
"""
FSDP = "fsdp on dp_shard {\n  use p.units\n}\n"


def using(text: str, *, preset: str = PRESET) -> dict[str, str]:
    return {"x.plan": IMPORT + BASE + text, "p.plan": preset}


def at(problem: Diagnostic) -> str:
    return f"{problem.code.code} {problem.primary.span}"


def test_a_fragment_stands_where_it_is_used() -> None:
    plan = plan_of(using(FSDP))
    assert plan.fsdp is not None
    (rule,) = plan.fsdp.rules
    assert (rule.patterns[0].text, str(rule.span)) == ("model.layers.*", "p.plan:5:3")
    assert chain(plan.origins["fsdp.param_dtype"]) == ("p.plan:4", "use p.units (x.plan:22)")


def test_rules_beside_a_fragment_add_up() -> None:
    plan = plan_of(using('fsdp on dp_shard {\n  use p.units\n  "lm_head" -> unit\n}\n'))
    assert plan.fsdp is not None and len(plan.fsdp.rules) == 2


def test_a_parameter_of_an_import_has_its_name() -> None:
    plan = plan_of(using(FSDP), overrides=(setting("p.resharded=false"),))
    assert plan.fsdp is not None
    assert not plan.fsdp.rules[0].action.reshard_after_forward


def test_a_parameter_of_an_import_is_overridden_in_the_plan() -> None:
    plan = plan_of(using(FSDP + "override p.resharded = false\n"))
    assert plan.fsdp is not None
    assert not plan.fsdp.rules[0].action.reshard_after_forward


def test_a_word_in_a_fragment_names_no_parameter_of_the_plan() -> None:
    preset = 'data "seeded" {\n  shuffle_seed = tp_size\n}\n'
    text = BASE.replace("data {\n", "data {\n  use p.seeded\n")
    assert at(fault({"x.plan": IMPORT + text, "p.plan": preset})) == "P205 p.plan:2:18"


def test_a_word_in_the_plan_names_no_parameter_of_an_import() -> None:
    assert at(fault(using(FSDP + "checkpoint { keep_last = seed }\n"))) == "P205 x.plan:24:26"


def test_a_choice_in_a_fragment_is_no_parameter() -> None:
    preset = 'fsdp "units" {\n  param_dtype = none\n}\n'
    assert plan_of(using(FSDP, preset=preset)).fsdp is not None


def test_a_setting_of_a_fragment_needs_override() -> None:
    text = "fsdp on dp_shard {\n  use p.units\n  param_dtype = float32\n}\n"
    problem = fault(using(text))
    assert at(problem) == "P204 x.plan:23:3"
    assert str(problem.secondary[0].span) == "p.plan:4:3"
    plan = plan_of(using(text.replace("param_dtype", "override param_dtype")))
    assert chain(plan.origins["fsdp.param_dtype"]) == (
        "x.plan:23",
        "overrides p.plan:4",
        "use p.units (x.plan:22)",
    )


def test_where_use_stands_in_its_block_does_not_matter() -> None:
    text = "fsdp on dp_shard {\n  override param_dtype = float32\n  use p.units\n}\n"
    assert plan_of(using(text)).fsdp is not None


def test_parameters_of_fragments_that_are_not_used_are_no_fault() -> None:
    assert plan_of(using(FSDP)).data.shuffle_seed == 0


def test_a_value_for_a_fragment_that_is_not_used_is_a_fault() -> None:
    assert at(fault(using(FSDP), overrides=(setting("p.seed=4"),))) == "P214 --set:1:1"


@pytest.mark.parametrize("written", ["reshardd", "reshard_ed"])
def test_a_misspelled_use_of_a_parameter_is_one_fault(written: str) -> None:
    preset = PRESET.replace("= resharded)", f"= {written})")
    assert at(fault(using(FSDP, preset=preset))).endswith(" p.plan:5:52")


def test_a_misspelled_use_in_a_fragment_that_is_not_used_is_no_fault() -> None:
    assert plan_of(using(FSDP, preset=PRESET.replace("= seed", "= seeed"))).data.shuffle_seed == 0


def test_a_word_without_fault_is_not_taken_for_a_misspelled_parameter() -> None:
    found = fault(using(FSDP, preset="param bfloat1: int = 1\n" + PRESET))
    assert at(found) == "P214 p.plan:1:7"


def test_a_parameter_that_no_fragment_reads_is_a_fault_of_the_preset() -> None:
    assert at(fault(using(FSDP, preset="param idle: int = 1\n" + PRESET))) == "P214 p.plan:1:7"


def test_base_and_plan_may_import_one_preset_by_one_name() -> None:
    files = {
        "x.plan": 'extends "base.plan"\n' + IMPORT + "data { use p.seeded }\n",
        "base.plan": IMPORT + BASE + FSDP,
        "p.plan": PRESET,
    }
    assert plan_of(files, overrides=(setting("p.seed=4"),)).data.shuffle_seed == 4


def test_the_imports_of_a_base_are_its_own() -> None:
    files = {
        "x.plan": 'extends "base.plan"\ndata { use p.seeded }\n',
        "base.plan": IMPORT + BASE + FSDP,
        "p.plan": PRESET,
    }
    assert at(fault(files)) == "P237 x.plan:2:12"


FAULTS = [
    ("fsdp on dp_shard { use q.units }\n", "P237 x.plan:21:24", None),
    ("fsdp on dp_shard { use p.unit }\n", "P238 x.plan:21:26", "did you mean `units`?"),
    ("fsdp on dp_shard { use p.units.more }\n", "P238 x.plan:21:26", None),
    ("fsdp on dp_shard { use p.seeded }\n", "P239 x.plan:21:24", "use it in a `data` block"),
    ("fsdp on dp_shard { use units }\n", "P237 x.plan:21:24", "use import_name.fragment_name"),
    ("fsdp on dp_shard { use p.units, use p.units }\n", "P204 x.plan:21:33", None),
    ("", "P240 x.plan:1:1", "remove the import"),
    (FSDP + "use p.units\n", "P210 x.plan:24:1", "move `use` to a block"),
    (FSDP + 'import "q.plan" as p\n', "P204 x.plan:24:20", "another name"),
    (FSDP + 'import "./p.plan" as q\n', "P204 x.plan:24:8", "use it as `p`"),
]


@pytest.mark.parametrize(("text", "place", "help"), FAULTS)
def test_a_faulty_import_or_use(text: str, place: str, help: str | None) -> None:
    problem = fault({**using(text), "q.plan": PRESET})
    assert at(problem) == place
    assert help is None or help in (problem.help or "")


@pytest.mark.parametrize(
    ("use", "place"),
    [("q.seeded", "P237"), ("p.sedeed", "P238"), ("p.units", "P239"), ("seeded", "P237")],
)
def test_what_a_fragment_would_have_given_is_not_missing_too(use: str, place: str) -> None:
    text = BASE.replace("source = python_stdlib()", f"use {use}").replace("micro_b", "override micro_b")
    assert "source" not in text and "override" in text
    problem = fault({"x.plan": IMPORT + text + FSDP, "p.plan": PRESET})
    assert at(problem).split()[0] == place


@pytest.mark.parametrize("whole", [BASE + FSDP, 'extends "base.plan"\n'])
def test_a_whole_plan_that_is_imported_is_one_finding_that_names_extends(whole: str) -> None:
    problem = fault({**using(FSDP), "p.plan": whole, "base.plan": BASE})
    assert at(problem) == "P210 x.plan:1:1"
    assert (problem.help or "").startswith('write `extends "p.plan"` to build on it')


def test_an_import_is_not_named_as_a_block_is() -> None:
    first, *_ = faults({"x.plan": IMPORT.replace("as p", "as mesh") + BASE, "p.plan": PRESET})
    assert at(first) == "P204 x.plan:1:20"


PRESETS = [
    ("tp = 2\n", "P210 p.plan:1:1"),
    ("fsdp { }\n", "P210 p.plan:1:1"),
    ('extends "q.plan"\n', "P210 p.plan:1:1"),
    ('import "q.plan" as q\n', "P210 p.plan:1:1"),
    ("use q.units\n", "P210 p.plan:1:1"),
    ("auto\n", "P210 p.plan:1:1"),
    ('fsdp "more" on dp_shard { }\n', "P210 p.plan:1:16"),
    ('fsdp "more" { }\ndata "more" { }\n', "P204 p.plan:2:6"),
    ('fsdp "a b" { }\n', "P205 p.plan:1:6"),
    ('fsdp "" { }\n', "P205 p.plan:1:6"),
    ("param auto: int = 1\n", "P204 p.plan:1:7"),
]


@pytest.mark.parametrize(("text", "place"), PRESETS)
def test_what_a_preset_may_not_hold(text: str, place: str) -> None:
    preset = 'fsdp "units" { }\n'
    assert at(fault(using(FSDP, preset=text + preset))) == place


@pytest.mark.parametrize(
    ("files", "help"),
    [
        (using(FSDP, preset='fsdp "units" { }\nfsdp "units" { }\n'), 'name it otherwise, such as "units_2"'),
        (using("fsdp on dp_shard { use p.units, use p.units }\n"), "remove one `use p.units`"),
    ],
)
def test_a_fragment_that_stands_twice_says_what_to_do(files: dict[str, str], help: str) -> None:
    problem = fault(files)
    assert (problem.code, problem.help) == (codes.DUPLICATE, help)


def test_use_inside_a_fragment_is_misplaced() -> None:
    preset = 'fsdp "units" {\n  use p.more\n}\nfsdp "more" { }\n'
    assert at(fault(using(FSDP, preset=preset))) == "P210 p.plan:2:3"


def test_one_name_for_two_files_in_two_layers_is_a_fault() -> None:
    files = {
        "x.plan": 'extends "base.plan"\nimport "q.plan" as p\ndata { use p.seeded }\n',
        "base.plan": IMPORT + BASE + FSDP,
        "p.plan": PRESET,
        "q.plan": PRESET,
    }
    problem = faults(files)[0]
    assert at(problem) == "P204 x.plan:2:20"
    assert str(problem.secondary[0].span) == "base.plan:1:1"


def test_link_codes_are_those_tested_here_and_beside() -> None:
    beside = {"P217", "P231", "P232", "P233", "P234", "P235", "P236", "P241"}
    here = {place.split()[0] for _, place, _ in FAULTS if place.startswith(("P237", "P238", "P239", "P240"))}
    assert here | beside == {code.code for code in codes.LINK_CODES}
