"""`planc explain` of words that are neither codes nor blocks."""

from __future__ import annotations

import pytest

from planc.cli.main import main


@pytest.mark.parametrize(
    ("topic", "first_line"),
    [
        ("micro_batch", "data { ... }"),
        ("peak_memory", "expect { ... }"),
        ("wandb", "logging { ... }"),
        ("logging.wandb", "logging { ... }"),
        ("launch", "planc launch: print launch commands: torchrun, accelerate, Slurm, Kubernetes"),
    ],
)
def test_a_key_a_value_or_a_command_is_explained(
    topic: str, first_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", topic]) == 0
    assert capsys.readouterr().out.splitlines()[0] == first_line


@pytest.mark.parametrize(
    ("topic", "lines"),
    [
        ("packing", ["data", "  packing  attend, isolate, whole or none"]),
        ("isolate", ["data", "  packing  attend, isolate, whole or none"]),
        ("micro_batch", ["data", "  micro_batch  an integer"]),
        ("eval", ["data", '  eval "name" { ... }  The loss on held-out text']),
        ("data.sequences", ["data", '  eval "name" { ... }', "      sequences  an integer"]),
        ("cosine", ["optimizer", "  schedule  cosine, linear", "  cosine  Linear warm-up", "      warmup "]),
        ("peak_memory", ["expect", "  peak_memory  bytes"]),
    ],
)
def test_the_lines_of_the_word_come_first_then_where_the_rest_is(
    topic: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", topic]) == 0
    block, *starts = lines
    printed = capsys.readouterr().out.splitlines()
    for found, expected in zip(printed, (f"{block} {{ ... }}", "", *starts), strict=False):
        assert found.startswith(expected)
    assert f"`planc explain {block}` shows the whole block" in printed
    assert len(printed) < (16 if topic == "eval" else 12), "`eval` is a command, too, whose line follows"


@pytest.mark.parametrize(
    ("topic", "blocks"), [("tokens_per_step", ("train", "expect")), ("eager", ("model", "compile"))]
)
def test_a_word_of_several_blocks_is_explained_as_that_of_each(
    topic: str, blocks: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", topic]) == 0
    out = capsys.readouterr().out
    assert all(f"{block} {{ ... }}\n\n  " in out for block in blocks)
    assert topic in out


@pytest.mark.parametrize(
    ("purpose", "part"),
    [("pretrain", "new weights"), ("continue", "continued pretraining"), ("chats", "conversations")],
)
def test_the_purposes_of_new_are_explained(
    purpose: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", purpose]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{purpose}: a purpose of `planc new`\n") and part in out
    assert f"--for {purpose} " in out


@pytest.mark.parametrize("topic", ["mesh.steps", "nothing.of.this", "mesh."])
def test_a_key_of_another_block_is_not(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", topic]) == 2
    assert f"unknown topic `{topic}`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("topic", "word", "part"),
    [
        ("ring attention", "ring_attention", "rotate = ring"),
        ("ZeRO-2", "zero_2", "unit(reshard_after_forward = false)"),
        ("torch.compile", "torch_compile", "-> region"),
        ("Gradient Checkpointing", "gradient_checkpointing", "activation_checkpoint {"),
        ("LoRA", "lora", "kind = lora(rank = 16, alpha = 32)"),
        ("lr finder", "lr_finder", "--set optimizer.lr=VALUE"),
    ],
)
def test_a_term_of_the_field_is_found_as_people_write_it(
    topic: str, word: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", topic]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{word}: a word of other tools\n") and part in out


FIELD = (
    *("lora", "qlora", "pipeline", "pp", "ep", "moe", "zero", "zero1", "zero2", "zero3", "ddp", "hsdp"),
    *("bf16", "fp16", "fp8", "ema", "dpo", "rlhf", "freeze", "offload", "ulysses", "deepspeed", "megatron"),
    *("accelerate", "warmup", "packing", "sft", "muon", "mfu", "slurm", "gradient_checkpointing"),
    *("activation checkpointing", "flash_attention", "ring attention", "gradient accumulation"),
    *("chat template", "tied embeddings", "lr finder", "mixed precision"),
)


@pytest.mark.parametrize("topic", FIELD)
def test_the_words_of_the_field_are_known(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", topic]) == 0


def test_a_slip_in_a_word_of_the_field_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "qlroa"]) == 2
    assert "did you mean `qlora`?" in capsys.readouterr().err
