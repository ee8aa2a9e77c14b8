"""All syntax errors of a file in one run, where they are, and nothing else."""

from __future__ import annotations

import pytest

from planc.api import check_source
from planc.source import SourceFile
from planc.syntax.parse import parse, read
from planc.syntax.recovery import MAX_PROBLEMS
from tests.plans import PLANS, TINY
from tests.syntax.corpus import NUM_FILES, corpus, findings, one_each, score, texts
from tests.syntax.operators import OPERATORS
from tests.syntax.reading import parsed


def lines(text: str) -> list[int]:
    return [problem.primary.span.line for problem in findings(text)]


def only(text: str) -> tuple[str, int, str, str]:
    """The one finding on a text: code, line, label and help."""
    (problem,) = findings(text)
    return problem.code.code, problem.primary.span.line, problem.primary.text, problem.help or ""


def test_findings_meet_the_slips_of_a_corpus() -> None:
    files = tuple(corpus())
    found = score(files)
    print(f"recall {found.recall:.3f}, precision {found.precision:.3f} over {found.num_slips} slips")
    assert len(files) == NUM_FILES >= 300
    assert found.num_slips == 5 * NUM_FILES
    # Reached: 0.997 and 0.999. The goal was 0.95.
    assert found.recall >= 0.99
    assert found.precision >= 0.99


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_slip_of_the_corpus_breaks_a_file(operator: str) -> None:
    files = list(one_each(operator))[:3]
    assert files
    assert all(findings(file.text) for file in files)


@pytest.mark.parametrize("number", range(len(texts())))
def test_a_slip_is_the_only_finding_in_an_otherwise_sound_file(number: int) -> None:
    text = texts()[number].rstrip("\n")
    assert lines(f"{text}\nmesh {{ tp = }}\n") == [text.count("\n") + 2]


ODD_BUT_SOUND = """\
model { hf = "models/tiny-llama", seed = 0
}
mesh { tp = 2 }
tensor_parallel
on = 3
fsdp on dp_shard,cp {
["model.norm",
"lm_head"] -> unit(
reshard_after_forward = false,
) # }
"model.layers.*"->unit }
data {
      source = jsonl("a", field = "{")
   micro_batch = 1
}
checkpoint {
  save_every = 3 steps
export "hf" {
  when = end
}
}
optimizer { kind = adamw(lr =
  1e-3), clip_grad_norm = 1.0,
}
train { steps = 1
        tokens_per_step
           = 4 }
"""


def test_no_layout_is_reported_beside_a_slip() -> None:
    text = ODD_BUT_SOUND.replace("tokens_per_step\n           = 4", "tokens_per_step = 4")
    parsed(text)
    assert lines(f"{text}x y\n") == [text.count("\n") + 1]


def test_a_statement_has_one_finding() -> None:
    assert lines("a {\n  b = = 'c' ; [\n  d == \n}\n") == [2, 3]


def test_a_faulty_head_may_lack_its_brace_too() -> None:
    assert lines("a on b and c {\n  d = 1\n\ne {\n  f = 1\n}\n") == [1, 1]


