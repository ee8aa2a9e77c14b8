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


@pytest.mark.parametrize("topic", ["mesh.steps", "nothing.of.this", "mesh."])
def test_a_key_of_another_block_is_not(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", topic]) == 2
    assert f"unknown topic `{topic}`" in capsys.readouterr().err
