"""`planc tune` as a command."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import pytest

from planc.cli.main import main
from planc.devices.hardware import DEVICES
from tests.cli.terminal import at_terminal, plain
from tests.plans import PLANS

ON_FOUR = ("--gpus", "4", "--gpu", "h100")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").symlink_to(PLANS / "models")
    for name in ("base", "presets"):
        copytree(PLANS / name, tmp_path / name)
    text = (PLANS / "launch-fsdp4.plan").read_text(encoding="utf-8").partition("expect {")[0]
    (tmp_path / "x.plan").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_plan_is_searched_and_printed_as_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(folder / "x.plan"), "--gpus", "4", "--gpu", "h100", "--explain"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("x: 4 devices (h100), ")
    assert "dp_shard 4" in out and "NOT AMONG THEM" in out


@pytest.mark.slow
def test_a_model_is_searched_without_a_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", str(folder / "models" / "tiny-llama"), *ON_FOUR, "--tokens-per-step", "65536"]
    assert main([*command, "--sequence-length", "2048", "--output-format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tokens_per_step"] == 65536 and len(document["proposals"]) == 10
    first = document["proposals"][0]
    low, high = first["slow_tokens_per_second"], first["fast_tokens_per_second"]
    assert low < 4 * first["expected_tokens_per_second_per_device"] < high


@pytest.mark.slow
def test_a_margin_of_memory_stays_free(capsys: pytest.CaptureFixture[str]) -> None:
    """With the default of 10 %, the best plans take 70 to 90 %."""
    plan = str(PLANS / "llama-3.1-8b-8-gpus.plan")
    main(["tune", plan, "--gpus", "8", "--gpu", "h100", "--margin", "40", "--output-format", "json"])
    peaks = [one["peak_memory"] for one in json.loads(capsys.readouterr().out)["proposals"]]
    assert peaks and max(peaks) <= 0.6 * DEVICES["h100"].memory_bytes


@pytest.mark.slow
def test_the_picked_plan_is_written_and_passes_the_check(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = folder / "tuned.plan"
    assert main(["tune", str(folder / "x.plan"), *ON_FOUR, "--pick", "2", "-o", str(output)]) == 0
    assert f"wrote {output}, which passed `check --deep`" in capsys.readouterr().err
    assert main(["check", str(output)]) == 0
    assert main(["fmt", "--check", str(output)]) == 0


@pytest.mark.slow
def test_a_plan_of_a_model_alone_says_what_is_missing_and_what_comes_next(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = folder / "tuned.plan"
    command = ["tune", str(folder / "models" / "tiny-llama"), *ON_FOUR, "--tokens-per-step", "65536"]
    assert main([*command, "--sequence-length", "128", "-o", str(output)]) == 0
    said = capsys.readouterr().err
    assert "tiny-llama has no tokenizer.json: the plan takes bytes for tokens" in said
    assert "data are data/*.txt next to the plan" in said
    assert f"torchrun --standalone --nproc-per-node 4 -m planc.run {output}" in said


def test_a_reason_of_every_mesh_is_told_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GPT-2 has dropout, which the attention of a plain plan can't do."""
    command = ["tune", str(folder / "models" / "tiny-gpt2"), *ON_FOUR, "--tokens-per-step", "65536"]
    assert main([*command, "--sequence-length", "128", "--explain"]) == 1
    summary, explained = capsys.readouterr().out.split("NOT AMONG THEM")
    assert "none fits and passes the check: P724: the model draws random numbers in training" in summary
    assert "all of them" in explained and explained.count("P724") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", "4"), "x.plan has no `hardware` block: pass --gpu, such as --gpu h100"),
        ((*ON_FOUR, "--nodes", "3"), "4 devices are not whole nodes of 3"),
        (("--gpus", "12", "--gpu", "h100"), "12 devices are not whole nodes of 8: pass --nodes"),
        ((*ON_FOUR, "--margin", "100"), "`100` is not a percentage below 100"),
        ((*ON_FOUR, "--sequence-length", "8"), "--sequence-length is for a model"),
        ((*ON_FOUR, "--tokens-per-step", "1001"), "1_001 tokens per step are not whole sequences"),
        ((*ON_FOUR, "-o", "elsewhere/y.plan"), "its paths are relative to that directory"),
        (
            ("--gpus", "4", "--gpu", "device(memory = 80 GiB)"),
            "`hardware` lacks `peak_flops`, `memory_bandwidth`",
        ),
        (
            ("--gpus", "4", "--gpu", "A100-80GB"),
            "`A100-80GB` is not a device that planc knows; did you mean `a100`?",
        ),
    ],
)
def test_wrong_usage_is_named(
    arguments: tuple[str, ...], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", str(folder / "x.plan"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_model_alone_needs_a_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder / "models" / "tiny-llama")
    assert main(["tune", model, "--gpus", "4", "--tokens-per-step", "65536"]) == 2
    assert "pass --gpu, such as --gpu h100: a model alone names no device" in capsys.readouterr().err


@pytest.mark.slow
def test_the_name_of_a_device_is_taken_in_any_case(folder: Path) -> None:
    assert main(["tune", str(folder / "x.plan"), "--gpus", "4", "--gpu", "H100"]) == 0


@pytest.mark.parametrize(
    ("name", "help"),
    [
        ("a100_80gb", "did you mean `a100`?"),
        ("h100_sxm", "did you mean `h100`?"),
        ("device", "write `device(memory = 80 GiB)`"),
    ],
)
def test_another_name_of_a_device_is_answered_with_its_own(
    name: str, help: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", str(folder / "x.plan"), "--gpus", "4", "--gpu", name]) == 1
    assert help in capsys.readouterr().err


@pytest.mark.slow
def test_a_plan_that_new_wrote_can_be_searched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its `expect` has a size, which must keep its unit."""
    text = (folder / "x.plan").read_text(encoding="utf-8")
    (folder / "x.plan").write_text(f"{text}\nexpect {{\n  peak_memory < 60 GiB\n}}\n", encoding="utf-8")
    assert main(["tune", str(folder / "x.plan"), *ON_FOUR]) == 0
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_terminal_shows_what_a_search_waits_for(folder: Path) -> None:
    shown = plain(at_terminal(("tune", str(folder / "x.plan"), *ON_FOUR), columns=120))
    assert "searching plans for 4 x h100" in shown and "dp_shard 4" in shown


def test_a_search_without_a_plan_that_fits_exits_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = folder / "x.plan"
    plan.write_text(f"{plan.read_text(encoding='utf-8')}\nexpect {{\n  dp_size == 64\n}}\n")
    assert main(["tune", str(plan), *ON_FOUR]) == 1
    assert "none fits and passes the check" in capsys.readouterr().out


def test_a_number_of_devices_that_the_plan_does_not_expect_is_told_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = folder / "x.plan"
    plan.write_text(f"{plan.read_text(encoding='utf-8')}\nexpect {{\n  world_size == 64\n}}\n")
    assert main(["tune", str(plan), *ON_FOUR]) == 2
    assert "the plan expects `world_size == 64`, not 4: change that line" in capsys.readouterr().err


def test_tokens_that_the_plan_does_not_expect_are_told_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = folder / "x.plan"
    plan.write_text(f"{plan.read_text(encoding='utf-8')}\nexpect {{\n  tokens_per_step == 1024\n}}\n")
    assert main(["tune", str(plan), *ON_FOUR, "--tokens-per-step", "2048"]) == 2
    assert "the plan expects `tokens_per_step == 1024`, not 2_048" in capsys.readouterr().err
