"""A run's progress on a terminal: a few lines, redrawn in place."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from planc.figures.times import (
    measured_memory,
    tflops_per_second_per_device,
    tokens_per_second,
    tokens_per_second_per_device,
)
from planc.record import record
from planc.runtime.files.run_files import METRICS_NAME
from planc.runtime.observer import StepMetrics
from planc.tables import plural, render_table

_REFRESHES_PER_SECOND = 4
_MIN_ROWS = 8
"""A lower terminal shows the first line only."""
_MAX_CELLS = 120
"""The width of the line of losses, at most."""
_BAR_CELLS = (4, 40)
_FULL, _EMPTY = ("━", "#"), ("─", "-")
_HEIGHTS = ("▁▂▃▄▅▆▇█", ".:-=+*#%")
_TURNS = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\")
"""Each with its replacement where the terminal's encoding lacks it."""


@record
class Part:
    """A figure of a line; a narrow terminal drops the smallest `weight` first."""

    text: str
    weight: int


def fit(parts: Sequence[Part], *, cells: int) -> str:
    """Join the parts to a line of at most `cells`, without the parts of least weight that do not fit."""
    kept = list(parts)
    while len(kept) > 1 and len("  ".join(part.text for part in kept)) > cells:
        kept.remove(min(kept, key=lambda part: part.weight))
    return "  ".join(part.text for part in kept)


def step_parts(metrics: StepMetrics, *, num_steps: int) -> tuple[Part, ...]:
    """`step 12/60`, `loss 2.3456` and so on, in display order."""
    return (
        Part(step_text(metrics.step, num_steps=num_steps), 7),
        *_loss_parts(metrics),
        *_rate_parts(metrics),
        *(Part(f"{name} {value:.4g}", 3) for name, value in metrics.custom.items()),
    )


def step_text(step: int, *, num_steps: int) -> str:
    return f"step {step:>{len(str(num_steps))}}/{num_steps}"


def _loss_parts(metrics: StepMetrics) -> tuple[Part, ...]:
    return (
        Part(_loss_text(metrics.loss if metrics.labels else None), 6),
        Part(f"grad_norm {metrics.grad_norm:.3f}", 4),
        Part(f"lr {metrics.learning_rate:.2e}", 2),
        *(() if metrics.epoch is None else (Part(f"epoch {metrics.epoch:.3g}", 3),)),
    )


def _loss_text(loss: float | None) -> str:
    return "no labels" if loss is None else f"loss {loss:.4f}"


def source_lines(metrics: StepMetrics) -> list[str]:
    """A line for each source of a mixture: `  web  loss 2.3456  998 labels  1_024 tokens  epoch 0.52`."""
    rows = [
        (
            source.label,
            _loss_text(source.loss),
            plural(source.labels, "label"),
            plural(source.tokens, "token"),
            f"epoch {source.epoch:.3g}",
        )
        for source in metrics.sources
    ]
    return render_table(rows, right=(2, 3), indent="  ").splitlines()


def _rate_parts(metrics: StepMetrics) -> Iterator[Part]:
    yield Part(tokens_per_second(metrics.tokens_per_second).text, 5)
    if (reached := metrics.tflops_per_second_per_device) is not None:
        yield Part(tflops_per_second_per_device(reached).text, 0)
    if metrics.mfu is not None:
        yield Part(f"mfu {metrics.mfu:.1%}", 3)
    memory = measured_memory(metrics.memory_bytes, kind=metrics.memory_kind)
    yield Part(f"{memory.text} {metrics.memory_kind}", 1)


def phase_parts(seconds: Mapping[str, float]) -> tuple[Part, ...]:
    """`backward 52%` and so on: shares of a step's time, those that round to 0 left out."""
    total = sum(seconds.values())
    shares = {phase: one / total for phase, one in seconds.items()} if total else {}
    # The largest shares stay longest.
    return tuple(
        Part(f"{phase} {share:.0%}", round(1e6 * share)) for phase, share in shares.items() if share >= 0.005
    )


@dataclass(slots=True)
class Losses:
    """A run's losses so far, each the mean of `stride` steps; at most twice as many as a line shows."""

    values: list[float] = field(default_factory=list)
    stride: int = 1
    _waiting: list[float] = field(default_factory=list)

    def add(self, loss: float) -> None:
        """One step's loss; NaN and infinity are left out, since they have no height."""
        if not math.isfinite(loss):
            return
        self._waiting.append(loss)
        if len(self._waiting) < self.stride:
            return
        self.values.append(_mean(self._waiting))
        self._waiting.clear()
        if len(self.values) == 2 * _MAX_CELLS:
            self.values = [_mean(pair) for pair in zip(self.values[::2], self.values[1::2], strict=True)]
            self.stride *= 2


