"""How long an editor waits for the language server: `python -m tests.lsp.latency` prints a Markdown table.

Plans of 40, 100 and 1,000 lines over the inventory of an 8B model, through pygls's client, so pipes and the
editor's side are in every number. The time of a key stroke is from the change to the findings on it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lsprotocol import types

from tests.bench.long_plan import long_plan
from tests.lsp.editor import Editor, editing, uri_of

PLANS = Path(__file__).parents[2] / "plans"
PATH = PLANS / "latency.plan"
"""It is never written; the models that it names are beside it."""
SIZES = (40, 100, 1_000)
NUM_TIMES = 20
BUDGET_SECONDS = 0.1
"""From a key stroke to its findings, in a plan of 100 lines."""
HEADER = ("lines", "open", "key stroke", "broken by it", "completion", "hover of a key", "of a pattern")


def text_of(num_lines: int) -> str:
    """A sound plan of so many lines."""
    if num_lines >= 100:
        return long_plan(num_lines, model="llama-3.1-8b", num_layers=32)
    written = (PLANS / "llama-3.1-8b-8-gpus.plan").read_text(encoding="utf-8").splitlines()
    lines = [line for line in written if line and not line.startswith("#")]
    assert lines[-1] == "}", "the block of expectations is the last"
    more = [f"  world_size >= {number}" for number in range(num_lines - len(lines))]
    return "\n".join((*lines[:-1], *more, "}")) + "\n"


def measure(editor: Editor, num_lines: int) -> list[list[float]]:
    """Seconds of each column after `lines`; every column but the first has several."""
    text = text_of(num_lines)
    assert text.count("\n") == num_lines
    opening = _timed(lambda: editor.open(PATH, text))
    at = text.index("steps = ") + len("steps = ")
    sound = [f"{text[:at]}{1 + number % 9}{text[at:]}" for number in range(NUM_TIMES)]
    broken = [f'{one[:at]}"{one[at:]}' for one in sound]
    assert not [one for one in editor.type(PATH, sound[0]) if one.severity is types.DiagnosticSeverity.Error]
    keys = [_timed(lambda one=one: editor.type(PATH, one)) for one in (*sound[1:], text)]
    assert editor.type(PATH, broken[0]) != []
    faults = [_timed(lambda one=one: editor.type(PATH, one)) for one in broken[1:]]
    editor.type(PATH, text)
    document = types.TextDocumentIdentifier(uri_of(PATH))
    key, pattern = (_place(text, word) for word in ("micro_batch", '"model.layers.'))
    offered = types.CompletionParams(document, types.Position(pattern.line, pattern.character + 15))
    asked = [
        [_timed(lambda m=method, p=params: editor.ask(m, p)) for _ in range(NUM_TIMES)]
        for method, params in (
            ("completion", offered),
            ("hover", types.HoverParams(document, key)),
            ("hover", types.HoverParams(document, pattern)),
        )
    ]
    return [[opening], keys, faults, *asked]


def _place(text: str, word: str) -> types.Position:
    before = text[: text.index(word) + 1]
    return types.Position(before.count("\n"), len(before.rpartition("\n")[2]))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def row(num_lines: int, columns: Sequence[Sequence[float]]) -> str:
    """Medians in milliseconds, with the fastest and the slowest."""
    cells = [
        f"{1e3 * statistics.median(one):.0f}"
        + (f" [{1e3 * min(one):.0f}, {1e3 * max(one):.0f}]" if len(one) > 1 else "")
        for one in columns
    ]
    return f"| {' | '.join((f'{num_lines:_}', *cells))} |"


def main() -> int:
    """0 if a key stroke in 100 lines is within the budget."""
    print(f"Milliseconds, median [fastest, slowest] of {NUM_TIMES}.\n")
    print(f"| {' | '.join(HEADER)} |\n| {' | '.join('---' for _ in HEADER)} |")
    seconds = 0.0
    for num_lines in SIZES:
        with editing() as editor:
            columns = measure(editor, num_lines)
        print(row(num_lines, columns), flush=True)
        if num_lines == 100:
            seconds = statistics.median(columns[1])
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    return int(seconds > BUDGET_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
