"""Plans in which features meet, checked: `python -m tests.runs.checked [--random N] [--seed S]`.

Every two features meet in one that is accepted, if there is one, and N more plans are drawn. Each is checked
and, if it is accepted, compiled, verified, estimated and written out in full. A refusal is an answer; an
exception is not. Exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from planc.api import check_source
from planc.diagnostics import Severity
from planc.fmt.format import format_source
from planc.graph.graph import plan_hash
from planc.graph.verify import verify
from planc.show.resolved import resolved_text
from planc.source import SourceFile
from planc.tables import render_table
from tests.runs.plans import Row, plan_text, random_row, rows, world_size
from tests.runs.whole import Workspace

_DEVICE = "hardware {\n  gpu = h100\n}\n"


def outcome(row: Row, base: Path) -> str:
    """`accepted`, or the codes of the errors that refuse it. Raises what planc raises."""
    source = SourceFile("checked.plan", plan_text(row) + _DEVICE)
    checked = check_source(source, base=base, world_size=world_size(row))
    formatted, _ = format_source(source)
    errors = [one.code.code for one in checked.diagnostics if one.severity is Severity.ERROR]
    if errors:
        return " ".join(dict.fromkeys(errors))
    assert formatted is not None and checked.bound is not None and checked.draft is not None
    assert not tuple(verify(checked.draft.graph)), "the graph of an accepted plan is sound"
    assert checked.draft.estimate.memory.peak.num_bytes > 0
    assert checked.draft.demand is not None
    again = check_source(SourceFile("checked.plan", resolved_text(checked.bound)), base=base)
    assert again.ok and again.graph is not None, f"the resolved plan is refused: {again.diagnostics[0]}"
    assert plan_hash(again.graph) == plan_hash(checked.draft.graph), "the resolved plan means the same"
    return "accepted"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.runs.checked", description=__doc__)
    parser.add_argument("--random", type=int, default=1000, help="plans with values of all axes")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = Random(arguments.seed)
    counts: Counter[str] = Counter()

    def accepts(row: Row) -> bool:
        try:
            found = outcome(row, workspace.folder)
        except Exception as error:
            found = "broken"
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(f"BROKEN {', '.join(row.values())}: {type(error).__name__}: {error}")
            print(f"  {place.filename.partition('planc/')[2]}:{place.lineno}", flush=True)
        counts[found] += 1
        return found == "accepted"

    with TemporaryDirectory(prefix="checked-") as folder:
        workspace = Workspace(Path(folder) / "workspace", Path("plans/models"))
        num_pairs = sum(num_new for _, num_new in rows(accepts, seed=arguments.seed))
        for _ in range(arguments.random):
            accepts(random_row(draw))
    print(render_table([(code, str(number)) for code, number in counts.most_common(30)]))
    accepted, broken = counts["accepted"], counts["broken"]
    refused = counts.total() - accepted - broken
    print(f"{counts.total()} plans, in which {num_pairs} pairs of features meet: ", end="")
    print(f"{accepted} accepted, {refused} refused, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
