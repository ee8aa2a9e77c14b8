"""Files that a run reads and that are not there: a report names them, where the plan asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_plan
from planc.diagnostics import Diagnostic
from planc.doctor.storage import input_checks, read_inputs
from tests.plans import write_plan

SOURCE = "source = python_stdlib()"


def problems(plan: Path) -> list[Diagnostic]:
    graph = check_plan(plan).graph
    assert graph is not None
    return [one for check in input_checks(read_inputs(graph, base=plan.parent)) for one in check.problems]


@pytest.mark.parametrize("kind", ["text", "jsonl", "hf_dataset"])
def test_data_that_is_not_there_is_an_error_until_it_is(kind: str, tmp_path: Path) -> None:
    plan = write_plan(tmp_path, edits=[(SOURCE, f'source = {kind}("here/*.jsonl")')])
    (problem,) = problems(plan)
    assert (problem.code.code, problem.primary.text) == ("P931", 'pattern "here/*.jsonl" matches no file')
    assert problem.primary.span.file == str(plan)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.jsonl").write_text("{}\n")
    assert not problems(plan)


def test_weights_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, edits=[("weights = random", "weights = pretrained")])
    (problem,) = problems(plan)
    assert problem.code.code == "P931"
    assert "has neither model.safetensors nor" in problem.primary.text


def test_text_of_an_evaluation_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    block = f'{SOURCE}\n  eval "held_out" {{ source = text("held/*.txt"), every = 10 steps }}'
    (problem,) = problems(write_plan(tmp_path, edits=[(SOURCE, block)]))
    assert problem.primary.text == 'pattern "held/*.txt" matches no file'


def test_data_that_comes_with_python_is_not_looked_for(tmp_path: Path) -> None:
    graph = check_plan(write_plan(tmp_path)).graph
    assert graph is not None
    assert read_inputs(graph, base=tmp_path) == ()


@pytest.mark.parametrize("name", ["words", "words/tokenizer.json"])
def test_a_tokenizer_that_is_not_there_is_an_error_until_it_is(name: str, tmp_path: Path) -> None:
    plan = write_plan(tmp_path, edits=[("tokenizer = bytes", f'tokenizer = file("{name}")')])
    (problem,) = problems(plan)
    assert (problem.code.code, problem.primary.text) == ("P931", f"no tokenizer at {name}")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "tokenizer.json").write_text("{}")
    assert not problems(plan)
