"""Words of other tools: a help for each, whose line resolves where the help puts it."""

from __future__ import annotations

import re

import pytest

from planc.api import check_source
from planc.diagnostics.fixes import apply_fixes
from planc.plan.blocks import BLOCKS, setting_paths
from planc.plan.foreign_help import LABELS, foreign_help, foreign_page, meant_block, meant_setting
from planc.plan.foreign_words import foreign_words
from planc.source import SourceFile
from tests.plan.resolving import TEXT, edited, fault, faults, resolved, setting
from tests.plans import PLANS

KEYS = {path.rpartition(".")[2] for path in setting_paths()}
PLAIN = TEXT.replace("param lr: float = 4e-3\n", "").replace("lr = lr", "lr = 4e-3")
"""Without a parameter, which a line may leave unused."""
LINE = re.compile(r"write `(.*?)`(?: in `(\w+)`)?")


def body_of(kind: str) -> tuple[int, int]:
    """The offsets of what a block of the full plan holds, between its braces."""
    start = re.search(rf"^{kind}\b[^{{]*\{{\n", PLAIN, re.MULTILINE)
    assert start is not None, kind
    return start.end(), PLAIN.index("\n}\n", start.end()) + 1


def with_line(line: str, kind: str) -> str:
    """The full plan with a line in a block, in place of the setting that it sets, or with a whole block.

    A block that the full plan has not holds the line alone.
    """
    if not kind:
        name = line.split()[0]
        if re.search(rf"^{name}\b", PLAIN, re.MULTILINE) is None:
            return f"{PLAIN}\n{line}\n"
        start, end = body_of(name)
        head = PLAIN.rindex("\n", 0, start - 1) + 1
        return f"{PLAIN[:head]}{line}\n{PLAIN[end + 2 :]}"
    if re.search(rf"^{kind}\b", PLAIN, re.MULTILINE) is None:
        return f"{PLAIN}\n{kind} {{\n  {line}\n}}\n"
    start, end = body_of(kind)
    key = re.match(r"(\w+) = ", line)
    kept = [
        one
        for one in PLAIN[start:end].splitlines()
        if key is None or not one.strip().startswith(f"{key[1]} = ")
    ]
    return PLAIN[:start] + "\n".join((*kept, f"  {line}")) + "\n" + PLAIN[end:]


@pytest.mark.parametrize("word", {meant: word for word, meant in foreign_words().items()}.values())
def test_the_line_that_a_help_offers_resolves(word: str) -> None:
    """One word of each row: the others of the row have the same line."""
    help = foreign_help(word)
    assert help is not None
    if foreign_words()[word].factors or not foreign_words()[word].line:
        assert "write `" not in help, "without a line there is nothing to paste"
        return
    line = LINE.search(help)
    assert line is not None, help
    resolved(with_line(line[1], line[2] or ""))


@pytest.mark.parametrize("kind", ["model", "mesh", "fsdp", "data", "optimizer", "checkpoint", "train"])
def test_an_unknown_key_gets_the_help_in_the_block_where_people_write_it(kind: str) -> None:
    words = [
        word
        for word, meant in foreign_words().items()
        if word not in KEYS and (meant_block(word) == kind or kind == "train") and not meant.rule
    ]
    start, _ = body_of(kind)
    lines = "".join(f"  {word} = 0 s\n" for word in words)
    found = {one.primary.text: one for one in faults(f"{PLAIN[:start]}{lines}{PLAIN[start:]}")}
    for word in words:
        problem = found[f"`{kind}` has no key `{word}`"]
        # The plan's own learning rate is in the line.
        help = str(foreign_help(word, kind=kind)).replace("lr = 3e-4", "lr = 4e-3")
        assert (problem.code.code, problem.help) == ("P202", help)


def test_an_unknown_block_gets_the_help() -> None:
    words = [word for word in foreign_words() if word not in BLOCKS]
    found = {one.primary.text: one for one in faults(PLAIN + "".join(f"\n{word} {{\n}}" for word in words))}
    for word in words:
        problem = found[f"no block `{word}`"]
        assert (problem.code.code, problem.help) == ("P201", foreign_help(word))


def test_explain_has_every_word() -> None:
    for word in foreign_words().keys() - LABELS:
        page = foreign_page(word)
        assert page is not None and str(foreign_help(word)) in page
        assert page.startswith(f"{word}: a word of other tools\n")


@pytest.mark.parametrize(
    ("word", "action"), [("recompute_activations", "selective"), ("gradient_checkpointing", "full")]
)
def test_a_flag_for_recomputing_has_the_meaning_of_its_tool(word: str, action: str) -> None:
    assert foreign_help(word) == f'write `activation_checkpoint {{ "model.layers.*" -> {action} }}`'


