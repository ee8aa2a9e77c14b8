"""The graphs that torch.compile makes of a rank's modules, the breaks between them, and recompilations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any

from planc.runtime.torch.private import graph_breaks, last_compilations, num_graphs
from planc.runtime.torch.run import Run
from planc.runtime.torch.training.fused_loss import FusedLoss
from planc.tables import plural

_NUMBERS = re.compile(r"^\d+/\d+: ")
"""`0/0: GLOBAL_STATE changed: grad_mode`: the numbers are of the code that did not fit."""


def compiled_parts(num_modules: int, *, has_loss: bool) -> tuple[str, ...]:
    """`3 modules` and `the loss`, as far as there are any."""
    modules = (plural(num_modules, "module"),) if num_modules or not has_loss else ()
    return (*modules, "the loss") if has_loss else modules


class CompiledGraphs:
    """Counts what this process compiles from now on; `loss` is the cross entropy, if it is compiled."""

    def __init__(self, *, num_modules: int, loss: FusedLoss | None = None) -> None:
        self.loss = loss
        self._compiled = " and ".join(compiled_parts(num_modules, has_loss=loss is not None))
        self._graphs_before, self._num_breaks = num_graphs(), len(graph_breaks())
        self._num_reported = 0
        self._last: Any = None
        self._new_reasons()

    @property
    def num_graphs(self) -> int:
        return num_graphs() - self._graphs_before

    def report(self, where: str) -> Iterator[str]:
        """A line about graphs that are new since the last report, and one about each break between them.

        The first graphs are expected. More of them took time to compile, so their line has the reason.
        """
        num_new, reasons = self.num_graphs - self._num_reported, self._new_reasons()
        if num_new and not self._num_reported:
            yield f"torch.compile made {plural(num_new, 'graph')} of {self._compiled}"
        elif num_new:
            because = f": {'; '.join(reasons)}" if reasons else ""
            yield f"{where}: torch.compile made {plural(num_new, 'more graph')}{because}"
        self._num_reported += num_new
        yield from self._new_breaks()

    def note(self, run: Run, where: str) -> None:
        """Report what torch.compile has made since the last report."""
        for text in self.report(where):
            run.observer.noted(text)

    def _new_reasons(self) -> tuple[str, ...]:
        """Return the reasons for compiling code again since the last call, each once."""
        # Only the last compilations are kept, so they can't be counted.
        found = list(takewhile(lambda one: one is not self._last, reversed(last_compilations())))
        self._last = found[0] if found else self._last
        lines = (_first_line(one.recompile_reason) for one in reversed(found) if one.recompile_reason)
        return tuple(dict.fromkeys(_NUMBERS.sub("", line) for line in lines))

    def _new_breaks(self) -> Iterator[str]:
        """Layers break at the same lines: each line of code is reported once, with its count."""
        new = list(islice(graph_breaks(), self._num_breaks, None))
        self._num_breaks += len(new)
        for text, count in Counter(map(_text, new)).items():
            yield text if count == 1 else f"{text} ({count} times)"


def _text(found: Any) -> str:
    """A graph break with its innermost line of code, and torch's reason."""
    places = (f" at {frame.filename}:{frame.lineno}" for frame in found.user_stack[-1:])
    return f"graph break{''.join(places)}: {_first_line(found.reason)}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0].strip()