def test_a_flat_file_is_read_by_its_braces() -> None:
    assert lines("a {\nb = 1\nc {\nd 1\n}\ne = 2\n}\nf {\ng = 1\n") == [4, 8]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("a {\n  b = 1\n\nc {\n  d = 1\n}\n", "P108", 1),
        ("a {\n  b = 1\n\nparam c: int = 1\nd {\n}\n", "P108", 1),
        ("a {\n  b = f(1\n  c = 2\n}\n", "P108", 2),
        ("a {\n  b = {1\n  c = 2\n}\n", "P102", 2),
        ("a {\n  b = 1\n  }\n  c = 2\n}\n", "P109", 3),
        ("a {\n  b = 1\n}\n  c = 2\n}\n", "P109", 3),
        ("a {\n  b = 1 }\n  c = 2\n}\n", "P109", 2),
        ("a {\n  b = 1\n}\n}\nd {\n}\n", "P109", 4),
        ("a\n  b = 1\n}\n", "P102", 1),
        ("a\nb = 1\n}\n", "P102", 1),
        ("a:\n  b = 1\n\nc {\n}\n", "P102", 1),
        ("a {\n  b = 1\n]\n", "P102", 3),
        ("a {\n  b = 1\n)\nc { d = 2 }\n", "P102", 3),
        (")\n", "P109", 1),
        ("{\n  a { b = 1 }\n}\n", "P102", 1),
        ("a {{\n  b = 1\n}\n", "P102", 1),
        ('a {\n  "b -> c {\n  d = 1\n}\n', "P101", 2),
        ('a {\n  e "b {\n    d = 1\n  }\n  f = 1\n}\n', "P101", 2),
        ("/* a { \n b */ c = 1\n", "P102", 1),
        ("a = 1 /* b\n", "P102", 1),
    ],
)
def test_brackets_that_do_not_pair_are_reported_once(text: str, code: str, line: int) -> None:
    assert only(text)[:2] == (code, line)


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("tp: 2", "write a setting as `tp = ...`"),
        ("mesh:\n  tp = 2", "write the block as `mesh { ... }`"),
        ("mesh: {\n}", "write the block as `mesh { ... }`"),
        ("mesh = {\n}", "write the block as `mesh { ... }`, without `=`"),
        ('"mesh": {\n}', "write the block as `mesh { ... }`"),
        ('"tp": 2,', "write a setting as `tp = ...`, without quotes around the name"),
        ("[mesh]\ntp = 2", "write the block as `mesh { ... }`"),
        ("mesh (\n)", "write the block as `mesh { ... }`"),
        ("mesh\n{\n}", "move `{` to the line of the block's name"),
        ("mesh\n  tp = 2\n}", "write the block as `mesh { ... }`"),
        ('"a" => b', 'write a rule as `"pattern" -> action`'),
        ('"a" b', 'write a rule as `"pattern" -> action`'),
        ('["a", "b"] colwise', 'write a rule as `"pattern" -> action`'),
        ("a = 1 // b", "start a comment with `#`"),
        ("// b", "start a comment with `#`"),
        ("a = 1;", "remove it: a statement ends with its line, or with a comma"),
        ("a = 'b'", 'write strings in double quotes: `"..."`'),
        ("a = ${B}", "declare a `param` and set it with `--set`: a plan can't read the environment"),
        ("a = (1, 2)", "write a list as `[a, b]`"),
        ("a = {b: 1}", "write a list as `[a, b]`"),
        ("- a", "write a list as `[a, b]`"),
        ("a = Shard[1]", "write a call as `Shard(...)`"),
        ('"a" -> Shard{1}', "write a call as `Shard(...)`"),
        ("a = .5", "start a number with a digit, as in `0.5`"),
        ("a = +5", "remove the `+`"),
        ("a == 2**3  # c", "write a power as a product: a plan computes with `+`, `-`, `*` and `/`"),
        ("a = data/x.y", 'write the path in quotes: `"data/x.y"`'),
        ("a = text(data/*.txt)", 'write the path in quotes: `"data/*.txt"`'),
        ("a = text(my-data/a.txt, b)", 'write the path in quotes: `"my-data/a.txt"`'),
        ("a = /data/x", 'write the path in quotes: `"/data/x"`'),
        ("a = ./x  # c", 'write the path in quotes: `"./x"`'),
        ("a = b/* c */", "start a comment with `#`"),
        ("a = b// c", "start a comment with `#`"),
        (
            "expect {\n  override a == 1\n}",
            "remove `override`: the expectations of all files must hold",
        ),
        ("a = f(b = 1 c = 2)", "separate arguments with commas"),
        ("a = f(\n  b = 1\n  c = 2\n)", "add the missing value or comma before `c`"),
        ("a = 1 b = 2", "write each setting on its own line, or after a comma"),
        ("fsdp on a and b { }", "separate mesh dims with commas"),
        ("fsdp onn a { }", "did you mean `on`?"),
        ("parm a: int = 1", "did you mean `param`?"),
        ("for a in b {\n}", "remove it: a plan has no loops, conditions or functions"),
        ("let a = 1", "write a parameter as `param name: int = 1`"),
        ('a.b" -> c', 'add the missing `"` before it'),
        ('["a, "b"] -> c', 'add the missing `"` on this line'),
        ("<<<<<<< HEAD", "resolve the merge conflict and remove its markers"),
        ("=======", "resolve the merge conflict and remove its markers"),
        ("a 1", "write a setting as `key = value`"),
    ],
)
def test_habits_from_other_languages_are_answered(text: str, help: str) -> None:
    assert only(f"{text}\n")[3] == help