def test_explain_leaves_a_label_of_planc_to_its_block() -> None:
    assert foreign_page("wandb") is None


def test_no_word_has_two_meanings() -> None:
    from planc.plan.foreign_field import FIELD
    from planc.plan.foreign_parallelism import MESH, MODEL, OBSERVED, SHARDING
    from planc.plan.foreign_training import DATA, OPTIMIZER, TRAIN

    tables = (DATA, TRAIN, OPTIMIZER, MESH, SHARDING, MODEL, OBSERVED, FIELD)
    words = [word for table in tables for row in table for word in row.split()]
    assert sorted(words) == sorted(foreign_words())


def test_every_word_can_be_a_name_and_is_in_lower_case() -> None:
    for word in foreign_words():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", word)


@pytest.mark.parametrize(
    ("old", "new", "help"),
    [
        (
            "seed = 42",
            "seed = 42\n  seed = 1",
            "write `shuffle_seed = 1` to seed the sample order; `model.seed`",
        ),
        (
            "steps = 60",
            "steps = 60\n  seed = 7",
            "write `shuffle_seed = 7` in `data` to seed the sample order",
        ),
        (
            "clip_grad",
            "lr = 1e-3\n  clip_grad",
            "`lr` is an argument of the optimizer: write `kind = adamw(lr = 1e-3)`",
        ),
        ("steps = 60", "steps = 60\n  num_epochs = 3", "write `epochs = 3`"),
        ("warmup = 10 steps", "warmup = 2 epochs", "only the length of the training counts epochs"),
        (
            "steps = 60",
            "steps = 60\n  gradient_accumulation_steps = 16",
            "is derived: write `tokens_per_step = 32_768`, 16 x 1 x 2 x 4 x 256 (accumulation x dp",
        ),
        (
            "steps = 60",
            "steps = 60\n  global_batch_size = 64",
            "write `tokens_per_step = 16_384`, 64 x 256 (sequences x sequence_length)",
        ),
        ("tp = 2", "tp = 2\n  dp = 8", "write `dp_shard = 8` to shard with `fsdp`, or `dp_replicate = 8`"),
        (
            "seed = 42",
            "seed = 42\n  attn_implementation = flash_attention_2",
            "planc has `sdpa` and `eager`, not flash_attention_2: write `attention = sdpa`",
        ),
        ("seed = 42", 'seed = 42\n  attn_implementation = "eager"', "write `attention = eager`"),
        ("tp = 2", "tp = 2\n  pipeline_parallel_size = 2", "write `pp = 2`"),
        (
            "tp = 2",
            "tp = 2\n  num_stages = 4",
            "write `pipeline on pp { schedule = interleaved(stages_per_rank = 2) }`",
        ),
        ("steps = 60", "steps = 60\n  save_steps = 50", "write `save_every = 50 steps` in `checkpoint`"),
        (
            "micro_batch = 4",
            "micro_batch = 4\n  batch_size = 32",
            "write `micro_batch = 32`; `tokens_per_step`",
        ),
        (
            "micro_batch = 4",
            "micro_batch = 4\n  batch_size = big",
            "write `micro_batch = 4`; `tokens_per_step`",
        ),
    ],
)
def test_a_help_has_the_value_that_was_written_if_it_fits(old: str, new: str, help: str) -> None:
    assert help in str(fault(edited((old, new))).help)


@pytest.mark.parametrize(
    "edits",
    [
        [("micro_batch = 4", "micro_batch = half")],
        [("micro_batch = 4", "mbs = 4")],
        [("dp_shard = 2", "dp = 2")],
        [("steps = 60", "steps = 60 steps = 60")],
    ],
)
def test_a_product_with_an_unclear_factor_is_said_as_a_formula(edits: list[tuple[str, str]]) -> None:
    text = edited(*edits).replace("\ntrain {", "\ntrain {\n  grad_accum = 16")
    helps = [str(one.help) for one in check_source(SourceFile("x.plan", text), base=PLANS).diagnostics]
    formula = (
        "set `tokens_per_step` to accumulation x dp_replicate x dp_shard x micro_batch x sequence_length"
    )
    assert any(formula in help for help in helps), helps


def test_an_override_of_a_factor_leaves_the_formula() -> None:
    text = edited(("steps = 60", "steps = 60\n  global_batch_size = 64"))
    (problem,) = faults(text, overrides=[setting("data.sequence_length=128")])
    assert "set `tokens_per_step` to sequences x sequence_length" in str(problem.help)


