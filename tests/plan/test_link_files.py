"""Which files a plan may include: local, regular, below its folder, not too many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planc.api import Checked, check_plan
from planc.diagnostics import Diagnostic
from planc.graph.graph import plan_hash
from planc.plan.include import MAX_FILES, MAX_LEVELS
from planc.show.resolved import resolved_text
from tests.plan.linking import fault
from tests.plans import FULL, PLANS, checked, write_plan


def only(found: Checked) -> Diagnostic:
    assert len(found.diagnostics) == 1, found.diagnostics
    return found.diagnostics[0]


def at(problem: Diagnostic) -> str:
    return f"{problem.code.code} {problem.primary.span.line}:{problem.primary.span.column}"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "~/x.plan",
        "http://example.com/x.plan",
        "HTTPS://example.com/x.plan",
        "file:x.plan",
        "git:main:x.plan",
        "C:x.plan",
        "a\\b.plan",
        "",
        " ",
    ],
)
@pytest.mark.parametrize("form", ['extends "{}"', 'import "{}" as p'])
def test_a_path_that_is_not_relative_is_refused(form: str, path: str) -> None:
    problem = fault({"x.plan": form.format(path) + "\n"})
    assert problem.code.code == "P232"
    assert problem.help is not None


@pytest.mark.parametrize("path", ["missing.plan", "folder", ".", "x.plan/more", "a\u00e4", "n" * 300])
def test_what_cannot_be_read_is_said_where_it_is_included(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    found = check_plan(write_plan(tmp_path, text=f'extends "{path}"\n'))
    assert at(only(found)) == "P231 1:9"


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.plan")
    found = check_plan(write_plan(tmp_path, text='extends "pipe.plan"\n'))
    assert at(only(found)) == "P231 1:9"


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.plan").symlink_to("b.plan")
    (tmp_path / "b.plan").symlink_to("a.plan")
    found = check_plan(write_plan(tmp_path, text='extends "a.plan"\n'))
    assert at(only(found)) == "P231 1:9"


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, is_folder: bool) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "b.plan").write_text(FULL)
    (root / "in").symlink_to(outside if is_folder else outside / "b.plan")
    path = "in/b.plan" if is_folder else "in"
    found = check_plan(write_plan(root, text=f'extends "{path}"\n'))
    assert at(only(found)) == "P232 1:9"


@pytest.mark.parametrize("path", ["../other.plan", "a/../../other.plan", ".."])
@pytest.mark.parametrize("form", ['extends "{}"', 'import "{}" as p'])
def test_the_tree_of_a_plan_without_a_root_is_its_folder(tmp_path: Path, form: str, path: str) -> None:
    (tmp_path / "a").mkdir()
    problem = only(check_plan(write_plan(tmp_path / "a", text=form.format(path) + "\n")))
    assert problem.code.code == "P232" and "planc.toml" in (problem.help or "")


@pytest.mark.parametrize("mark", [".git", "planc.toml"])
def test_a_base_is_anywhere_below_the_root(tmp_path: Path, mark: str) -> None:
    (tmp_path / mark).write_text("")
    write_plan(tmp_path, text=FULL).rename(tmp_path / "base.plan")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert checked(write_plan(tmp_path / "a" / "b", text='extends "../../base.plan"\n')).ok
    above = check_plan(write_plan(tmp_path / "a", text='extends "../../base.plan"\n'))
    assert at(only(above)) == "P232 1:9"


@pytest.mark.parametrize(
    ("path", "code"), [("../a/x.plan", "P233"), ("./x.plan", "P233"), ("../a/../a/x.plan", "P233")]
)
def test_a_way_round_to_the_plan_itself_ends(tmp_path: Path, path: str, code: str) -> None:
    (tmp_path / "planc.toml").write_text("")
    (tmp_path / "a").mkdir()
    plan = tmp_path / "a" / "x.plan"
    plan.write_text(f'extends "{path}"\n')
    assert only(check_plan(plan)).code.code == code


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.plan").write_text(FULL)
    (tmp_path / "b.plan").symlink_to("real.plan")
    assert checked(write_plan(tmp_path, text='extends "b.plan"\n')).ok


@pytest.mark.parametrize(
    ("content", "code"), [(b"\xff", "P106"), (b"#" * 2_000_000, "P105"), (b"# \x00\n", "P106")]
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    (tmp_path / "b.plan").write_bytes(content)
    found = check_plan(write_plan(tmp_path, text='extends "b.plan"\n'))
    assert only(found).code.code == code


def test_a_file_that_includes_itself_is_refused() -> None:
    problem = fault({"x.plan": 'extends "x.plan"\n'})
    assert (at(problem), problem.notes) == ("P233 1:9", ("x.plan -> x.plan",))
    assert at(fault({"x.plan": 'import "./x.plan" as x\n'})) == "P233 1:8"


def test_a_cycle_is_said_with_its_chain() -> None:
    files = {
        "x.plan": 'extends "a/b.plan"\n',
        "a/b.plan": 'extends "c.plan"\n',
        "a/c.plan": 'extends "../x.plan"\n',
    }
    problem = fault(files)
    assert str(problem.primary.span) == "a/c.plan:1:9"
    assert problem.notes == ("x.plan -> a/b.plan -> a/c.plan -> x.plan",)


def chain_of(number: int) -> dict[str, str]:
    return {"x.plan": 'extends "1.plan"\n'} | {
        f"{index}.plan": f'extends "{index + 1}.plan"\n' if index < number - 1 else FULL
        for index in range(1, number)
    }


def test_a_long_chain_is_refused() -> None:
    problem = fault(chain_of(MAX_LEVELS + 1))
    assert (problem.code.code, problem.primary.span.file) == ("P235", f"{MAX_LEVELS - 1}.plan")


def imports_of(number: int) -> dict[str, str]:
    text = "".join(f'import "{index}.plan" as p{index}\n' for index in range(number))
    return {"x.plan": text} | {f"{index}.plan": "" for index in range(number)}


def test_too_many_files_are_one_finding() -> None:
    problem = fault(imports_of(MAX_FILES + 50))
    assert at(problem) == f"P234 {MAX_FILES}:8"


def test_files_that_are_too_large_together_are_refused() -> None:
    files = imports_of(2)
    problem = fault({path: text or "#" * 150_000 for path, text in files.items()})
    assert at(problem) == "P236 2:8"


def test_as_many_and_as_long_as_allowed_is_accepted(tmp_path: Path) -> None:
    for path, text in chain_of(MAX_LEVELS).items():
        (tmp_path / path).write_text(text)
    assert checked(write_plan(tmp_path, text='extends "1.plan"\n')).ok


def test_a_base_and_a_preset_change_nothing_of_the_meaning(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    rules = FULL[FULL.index("tensor_parallel on tp") : FULL.index("fsdp on")]
    preset = rules.replace("parallel on tp", 'parallel "all"')
    base = FULL.replace(rules, "tensor_parallel on tp {\n  use l.all\n}\n").replace("models/", "../models/")
    (tmp_path / "base" / "llama.plan").write_text(preset)
    (tmp_path / "base" / "b.plan").write_text('import "llama.plan" as l\n' + base)
    split = checked(write_plan(tmp_path, text='extends "base/b.plan"\n'))
    flat = checked(write_plan(tmp_path, name="flat.plan"))
    assert split.graph is not None and flat.graph is not None
    assert plan_hash(split.graph) == plan_hash(flat.graph)
    assert [path for path, _ in split.source_digests] == ["x.plan", "base/b.plan", "base/llama.plan"]
    assert set(split.included) == {str(tmp_path / "base" / name) for name in ("b.plan", "llama.plan")}


def test_a_resolved_plan_of_several_files_is_one_file_with_one_meaning(tmp_path: Path) -> None:
    found = checked(PLANS / "llama-3.1-8b.plan")
    assert found.bound is not None and found.graph is not None
    again = checked(write_plan(tmp_path, text=resolved_text(found.bound)))
    assert again.graph is not None and plan_hash(again.graph) == plan_hash(found.graph)
    assert again.included == {}


def test_findings_in_an_included_file_say_how_it_comes_in(tmp_path: Path) -> None:
    (tmp_path / "b.plan").write_text(FULL.replace("mlp.{gate,up}", "mlp.{gate,upp}"))
    found = check_plan(write_plan(tmp_path, text='\nextends "b.plan"\n'))
    (problem,) = (one for one in found.diagnostics if one.code.code == "P203")
    assert problem.primary.span.file == str(tmp_path / "b.plan")
    assert problem.notes[-1] == f"`{tmp_path}/b.plan` is included at {tmp_path}/x.plan:2"


def test_a_comment_in_a_base_suppresses_there(tmp_path: Path) -> None:
    flat = FULL.replace("replicate_on", "param_dtype = float16\n  replicate_on")
    (warning,) = check_plan(write_plan(tmp_path, text=flat)).diagnostics
    lines = flat.split("\n")
    lines[warning.primary.span.line - 1] += f"  # planc: ignore[{warning.code.code}] as it is here"
    (tmp_path / "b.plan").write_text("\n".join(lines))
    assert check_plan(write_plan(tmp_path, text='extends "b.plan"\n')).diagnostics == ()


def test_a_comment_in_a_base_may_be_for_another_plan(tmp_path: Path) -> None:
    (tmp_path / "b.plan").write_text(FULL.replace("mesh {", "mesh {  # planc: ignore[P304] on small nodes"))
    assert check_plan(write_plan(tmp_path, text='extends "b.plan"\n')).diagnostics == ()
