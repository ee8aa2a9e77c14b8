"""Every view of a plan, with the figures that it wrote and the numbers that stand in its text."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planc.cli.main import main
from planc.cli.running.banner import banner
from planc.figures.figure import Figure
from planc.graph.graph import Graph
from planc.runtime.process import Launch

UNITS = (
    *(r"B\b", r"[KMGT]iB\b", "FLOP", "TFLOP", "FSDP unit", "fsdp unit", "collective", "module"),
    *("parameter", "rank", "token", "micro step", "step"),
)
NUMBER = re.compile(rf"(?<![\w.])[0-9][\d_,.]*(?:e[+-]?\d+)? (?:{'|'.join(UNITS)})(?:s\b)?(?:/\w+)*")
"""A number with a unit that figures have."""
COMMAS = re.compile(r"\d,\d{3}(?!\d)")
OTHERS = re.compile(
    r"over [\d_]+ ranks?"  # a group's size
    r"|of [\d_.]+ [KMGT]iB,"  # a device's memory
    r"|every [\d_]+ steps|(?:warmup|decay|decay_steps) = [\d_]+ steps"  # settings, as the plan writes them
    r"|, on [\d_]+(?: or [\d_]+)* ranks"  # other meshes, of an elastic plan
    r"|[\d_]+ step counters"
    r"|[\d_]+ modules? resharded over tp|[\d_]+ parameters? (?:in one model only|with another shape)"
    r"|of [\d_]+ parameters?"  # what a difference is of
)
"""Numbers with such a unit that are no figure of the plan."""


@dataclass(frozen=True, slots=True)
class View:
    """What a command printed, and the figures it wrote in doing so."""

    command: str
    text: str
    figures: tuple[tuple[Figure, str], ...]

    def unregistered(self) -> list[str]:
        """Numbers with units in the text that no figure wrote; what is not a plan's figure is left out."""
        written = {text for _, text in self.figures}
        plain = OTHERS.sub("", self.text)
        return [found for found in NUMBER.findall(plain) if found not in written] + COMMAS.findall(plain)


class Recorder:
    """Runs views, and notes each figure that becomes text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._found: dict[Path, tuple[Known, list[View]]] = {}
        self._seen: list[tuple[Figure, str]] = []
        written, exact = Figure.written, Figure.exact

        def record(figure: Figure, *, with_unit: bool) -> str:
            text = written(figure, with_unit=with_unit)
            self._seen.append((figure, text))
            return text

        def record_exact(figure: Figure) -> str:
            text: str = exact.__get__(figure)
            self._seen.append((figure, text))
            return text

        monkeypatch.setattr(Figure, "written", record)
        monkeypatch.setattr(Figure, "exact", property(record_exact))

    def command(self, *arguments: str) -> View:
        """A command that must find nothing wrong with its plan."""
        self._seen = []
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(arguments))
        assert code == 0, _text(err)
        return self._view(" ".join(arguments), _text(out))

    def banner(self, graph: Graph) -> View:
        """What a run prints before it runs."""
        self._seen = []
        launch = Launch(rank=0, world_size=graph.world_size)
        text = banner(graph, launch, device="cpu", run_folder=Path("runs/x"), overrides=())
        return self._view("run", text)

    def known(self, path: Path, *, of_graph: Callable[[Path], Graph]) -> tuple[Known, list[View]]:
        """The figures that the views of a plan print, and the views that print text; each plan once."""
        if path not in self._found:
            self._found[path] = known(path, self, of_graph=of_graph)
        return self._found[path]

    def _view(self, command: str, text: str) -> View:
        seen, self._seen = self._seen, []
        return View(command, text, tuple(seen))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


class Known:
    """The figures of a plan by name, and every disagreement among the views that were added."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[object, str]] = {}
        self.disagreements: list[str] = []

    def add(self, view: View) -> None:
        """Takes in a view of this plan alone."""
        for figure, _ in view.figures:
            self._add(figure.name, figure.value, view.command)

    def add_json(self, view: View) -> None:
        """Takes in every key of a document that is a figure's name."""
        for name, value in _named(json.loads(view.text)):
            if name in self.values:
                self._add(name, value, view.command)

    def _add(self, name: str, value: object, command: str) -> None:
        known, where = self.values.setdefault(name, (value, command))
        if known != value:
            self.disagreements.append(f"{name} is {known} in {where}, and {value} in {command}")

    def expected(self, name: str) -> object:
        """A figure's value; of one that no view printed by itself, the sum of those that it is made of."""
        if name in self.values:
            return self.values[name][0]
        parts = [value for other, (value, _) in self.values.items() if other.startswith(f"{name}.")]
        return sum(value for value in parts if isinstance(value, int))


def _named(document: Any) -> Iterator[tuple[str, object]]:
    """(key, number) for every number of a document; figures that have names of their own under these."""
    match document:
        case {"pp_rank": int(pp_rank), "num_parameters": int(parameters), **rest}:
            yield f"pp_rank_{pp_rank}.parameters_per_rank", parameters
            yield from ((f"pp_rank_{pp_rank}.{name}", value) for name, value in _named(rest))
        case {"pair_bytes": int(pairs), "modules": [str(first), *_]}:
            yield f"pair_bytes.{first}", pairs
        case dict():
            if isinstance(peak := document.get("peak"), dict):
                yield "peak_memory", peak["num_bytes"]
                yield "peak_phase", peak["phase"]
                yield from ((f"peak_memory.{one['name']}", one["num_bytes"]) for one in peak["parts"])
            for name, value in document.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield name, value
                else:
                    yield from _named(value)
        case list():
            for value in document:
                yield from _named(value)


SHOWN: Sequence[tuple[str, ...]] = (
    *(("check",), ("estimate",), ("show",)),
    *(("show", "--memory"), ("show", "--collectives"), ("show", "--mesh")),
)
"""The views that print figures, as text."""
AS_JSON: Sequence[tuple[str, ...]] = (
    *(("estimate",), ("show", "--memory"), ("show", "--collectives"), ("show", "--mesh")),
)


def known(path: Path, recorder: Recorder, *, of_graph: Callable[[Path], Graph]) -> tuple[Known, list[View]]:
    """The figures that the views of a plan print, and the views that print text."""
    views = [recorder.command(name, str(path), *options) for name, *options in SHOWN]
    views.append(recorder.banner(of_graph(path)))
    found = Known()
    for view in views:
        found.add(view)
    for name, *options in AS_JSON:
        found.add_json(recorder.command(name, str(path), *options, "--output-format", "json"))
    return found, views


def written_numbers(text: str, names: Mapping[str, str]) -> dict[str, int]:
    """Numbers in a text by the figure's name, each found by a pattern with one group."""
    found = {name: re.search(pattern, text) for name, pattern in names.items()}
    assert all(found.values()), f"{[name for name, one in found.items() if one is None]} not in {text}"
    return {name: int(one[1].replace("_", "")) for name, one in found.items() if one}