@pytest.mark.parametrize(
    ("old", "new", "help"),
    [
        ("\ntrain {", "\nzero_stage = 3\ntrain {", "remove it: `fsdp on dp_shard, cp` already does this"),
        ("\ntrain {", "\nzero_stage = 0\ntrain {", "FSDP2 shards parameters, gradients and optimizer state"),
        (
            " replicate_on",
            " param_dtype = bfloat16\n  bf16 = true\n  replicate_on",
            "remove it: `param_dtype = bfloat16` already does",
        ),
        (
            " replicate_on",
            ' param_dtype = bfloat16\n  precision = "bf16"\n  replicate_on',
            "remove it: `param_dtype = bfloat16` alr",
        ),
        (
            " replicate_on",
            " param_dtype = bfloat16\n  bf16 = false\n  replicate_on",
            "remove it, and `param_dtype = bfloat16` in `fsdp`, which turns this on",
        ),
        (
            " replicate_on",
            " param_dtype = bfloat16\n  precision = fp16\n  replicate_on",
            "write `param_dtype = bfloat16`",
        ),
        (" = 256", " = 256\n  seq_len = 256", "remove it: `sequence_length = 256` already does this"),
        (" = 256", " = 256\n  seq_len = 512", "write `sequence_length = 512`"),
    ],
)
def test_a_word_for_what_the_plan_already_does_is_to_be_removed(old: str, new: str, help: str) -> None:
    assert str(fault(edited((old, new))).help).startswith(help)


def test_a_key_with_another_name_has_a_safe_fix_and_is_not_missing_as_well() -> None:
    text = edited(("sequence_length = 256", "seq_len = 256"))
    problem = fault(text)
    assert problem.fix is not None and problem.fix.is_safe
    assert resolved(apply_fixes(SourceFile("x.plan", text), [problem], with_unsafe=False).text)


def test_a_key_that_is_there_under_its_own_name_has_no_fix() -> None:
    assert fault(edited(("micro_batch = 4", "micro_batch = 4\n  seq_len = 512"))).fix is None


def test_a_key_that_needs_a_unit_has_no_fix() -> None:
    problem = fault(edited(("tokens_per_step = 4096", "tokens_per_step = 4096\n  logging_steps = 10")))
    assert problem.fix is None and "write `log_every = 10 steps`" in str(problem.help)


def test_a_block_with_another_name_is_not_missing_as_well() -> None:
    assert fault(edited(("\ntrain {", "\ntraining {"))).code.code == "P201"


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("seq_len", "data.sequence_length"),
        ("learning_rate", "optimizer.kind.lr"),
        ("warmup_steps", "optimizer.schedule.warmup"),
        ("epochs", None),
        ("pp", None),
    ],
)
def test_a_word_names_the_setting_that_takes_its_value(word: str, path: str | None) -> None:
    assert meant_setting(word) == path


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("data.seq_len=128", "did you mean `data.sequence_length`?"),
        ("train.max_steps=5", "did you mean `train.steps`?"),
        ("train.num_train_epochs=5", "did you mean `train.epochs`?"),
        ("optimizer.wd=0.1", "write `optimizer.kind.weight_decay=...`"),
    ],
)
def test_an_override_of_such_a_word_is_answered(text: str, help: str) -> None:
    (problem,) = faults(TEXT, overrides=[setting(text)])
    assert help in str(problem.help)


@pytest.mark.parametrize(
    ("old", "new", "help", "fixed"),
    [
        ("python_stdlib()", '"data/*.txt"', 'write `source = text("data/*.txt")`', 'text("data/*.txt")'),
        ("python_stdlib()", '"a/*.jsonl"', 'write `source = jsonl("a/*.jsonl")`', 'jsonl("a/*.jsonl")'),
        ("python_stdlib()", '"org/name"', 'write `source = text("org/name")`', None),
        ("= bytes", '= "gpt2"', 'write `tokenizer = file("path/to/tokenizer.json")`', None),
        (
            "= bytes",
            '= "a/tokenizer.json"',
            'write `tokenizer = file("a/tokenizer.json")`',
            'file("a/tokenizer.json")',
        ),
        ("= bytes", '= "bytes"', "write `bytes` without quotes", "bytes"),
    ],
)
def test_a_string_where_a_call_belongs_is_answered_with_the_call(
    old: str, new: str, help: str, fixed: str | None
) -> None:
    problem = fault(edited((old, new)))
    assert problem.help == help
    assert (problem.fix.replacement if problem.fix else None) == fixed
