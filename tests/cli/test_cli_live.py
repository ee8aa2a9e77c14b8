"""What a run shows of itself on a terminal, at the widths that people have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from planc.cli.running.live import LiveView, Losses, fit, sparkline, step_parts
from planc.cli.running.progress import save_times
from planc.runtime.observer import SaveTimes, SourceMetrics, StepMetrics
from tests.cli.terminal import at_terminal, plain

GOLDEN = Path(__file__).parent / "live.txt"
METRICS = StepMetrics(
    step=12_345,
    loss=2.3456,
    grad_norm=1.234,
    learning_rate=3e-4,
    tokens=1_048_576,
    labels=1_048_448,
    tokens_per_second=123_456.0,
    tokens_per_second_per_device=1_929.0,
    seconds=8.5,
    memory_bytes=64 * 2**30,
    tflops_per_second_per_device=412.0,
    mfu=0.417,
    phase_seconds={"data": 0.01, "forward": 2.5, "backward": 5.1, "optimizer": 0.5, "other": 0.02},
)
LOSSES = [2.3 + 8.0 * math.exp(-step / 1_000) + 0.05 * math.sin(step) for step in range(12_345)]


def view(*, waits: bool = False) -> LiveView:
    found = LiveView(Console(file=StringIO(), force_terminal=False))
    found.close()
    if waits:
        found.wait_for("weights.load: Reads this rank's own shards from safetensors.")
        return found
    found.starts(num_steps=100_000, last_step=100_000)
    for loss in LOSSES:
        found.stepped(replace(METRICS, loss=loss), time_left="")
    found.stepped(METRICS, time_left="207:12:34")
    return found


def test_every_width_shows_its_lines(match_golden: Callable[[Path, str], None]) -> None:
    cases = [(80, False), (100, False), (120, False), (200, False), (80, True), (30, False)]
    blocks = []
    for cells, is_ascii in cases:
        lines = view().lines(cells=cells, rows=24, is_ascii=is_ascii)
        assert all(len(line) <= cells for line in lines)
        assert lines[0].endswith("left 207:12:34")
        blocks.append("\n".join([f"{cells} columns{', ASCII' * is_ascii}", *lines]))
    match_golden(GOLDEN, "\n\n".join(blocks) + "\n")


def test_a_low_terminal_shows_one_line() -> None:
    assert len(view().lines(cells=100, rows=6)) == 1


def test_every_source_of_a_mixture_has_a_line_where_there_is_room() -> None:
    found = view()
    rare = SourceMetrics("rare", tokens=0, labels=0, loss=None, epoch=0.0)
    web = SourceMetrics("web", tokens=1_048_576, labels=1_048_448, loss=2.34561, epoch=1.23456)
    found.stepped(replace(METRICS, epoch=0.000456, sources=(rare, web)), time_left="")
    lines = found.lines(cells=100, rows=24)
    assert lines[1].startswith("loss 2.3456  grad_norm 1.234  lr 3.00e-04  epoch 0.000456")
    assert lines[4:] == [
        "  rare  no labels            0 labels          0 tokens  epoch 0",
        "  web   loss 2.3456  1_048_448 labels  1_048_576 tokens  epoch 1.23",
    ]
    found.stepped(replace(METRICS, sources=(web,) * 8), time_left="")
    assert found.lines(cells=100, rows=12)[4:] == ["8 sources: see metrics.jsonl"]
    assert len(found.lines(cells=100, rows=13)) == 12


@pytest.mark.parametrize("cells", [20, 80, 200])
def test_setup_shows_what_it_waits_for(cells: int) -> None:
    (line,) = view(waits=True).lines(cells=cells, rows=24)
    assert len(line) <= cells
    assert re.match(r". 0:00:00  weights", line)


def test_a_narrow_line_loses_the_least_important_first() -> None:
    parts = step_parts(METRICS, num_steps=100_000)
    assert fit(parts, cells=200) == (
        "step  12345/100000  loss 2.3456  grad_norm 1.234  lr 3.00e-04  123_456 tokens/s"
        "  412 TFLOP/s/device  mfu 41.7%  64.00 GiB process"
    )
    assert fit(parts, cells=60) == "step  12345/100000  loss 2.3456  123_456 tokens/s"
    assert fit(parts, cells=1) == "step  12345/100000"


def test_losses_of_any_run_fit_in_a_line() -> None:
    losses = Losses()
    for loss in (*LOSSES * 9, math.nan, math.inf):
        losses.add(loss)
    assert len(losses.values) < 240
    assert all(map(math.isfinite, losses.values))
    whole = sum(LOSSES) / len(LOSSES)
    assert sum(losses.values) / len(losses.values) == pytest.approx(whole, rel=0.02)


def test_a_line_of_losses_falls_as_they_do() -> None:
    assert sparkline([4.0, 3.0, 2.0, 1.0], cells=4) == "██▅▁"
    assert sparkline([1.0, 1.0], cells=9) == "▁▁"
    assert sparkline([], cells=9) == ""
    assert len(sparkline(LOSSES, cells=40)) == 40


@pytest.mark.parametrize("columns", [80, 100, 120, 200])
def test_a_terminal_keeps_the_last_lines(columns: int) -> None:
    script = (
        "from planc.cli.running.progress import RunDisplay\n"
        "from planc.runtime.run_directory.directory import RunDirectory\n"
        "from tests.cli.test_cli_live import METRICS\n"
        "import pathlib, tempfile\n"
        "from dataclasses import replace\n"
        "display = RunDisplay(RunDirectory(pathlib.Path(tempfile.mkdtemp())))\n"
        "display.preparing('weights.init: draws')\n"
        "display.started(first_step=1, num_steps=100_000)\n"
        "for step in range(1, 6):\n"
        "    display.stepped(replace(METRICS, step=step))\n"
        "display.noted('a note')\n"
        "display.close()\n"
        "print('after')\n"
    )
    shown = [
        line.rstrip() for line in re.split(r"[\r\n]+", plain(at_terminal(("-c", script), columns=columns)))
    ]
    assert all(len(line) <= columns for line in shown)
    assert shown.count("a note") == 1
    last, after = shown.index("after") - 4, shown.index("after")
    assert re.fullmatch(r"step +5/100000  ━*─+  left \d+:\d\d:\d\d", shown[last])
    assert shown[last + 1].startswith("loss 2.3456")
    assert "123_456 tokens/s" in shown[last + 2] and "backward 63%" in shown[after - 1]


def test_without_a_terminal_a_step_is_a_line(tmp_path: Path) -> None:
    from planc.cli.running.progress import RunDisplay
    from planc.runtime.run_directory.directory import RunDirectory

    stream = StringIO()
    display = RunDisplay(RunDirectory(tmp_path), stream=stream)
    display.preparing("weights.init: draws")
    display.started(first_step=12_345, num_steps=100_000)
    display.stepped(METRICS)
    display.close()
    assert re.fullmatch(
        r"step  12345/100000  loss 2\.3456  .*64\.00 GiB process  left \d+:\d\d:\d\d\n", stream.getvalue()
    )


def test_a_save_behind_training_says_what_training_waited_for() -> None:
    times = SaveTimes(9.81, 0.61, {"start": 0.004, "copies": 0.4, "memory": 0.2, "end": 2.9})
    waited = "in 9.81 s, of which training waited 3.50 s"
    assert save_times(times) == f" {waited}: 0.20 s for host memory, 0.40 s for copies, 2.90 s for its end"
    assert save_times(SaveTimes(9.81, 0.61, {"start": 0.001})).endswith(" training waited 0.00 s")