def sparkline(values: Sequence[float], *, cells: int, heights: str = _HEIGHTS[0]) -> str:
    """At most `cells` columns from the lowest value up; the top tenth all have the most height.

    Otherwise the fall of a run's first steps would leave the rest flat.
    """
    if not values:
        return ""
    num_shown = min(cells, len(values))
    bounds = [index * len(values) // num_shown for index in range(num_shown + 1)]
    shown = [_mean(values[start:end]) for start, end in pairwise(bounds)]
    low, high = min(shown), sorted(shown)[9 * (num_shown - 1) // 10]
    span = high - low or 1.0
    most = len(heights) - 1
    return "".join(heights[min(round((one - low) / span * most), most)] for one in shown)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class LiveView:
    """The lines, and what they show. What else a run prints appears above them."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.waiting_for = ""
        self.since = time.monotonic()
        self.num_steps = self.last_step = 0
        self.metrics: StepMetrics | None = None
        self.time_left = ""
        self.losses = Losses()
        self._live = Live(self, console=console, refresh_per_second=_REFRESHES_PER_SECOND)
        self._live.start()

    def wait_for(self, what: str) -> None:
        """Show what the run waits for, and how long it has waited."""
        self.waiting_for, self.since = what, time.monotonic()

    def starts(self, *, num_steps: int, last_step: int) -> None:
        self.num_steps, self.last_step = num_steps, last_step

    def stepped(self, metrics: StepMetrics, *, time_left: str) -> None:
        self.metrics, self.time_left = metrics, time_left
        if metrics.labels:
            self.losses.add(metrics.loss)

    def close(self) -> None:
        if self.metrics is None:
            # Nothing to leave on the screen.
            self._live.transient = True
        self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = options.height or console.height
        for line in self.lines(cells=options.max_width, rows=rows, is_ascii=options.ascii_only):
            yield Text(line, no_wrap=True, overflow="crop")

    def lines(self, *, cells: int, rows: int, is_ascii: bool = False) -> list[str]:
        """The lines for a terminal of this size."""
        if self.metrics is None:
            return [self._wait_line(cells=cells, is_ascii=is_ascii)]
        lines = [
            self._step_line(self.metrics, cells=cells, is_ascii=is_ascii),
            self._loss_line(self.metrics, cells=cells, is_ascii=is_ascii),
            fit(self._rates(self.metrics), cells=cells),
            fit(phase_parts(self.metrics.phase_seconds), cells=cells),
        ]
        of_sources = [line[:cells] for line in source_lines(self.metrics)]
        if len(lines) + len(of_sources) >= rows:
            of_sources = [f"{plural(len(of_sources), 'source')}: see {METRICS_NAME}"[:cells]]
        lines += of_sources
        return [line for line in lines if line][: len(lines) if rows >= _MIN_ROWS else 1]

    def _wait_line(self, *, cells: int, is_ascii: bool) -> str:
        seconds = time.monotonic() - self.since
        turns = _TURNS[is_ascii]
        turn = turns[int(seconds * _REFRESHES_PER_SECOND) % len(turns)]
        return f"{turn} {clock(seconds)}  {self.waiting_for}"[:cells]

    def _step_line(self, metrics: StepMetrics, *, cells: int, is_ascii: bool) -> str:
        """The step, a bar, and the time left, which stays on a terminal of any width."""
        step, left = step_text(metrics.step, num_steps=self.num_steps), f"left {self.time_left}"
        least, most = _BAR_CELLS
        room = min(most, cells - len(step) - len(left) - 4)
        if room < least:
            return fit((Part(step, 0), Part(left, 1)), cells=cells)
        full = room * metrics.step // self.last_step
        return f"{step}  {_FULL[is_ascii] * full}{_EMPTY[is_ascii] * (room - full)}  {left}"

    def _loss_line(self, metrics: StepMetrics, *, cells: int, is_ascii: bool) -> str:
        text = fit(_loss_parts(metrics), cells=cells)
        room = min(_MAX_CELLS, cells - len(text) - 2)
        if room < _BAR_CELLS[0] or len(self.losses.values) < 2:
            return text
        return f"{text}  {sparkline(self.losses.values, cells=room, heights=_HEIGHTS[is_ascii])}"

    def _rates(self, metrics: StepMetrics) -> Sequence[Part]:
        whole, *others = _rate_parts(metrics)
        one = tokens_per_second_per_device(metrics.tokens_per_second_per_device)
        return (whole, Part(one.text, 4), *others)


def clock(seconds: float) -> str:
    """`0:12:34`."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