def test_findings_are_capped_and_say_so() -> None:
    problems = findings("a b\n" * (MAX_PROBLEMS + 1))
    assert len(problems) == MAX_PROBLEMS
    assert "only the first" in problems[-1].notes[0]
    assert len(findings("a b\n" * MAX_PROBLEMS)) == MAX_PROBLEMS
    assert not findings("a b\n" * MAX_PROBLEMS)[-1].notes


def test_what_parses_is_kept_with_its_places() -> None:
    text = "param p: int = 1\n\na {\n  b 1\n  c = 2\n  d = 3, e = 4\n}\n"
    recovered = read(SourceFile("x.plan", text)).recovered
    assert recovered is not None
    whole = parsed(text.replace("  b 1", "# b 1"))
    assert recovered.file.statements == whole.statements


def test_a_block_whose_braces_are_a_guess_is_left_out() -> None:
    recovered = read(SourceFile("x.plan", "a {\n  b = 1\n\nc {\n  d = 1\n}\n")).recovered
    assert recovered is not None
    assert recovered.file.statements == parsed("\n\n\nc {\n  d = 1\n}\n").statements


def checked(text: str) -> list[tuple[str, int]]:
    found = check_source(SourceFile("x.plan", text), base=PLANS).diagnostics
    return [(one.code.code, one.primary.span.line) for one in found]


def test_sound_statements_are_checked_beside_broken_ones() -> None:
    text = TINY.replace("tp = 2", "tpp = 2").replace("micro_batch = 1", "micro_batch: 1")
    text = text.replace("steps = 10", "steps = 1.5")
    assert checked(text) == [("P202", 9), ("P102", 23), ("P205", 31)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('hf = "models', 'hf "models'),
        ("steps = 10", "steps = "),
        ("param size: int", "parm size: int"),
        ("param size: int = 2", "param size: int = "),
        ("dp_shard = size", "dp_shard size"),
        ("train {", "train"),
        ("train {", "train {{"),
        ("optimizer {\n", "}\noptimizer {\n"),
        ("  kind = adamw(lr = 1e-3)\n", "  kind = adamw(lr = 1e-3\n"),
        ("  steps = 10\n}", "  steps = 10\n"),
        ("  tp = 2\n}", "  tp = 2\n"),
    ],
)
def test_nothing_that_follows_from_a_broken_statement_is_reported(old: str, new: str) -> None:
    assert old in TINY
    assert len(checked(TINY.replace(old, new))) == 1


def test_a_plan_of_several_files_is_not_judged_by_one() -> None:
    assert checked(f'extends "base.plan"\nx y\n{TINY.replace("tp = 2", "tpp = 2")}') == [("P102", 2)]


def test_a_file_of_broken_statements_only_is_quick() -> None:
    file, problems = parse(SourceFile("x.plan", "a =\n" * 14_000))
    assert file is None
    assert len(problems) == MAX_PROBLEMS
