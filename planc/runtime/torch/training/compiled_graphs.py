"""What torch.compile makes of a rank's modules: graphs, the breaks between them, and why it makes more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from planc.runtime.torch.private import graph_breaks, num_graphs, recompile_reasons
from planc.tables import plural


class CompiledGraphs:
    """Counts what this process compiles from now on."""

    def __init__(self, *, num_modules: int) -> None:
        self._modules = plural(num_modules, "module")
        self._graphs_before, self._num_breaks = num_graphs(), len(graph_breaks())
        self._num_reported = 0

    @property
    def num_graphs(self) -> int:
        return num_graphs() - self._graphs_before

    def report(self, where: str) -> Iterator[str]:
        """A line about graphs that are new since the last report, and one about each break between them.

        The first graphs are expected. More of them took time to compile, so their line has the reason.
        """
        num_new = self.num_graphs - self._num_reported
        if num_new and not self._num_reported:
            yield f"torch.compile made {plural(num_new, 'graph')} of {self._modules}"
        elif num_new:
            reasons = recompile_reasons()
            because = f": {reasons[-1]}" if reasons else ""
            yield f"{where}: torch.compile made {plural(num_new, 'more graph')}{because}"
        self._num_reported += num_new
        yield from self._new_breaks()

    def _new_breaks(self) -> Iterator[str]:
        """Layers break at the same lines: each line of code is reported once, with its count."""
        new = list(islice(graph_breaks(), self._num_breaks, None))
        self._num_breaks += len(new)
        counts = Counter(
            f"graph break at {one.user_stack[-1].filename}:{one.user_stack[-1].lineno}: "
            + one.reason.partition("\n")[0]
            for one in new
        )
        for text, count in counts.items():
            yield text if count == 1 else f"{text} ({count} times)"
