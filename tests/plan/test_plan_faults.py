"""What a plan cannot mean: the code, the place, the words, for each kind of slip and attack."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.plan import codes
from planc.plan.blocks import BLOCKS
from planc.plan.keys import keys
from planc.syntax import ast
from tests.plan.resolving import TEXT, edited, fault, faults, resolved
from tests.plans import canonical_plans
from tests.syntax.reading import covered, parsed

TP = "  tp = 2\n"
LR = "param lr: float = 4e-3\n"
RULE = '"model.norm" -> sequence_parallel'
FAULTS = [
    # Integers.
    (TP, "  tp = 2.0\n", "P205", "2.0", "an integer from 1 up", "write `2`"),
    (TP, '  tp = "2"\n', "P205", '"2"', "an integer from 1 up", "without quotes"),
    (TP, "  tp = true\n", "P205", "true", "an integer from 1 up", "write a value such as `tp = 1`"),
    (TP, "  tp = [2]\n", "P205", "[2]", "an integer from 1 up", "write a value such as `tp = 1`"),
    (TP, "  tp = int(2)\n", "P205", "int(2)", "an integer from 1 up", "write a value such as `tp = 1`"),
    (TP, "  tp = two\n", "P205", "two", "an integer from 1 up", "write a value such as `tp = 1`"),
    (TP, "  tp = LR\n", "P205", "LR", "an integer from 1 up", "did you mean `lr`?"),
    (TP, "  tp = 1e999\n", "P205", "1e999", "an integer from 1 up", "write a value such as `tp = 1`"),
    (TP, "  tp = 0\n", "P206", "0", "an integer from 1 up", "write every mesh dim as a number"),
    (TP, "  tp = -2\n", "P206", "-2", "an integer from 1 up", "write every mesh dim as a number"),
    (TP, f"  tp = {2**63}\n", "P206", str(2**63), "too large", "write a value such as `tp = 1`"),
    (
        TP,
        "  tp = 2 steps\n",
        "P208",
        "steps",
        "unexpected unit `steps`: this value is a plain n",
        "write `2`",
    ),
    (
        "sequence_length = 256",
        f"sequence_length = {2**24 + 1}",
        "P206",
        str(2**24 + 1),
        "from 1 to 16777216",
        "write a value such as `sequence_length = 2048`",
    ),
    (
        "steps = 60",
        "steps = 60 steps",
        "P208",
        "steps",
        "unexpected unit `steps`: this value is a plain n",
        "write `60`",
    ),
    # Numbers.
    (
        "clip_grad_norm = 1.0",
        "clip_grad_norm = 1e999",
        "P206",
        "1e999",
        "too large",
        "write a value such as `clip_grad_norm = 1.0`",
    ),
    ("clip_grad_norm = 1.0", "clip_grad_norm = 0", "P206", "0", "from 1e-12 up", "write `none`"),
    (
        "clip_grad_norm = 1.0",
        "clip_grad_norm = -1",
        "P206",
        "-1",
        "from 1e-12 up",
        "write a value such as `clip_grad_norm = 1.0`",
    ),
    (
        "clip_grad_norm = 1.0",
        'clip_grad_norm = "1"',
        "P205",
        '"1"',
        "a number",
        "write `1` without quotes",
    ),
    (
        "steps = 60",
        "steps = 120k",
        "P208",
        "k",
        "unexpected unit `k`: this value is a plain numbe",
        "write `122_880` or `120_000`",
    ),
    ("steps = 60", "steps = 1.5 M", "P205", "1.5 M", "an integer", "write `1_572_864` or `1_500_000`"),
    (
        "steps = 60",
        "steps = 6 updates",
        "P208",
        "updates",
        "unexpected unit `updates`: this value is a plain",
        "write `6`",
    ),
    ("save_every = 30 steps", "save_every = 0.1", "P208", "0.1", "missing unit", "whole number of steps"),
    (TP, "  timeout = 0.5\n", "P208", "0.5", "missing unit", "write `0.5 min` or `0.5 h`"),
    (
        "weight_decay = 0.1",
        "weight_decay = 1 h",
        "P208",
        "h",
        "unexpected unit `h`: this value is a plain numbe",
        "write a number without a unit",
    ),
    (
        "[0.9, 0.95]",
        "[1.0, 0.9]",
        "P206",
        "1.0",
        "from 0 to 0.999999",
        "write a value such as `betas = [0.9, 0.999]`",
    ),
    (
        "[0.9, 0.95]",
        "[0.9]",
        "P205",
        "[0.9]",
        "a list of 2, each a number",
        "write a value such as `betas = [0.9, 0.999]`",
    ),
    (
        "[0.9, 0.95]",
        "[0.9, 0.9, 0.9]",
        "P205",
        "[0.9, 0.9, 0.9]",
        "a list of 2",
        "write a value such as `betas = [0.9, 0.999]`",
    ),
    ("[0.9, 0.95]", "0.9", "P205", "0.9", "a list of 2", "write a value such as `betas = [0.9, 0.999]`"),
    (
        "[0.9, 0.95]",
        "[0.9, [0.95]]",
        "P205",
        "[0.95]",
        "a number",
        "write a value such as `betas = [0.9, 0.999]`",
    ),
    # Quantities.
    ("save_every = 30 steps", "save_every = 40", "P208", "40", "missing unit", "`40 steps`"),
    ("save_every = 30 steps", "save_every = 0 steps", "P206", "0 steps", "from 1 up", "`none`"),
    (
        "save_every = 30 steps",
        "save_every = 40 mins",
        "P208",
        "mins",
        "expected a number of `steps`, or a number of `s`, `min` or `h`",
        "did you mean `min`?",
    ),
    (
        "save_every = 30 steps",
        "save_every = 40 stps",
        "P208",
        "stps",
        "expected a number of `steps`",
        "did you mean `steps`?",
    ),
    (
        "warmup = 10 steps",
        "warmup = 0.5 steps",
        "P206",
        "0.5 steps",
        "a whole number of steps from 0 up",
        "write a value such as `warmup = 100 steps`",
    ),
    (
        "warmup = 10 steps",
        "warmup = -3 steps",
        "P206",
        "-3 steps",
        "from 0 up",
        "write a value such as `warmup = 100 steps`",
    ),
    (
        "warmup = 10 steps",
        "warmup = 1e999 steps",
        "P206",
        "1e999 steps",
        "whole number",
        "write a value such as `warmup = 100 steps`",
    ),
    (
        "warmup = 10 steps",
        "warmup = 1e-999 steps",
        "P206",
        "1e-999 steps",
        "whole number",
        "write a value such as `warmup = 100 steps`",
    ),
    (
        "warmup = 10 steps",
        f"warmup = {10**19} steps",
        "P206",
        f"{10**19} steps",
        "whole number",
        "write a value such as `warmup = 100 steps`",
    ),
    (TP, "  timeout = 60\n", "P208", "60", "missing unit", "`60 s` or `60 min` or `60 h`"),
    (
        TP,
        "  timeout = 60 m\n",
        "P208",
        "m",
        "expected a number of `s`, `min` or `h`",
        "use `s`, `min` or `h`",
    ),
    (
        TP,
        "  timeout = 60 GiB\n",
        "P208",
        "GiB",
        "expected a number of `s`, `min` or `h`",
        "use `s`, `min` or `h`",
    ),
    (
        TP,
        '  timeout = "60 s"\n',
        "P205",
        '"60 s"',
        "expected a number of `s`, `min` or `h`, found a ",
        "write a value such as `timeout = 10 min`",
    ),
    # Strings, booleans, choices.
    ('hf = "models/tiny-llama"', "hf = tiny", "P205", "tiny", "a string", '"tiny"'),
    (
        'hf = "models/tiny-llama"',
        'hf = ""',
        "P206",
        '""',
        "empty",
        'write a value such as `hf = "models/tiny-llama"`',
    ),
    (
        'hf = "models/tiny-llama"',
        'hf = "  "',
        "P206",
        '"  "',
        "empty",
        'write a value such as `hf = "models/tiny-llama"`',
    ),
    (
        'hf = "models/tiny-llama"',
        "hf = 3",
        "P205",
        "3",
        "a string",
        'write a value such as `hf = "models/tiny-llama"`',
    ),
    (
        "keep_last = 2",
        "save_last = True",
        "P205",
        "True",
        "expected `true` or `false`, found `True`",
        "write `true`",
    ),
    (
        "keep_last = 2",
        'save_last = "true"',
        "P205",
        '"true"',
        "expected `true` or `false`, found a string",
        "write `true`",
    ),
    (
        "keep_last = 2",
        "save_last = 1",
        "P205",
        "1",
        "expected `true` or `false`, found `1`",
        "write a value such as `save_last = true`",
    ),
    (
        "weights = random",
        "weights = rnadom",
        "P207",
        "rnadom",
        "expected `random` or `pretrained`",
        "did you mean `random`?",
    ),
    (
        "weights = random",
        'weights = "random"',
        "P205",
        '"random"',
        "expected `random` or `pretrained`, found a strin",
        "without quotes",
    ),
    (
        "weights = random",
        "weights = lr",
        "P207",
        "lr",
        "`lr` is a parameter: expected `random` or `pretr",
        "write one of the words: a parameter can't replac",
    ),
    (
        "weights = random",
        "weights = random()",
        "P205",
        "random()",
        "expected `random` or `pretrained`, found the cal",
        "write a value such as `weights = random`",
    ),
    (
        "dtype = float32",
        "dtype = fp32",
        "P207",
        "fp32",
        "expected `float64`, `float32`, `bfloat16` or `fl",
        "float32",
    ),
    # Calls.
    ("kind = adamw(", "kind = adam(", "P212", "adam", "`adam` is not an optimizer", "did you mean `adamw`?"),
    (
        "kind = adamw(lr = lr",
        "kind = adamw(lrr = lr",
        "P211",
        "lrr",
        "`adamw` has no argument `lrr`",
        "did you mean `lr`?",
    ),
    (
        "kind = adamw(lr = lr, ",
        "kind = adamw(eps = lr, ",
        "P211",
        "adamw",
        "`adamw` needs `lr`",
        "add `lr = 3e-4`",
    ),
    (
        "kind = adamw(lr = lr",
        "kind = adamw(lr = lr, lr = lr",
        "P204",
        "lr = lr",
        "given twice",
        "remove one `lr = ...`",
    ),
    (
        "kind = adamw(lr = lr",
        "kind = adamw(lr",
        "P211",
        "lr",
        "`adamw` takes its arguments by name: `lr`, `beta",
        None,
    ),
    (
        "kind = adamw(lr = lr",
        "kind = adamw(lr = kind(lr)",
        "P205",
        "kind(lr)",
        "a number",
        "write a value such as `lr = 3e-4`",
    ),
    ("source = python_stdlib()", "source = text()", "P211", "text", "at least one", None),
    ("source = python_stdlib()", "source = text", "P211", "text", "at least one", None),
    (
        "source = python_stdlib()",
        'source = text("a", "a.*", 3)',
        "P205",
        "3",
        "a string",
        "write a path in quotes, or several",
    ),
    (
        "source = python_stdlib()",
        'source = text(patterns = "a")',
        "P211",
        'patterns = "a"',
        "`patterns` can't be passed by name",
        "text(...)",
    ),
    (
        "source = python_stdlib()",
        'source = python_stdlib("a")',
        "P211",
        '"a"',
        "`python_stdlib` does not take arguments",
        None,
    ),
    (
        "source = python_stdlib()",
        'source = "a"',
        "P205",
        '"a"',
        "expected `text`, `jsonl`, `chat`, `hf_dataset`, ",
        'write `source = text("a")`',
    ),
    (
        "tokenizer = bytes",
        "tokenizer = file()",
        "P211",
        "file",
        "`file` needs `path`",
        "add a path in quotes",
    ),
    (
        "tokenizer = bytes",
        'tokenizer = file("a", path = "b")',
        "P204",
        'path = "b"',
        "given twice",
        "remove one `path = ...`",
    ),
    (
        "desired = Replicate()",
        "desired = Replicate(1)",
        "P211",
        "1",
        "`Replicate` does not take arguments",
        None,
    ),
    (
        "desired = Replicate()",
        "desired = Partial()",
        "P212",
        "Partial",
        "`Partial` is not a placement",
        "use `Shard` or `Replicate`",
    ),
    (
        "desired = Replicate()",
        "desired = Shard",
        "P211",
        "Shard",
        "`Shard` needs `tensor_dim`",
        "add an integer from -8 to 7",
    ),
    (
        "desired = Replicate()",
        "desired = Shard(1, 2)",
        "P211",
        "2",
        "`Shard` takes only one positional argument",
        None,
    ),
    (
        "desired = Replicate()",
        "desired = Shard(9)",
        "P206",
        "9",
        "from -8 to 7",
        "write an integer from -8 to 7",
    ),
    (
        "desired = Replicate()",
        "desired = 1",
        "P205",
        "1",
        "expected `Shard` or `Replicate`, found `1`",
        "write `Shard(tensor_dim)` or `Replicate()`, or `",
    ),
    (
        "desired = Replicate()",
        "output = Replicate()",
        "P211",
        "output",
        "`prepare_input` has no argument `output`",
        "use `input` or `desired`",
    ),
    # Rules.
    (
        RULE,
        '"model.norm" -> sequence_paralel',
        "P212",
        "sequence_paralel",
        "`sequence_paralel` is not a style",
        "`sequence_parallel`",
    ),
    (
        RULE,
        '"model.norm" -> unit',
        "P212",
        "unit",
        "`unit` is not a style",
        "use `colwise`, `colwise_gather_output`, `packed_",
    ),
    (
        RULE,
        '["model.norm", "model.norm"] -> sequence_parallel',
        "P204",
        '"model.norm"',
        "listed twice",
        'remove one `"model.norm"`',
    ),
    (
        RULE,
        '"layers[0]" -> sequence_parallel',
        "P213",
        "[",
        "`[` can't be part of a module name",
        "write `layers.0`",
    ),
    # Statements.
    (
        TP,
        "  tq = 2\n",
        "P202",
        "tq",
        "`mesh` has no key `tq`",
        "use `pp`, `dp_replicate`, `dp_shard`, `cp`, `tp`, `dev",
    ),
    (TP, "  dp_shrad = 2\n", "P202", "dp_shrad", "no key", "did you mean `dp_shard`?"),
    (TP, "  micro_batch = 2\n", "P202", "micro_batch", "no key", "move it to `data`"),
    (
        TP,
        "  tp = 2, tp = 2\n",
        "P204",
        "tp = 2",
        "`tp` is given twice",
        "`--set mesh.tp=...`",
    ),
    (TP, "  tp\n", "P210", "tp", "has no value", "`tp = ...`"),
    (TP, "  tp == 2\n", "P210", "tp == 2", "not allowed in `mesh`", "`expect`"),
    (TP, "  override tp = 2\n", "P210", "override tp = 2", "overrides nothing", "remove `override`"),
    (TP, '  "a" -> colwise\n', "P210", '"a" -> colwise', "not allowed in `mesh`", "`tensor_parallel`"),
    (TP, "  inner { }\n", "P210", "inner { }", "not allowed in `mesh`", "top level"),
    (TP, "  param a: int = 3\n", "P210", "param a: int = 3", "not allowed in `mesh`", "top level"),
    (RULE, "auto, auto", "P204", "auto", "given twice", "remove one `auto`"),
    (RULE, "automatic", "P210", "automatic", "`automatic` is not a statement of `tensor_parall", "auto"),
    (LR, f"{LR}tp = 2\n", "P210", "tp = 2", "top level", "move it to `mesh`"),
    (LR, f"{LR}auto\n", "P210", "auto", "top level", None),
    (
        LR,
        f'{LR}"a" -> b\n',
        "P210",
        '"a" -> b',
        "top level",
        "move the rule to `pipeline`, `tensor_parallel`, `expert_parallel`",
    ),
    (LR, f"{LR}world_size == 4\n", "P210", "world_size == 4", "top level", "`expect`"),
    # Blocks.
    (LR, f"{LR}mseh {{ }}\n", "P201", "mseh", "no block `mseh`", "did you mean `mesh`?"),
    (
        LR,
        f"{LR}expert_model_parallel_size {{ x = lr }}\n",
        "P201",
        "expert_model_parallel_size",
        "no block",
        "write `expert_parallel on dp_shard { size = 8, auto }`",
    ),
    (
        LR,
        f"{LR}mesh {{ tp = 4 }}\n",
        "P204",
        "mesh",
        "a second `mesh` block",
        "merge the two `mesh` blocks into one",
    ),
    ("mesh {", 'mesh "x" {', "P210", '"x"', "`mesh` does not take a label", "a fragment"),
    (
        "mesh {",
        "mesh on tp {",
        "P210",
        "tp",
        "`mesh` does not take mesh dims",
        "remove `on` and what follows it",
    ),
    ("expect {", 'expect "x" {', "P210", '"x"', "`expect` does not take a label", "a fragment"),
    (
        "expect {",
        "expect on tp {",
        "P210",
        "tp",
        "`expect` does not take mesh dims",
        "remove `on` and what follows it",
    ),
    (
        "tensor_parallel on tp {",
        "tensor_parallel {",
        "P209",
        "tensor_parallel",
        "`tensor_parallel` must name its mesh dims",
        "on tp {",
    ),
    ("fsdp on dp_shard, cp {", "fsdp on dp, cp {", "P303", "dp", "no dim `dp`", "on dp_shard {"),
    (
        "fsdp on dp_shard, cp {",
        "fsdp on dp_shrad, cp {",
        "P303",
        "dp_shrad",
        "no dim",
        "did you mean `dp_shard`?",
    ),
    ("fsdp on dp_shard", "fsdp on dp_replicate", "P303", "dp_replicate", "only", "replicate_on = dp_rep"),
    (
        "fsdp on dp_shard, cp {",
        "fsdp on dp_shard, tp {",
        "P303",
        "tp",
        "`fsdp` works only on `dp_shard` or `cp`",
        "remove `tp`",
    ),
    ("fsdp on dp_shard, cp {", "fsdp on cp, cp {", "P204", "cp", "listed twice", "write `fsdp on cp`"),
    # Expectations.
    (
        "world_size == 4",
        "world_size = 4",
        "P210",
        "world_size = 4",
        "not inside `expect`",
        "write a comparison such as `world_size == 8`",
    ),
    ("world_size == 4", "world_size == four", "P205", "four", "a number", "write `world_size == 8`"),
    (
        "world_size == 4",
        "world_size == 4 steps",
        "P208",
        "steps",
        "`world_size` is a plain number",
        "write `4`",
    ),
    ("world_size == 4", "peak_memory < 4", "P208", "4", "the unit is missing", "`4 GiB`"),
    (
        "world_size == 4",
        "peak_memory < 4 min",
        "P208",
        "min",
        "number of bytes",
        "write one of the units B, KB, MB, GB, TB, KiB, M",
    ),
    ("world_size == 4", "peak_memory < 4 GiBi", "P208", "GiBi", "not a unit", "`GiB`"),
    (
        "world_size == 4",
        "peak_memory < 1e999 GiB",
        "P206",
        "1e999 GiB",
        "too large",
        "write a number up to 9_223_372_036_854_775_807",
    ),
    # Words of other tools as arguments.
    (
        "adamw(lr = lr",
        "adamw(learning_rate = lr",
        "P211",
        "learning_rate",
        "no argument `learning_rate`",
        "write `lr = ...`",
    ),
    (
        "adamw(lr = lr",
        "adamw(lr = lr, learning_rate = lr",
        "P211",
        "learning_rate",
        "no argument `learning_rate`",
        "remove it: `lr` is given",
    ),
    # Parameters.
    (LR, "param lr: flaot = 4e-3\n", "P207", "flaot", "not a parameter type", "did you mean `float`?"),
    (LR, 'param lr: float = "4e-3"\n', "P205", '"4e-3"', "a number", "`4e-3` without quotes"),
    (
        LR,
        "param lr: float = 4 h\n",
        "P208",
        "h",
        "unexpected unit `h`: this value is a plain numbe",
        "write a number without a unit",
    ),
    (
        LR,
        "param lr: float = lr\n",
        "P205",
        "lr",
        "a number",
        "write the value: a parameter can't refer to anot",
    ),
    (
        LR,
        "param lr: float(0.0..1e-3) = 4e-3\n",
        "P206",
        "4e-3",
        "from 0 to 0.001",
        "write a number from 0 to 0.001",
    ),
    (LR, "param lr: float(1..0) = 4e-3\n", "P206", "1..0", "range is empty", "0..1"),
    (
        LR,
        "param lr: float(0 steps..1) = 4e-3\n",
        "P208",
        "steps",
        "unexpected unit `steps`: this value is a plain n",
        "write `0`",
    ),
    (LR, "param lr: float(0..1e999) = 4e-3\n", "P206", "1e999", "too large", None),
    (
        LR,
        "param lr: string(0..1) = 4e-3\n",
        "P211",
        "string",
        "a `string` can't have a range",
        "remove the range",
    ),
    (LR, f"{LR}param n: int(1..2.5) = 2\n", "P205", "2.5", "an integer", None),
    (LR, f"{LR}param n: int = 2.0\n", "P205", "2.0", "an integer", "write `2`"),
    (
        LR,
        f"{LR}param n: int = 2\n",
        "P214",
        "n",
        "`n` is never used",
        "or remove `param n`",
    ),
    (
        LR,
        f"{LR}param lr: int = 2\n",
        "P204",
        "lr",
        "a second parameter `lr`",
        "`--set lr=...`",
    ),
    (LR, f"{LR}param none: int = 2\n", "P204", "none", "`none` is a reserved word", "another name"),
    (LR, f"{LR}param true: bool = false\n", "P204", "true", "`true` is a reserved word", "another name"),
    (LR, f"{LR}param on: int = 2\n", "P204", "on", "`on` is a reserved word", "another name"),
]


@pytest.mark.parametrize(
    ("old", "new", "code", "place", "text", "help"), FAULTS, ids=[new.strip() for _, new, *_ in FAULTS]
)
def test_a_fault_is_one_finding_with_place_and_reason(
    old: str, new: str, code: str, place: str, text: str, help: str | None
) -> None:
    plan = edited((old, new))
    problem = fault(plan)
    assert problem.code.code == code
    assert covered(plan, problem.primary.span) == place
    assert text in problem.primary.text
    assert (problem.help is None) if help is None else help in (problem.help or "")


def test_every_code_of_this_phase_has_a_fault_above() -> None:
    """P209 beyond `on`, P215 and P242 have tests of their own."""
    assert {code for _, _, code, *_ in FAULTS} | {"P215", "P242"} == {
        code.code for code in codes.RESOLVE_CODES
    }


@pytest.mark.parametrize("kind", [kind for kind, shape in BLOCKS.items() if shape.required])
def test_a_required_block_is_missed(kind: str) -> None:
    (block,) = [
        statement
        for statement in parsed(TEXT).statements
        if covered(TEXT, statement.span).startswith(f"{kind} ")
    ]
    problem = next(
        one for one in faults(edited((covered(TEXT, block.span), ""))) if one.code is codes.MISSING
    )
    assert f"no `{kind}` block" in problem.primary.text
    assert (problem.primary.span.line, problem.primary.span.column) == (1, 1)


REQUIRED = {
    "model.hf": '  hf = "models/tiny-llama"\n',
    "data.source": "  source = python_stdlib()\n",
    "data.sequence_length": "  sequence_length = 256\n",
    "data.micro_batch": "  micro_batch = 4\n",
    "train.steps": "  steps = 60\n",
}


@pytest.mark.parametrize("path", REQUIRED)
def test_a_required_key_is_missed_at_its_block(path: str) -> None:
    kind, _, name = path.partition(".")
    text = edited((REQUIRED[path], ""))
    problem = fault(text)
    assert problem.code is codes.MISSING
    assert covered(text, problem.primary.span) == kind
    assert problem.primary.text == f"`{kind}` needs `{name}`"


def test_a_missed_key_under_a_slip_of_its_name_is_one_finding() -> None:
    assert fault(edited(("micro_batch = 4", "micro_bacth = 4"))).code is codes.UNKNOWN_KEY


def test_all_faults_are_found_at_once() -> None:
    text = edited(
        ("tp = 2\n", "tp = 0\n"),
        ("weights = random", "weights = rnadom"),
        ("lr = lr, betas = [0.9, 0.95]", "lr = -1, betas = [0.9], bta = lr"),
        ("clip_grad_norm", "clip_gard_norm"),
        (RULE, '"a..b" -> colwize'),
        ("steps = 60", "steps = 60 steps"),
    )
    found = [problem.code.code for problem in faults(text)]
    assert sorted(found) == ["P202", "P205", "P206", "P206", "P207", "P208", "P211", "P212", "P213"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LR, "param lr: flaot = 4e-3\n"),
        (LR, 'param lr: float = "x"\n'),
        ("kind = adamw(lr", "kind = adamw(rl"),
        ("kind = adamw(", "kind = sgd("),
        ("  kind = adamw(lr = lr, betas = [0.9, 0.95], weight_decay = 0.1)", "  kid = adamw(lr = lr)"),
        ("optimizer {", "optimiser {"),
    ],
)
def test_a_fault_around_a_parameter_does_not_fault_the_parameter(old: str, new: str) -> None:
    """Its use or its definition is at fault, never both, and it does not count as unused."""
    found = [problem.code for problem in faults(edited((old, new)))]
    assert codes.UNUSED_PARAM not in found
    assert [code for code in found if code is not codes.MISSING] == [found[0]]


def test_a_fault_through_a_parameter_names_the_place_that_used_it() -> None:
    text = edited((LR, 'param lr: string = "x"\n'))
    problem = fault(text)
    assert covered(text, problem.primary.span) == '"x"'
    (label,) = problem.secondary
    assert (covered(text, label.span), label.text) == ("lr", "`lr` is used here")


def test_a_second_of_anything_points_at_the_first() -> None:
    text = edited((TP, "  tp = 2, tp = 4\n"))
    problem = fault(text)
    assert covered(text, problem.primary.span) == "tp = 4"
    assert [covered(text, label.span) for label in problem.secondary] == ["tp = 2"]


@pytest.mark.parametrize("path", canonical_plans(), ids=lambda path: path.stem)
def test_no_block_of_any_plan_ignores_an_unknown_key(path: Path) -> None:
    """Every key is consumed or reported, exactly there."""
    text = path.read_text(encoding="utf-8")
    blocks = [statement for statement in parsed(text).statements if isinstance(statement, ast.Block)]
    for block in blocks:
        lines = text.split("\n")
        lines.insert(block.span.line, "  zzz = 1")
        problem = fault("\n".join(lines))
        expected = codes.MISPLACED if block.kind.text == "expect" else codes.UNKNOWN_KEY
        assert (problem.code, problem.primary.span.line, problem.primary.span.column) == (
            expected,
            block.span.line + 1,
            3,
        )


def test_a_safe_fix_mends_the_plan() -> None:
    text = edited(("weights = random", "weights = rnadom"))
    fix = fault(text).fix
    assert fix is not None
    assert fix.is_safe
    lines = text.split("\n")
    line = lines[fix.span.line - 1]
    lines[fix.span.line - 1] = line[: fix.span.column - 1] + fix.replacement + line[fix.span.end_column - 1 :]
    assert resolved("\n".join(lines)) == resolved(TEXT)


def test_a_guess_at_a_short_word_is_no_safe_fix() -> None:
    fix = fault(edited(("lr = lr", "lrr = lr"))).fix
    assert fix is not None
    assert not fix.is_safe


def test_every_key_has_a_line_of_documentation() -> None:
    for shape in BLOCKS.values():
        for spec_field in keys(shape.record):
            assert spec_field.metadata["doc"]
