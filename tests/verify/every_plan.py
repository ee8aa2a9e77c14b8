"""Every plan that ships, verified: `python -m tests.verify.every_plan`, or `--only quickstart` for some.

Writes PLANS.md next to this file, except with `--only`. Exits with 1 if a plan differs from what one process
computes, or cannot be verified.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from planc.api import check_plan
from planc.verify.outcome import Item, Report, mesh_text
from planc.verify.twin import CannotShrink
from planc.verify.verify import LIMITS, verify
from planc.vocab import DType
from tests.plans import canonical_plans
from tests.verify.items import ITEMS

PAGE = Path(__file__).with_name("PLANS.md")
HEADER = "| plan | ran | layers | equal | worst parameter | error | seconds |"
_INTRODUCTION = """\
`planc verify` on every plan in `plans/`: the plan's own graph on real processes and gloo, for a small model
of the same kind, against one process. `make verify-all` writes this page.

- `ran`: the mesh, with at most two ranks of each dim, and the plan's own size where that is larger.
- `layers`: how many of the model's were run; those left out are like one that was.
- `equal`: items that agree, of {num_items}: the run itself, first weights, sample ids, loss, gradient norm,
  the gradient of every parameter, replicas, learning rates, new parameters, and a resume on fewer ranks.
- `worst parameter`: the one whose gradient is furthest off, with its relative error in float32; up to
  {limit:.0e} counts as equal."""


@dataclass(frozen=True, slots=True)
class Row:
    """One plan's report, or why there is none."""

    name: str
    report: Report | None
    reason: str
    seconds: float

    @property
    def ok(self) -> bool:
        return self.report is not None and self.report.ok

    def text(self) -> str:
        """The row as the page has it."""
        if self.report is None:
            return f"| {self.name} | **{self.reason}** | | | | | {self.seconds:.0f} |"
        report = self.report
        passed = sum(verdict.ok for verdict in report.verdicts)
        found = next((one for one in report.verdicts if one.item is Item.GRADIENTS), None)
        worst, error = (found.detail, f"{found.error:.0e}") if found else ("", "")
        failed = ", ".join(f"**{one.item}: {one.detail}**" for one in report.verdicts if not one.ok)
        equal = f"{passed} of {len(report.verdicts)}" + (f", {failed}" if failed else "")
        layers = f"{len(report.kept)} of {report.num_layers}"
        cells = (self.name, mesh_text(report), layers, equal, f"`{worst}`", error, f"{self.seconds:.0f}")
        return f"| {' | '.join(cells)} |"


def verified(path: Path) -> Row:
    """A plan's row."""
    began = time.monotonic()
    report, reason = None, ""
    found = check_plan(path)
    if found.bound is None or found.graph is None:
        reason = ", ".join(dict.fromkeys(one.code.code for one in found.diagnostics))
    else:
        try:
            report = verify(found.bound, found.graph, base=path.parent)
        except CannotShrink as error:
            reason = str(error)
    return Row(path.stem, report, reason, time.monotonic() - began)


def page(rows: Sequence[Row], *, today: str) -> str:
    """The page of these rows, measured `today` with the versions that are installed."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("transformers", "torch"))
    total = f"{sum(row.ok for row in rows)} of {len(rows)} plans compute what one process computes."
    introduction = _INTRODUCTION.format(num_items=len(ITEMS), limit=LIMITS[DType.FLOAT32])
    table = "\n".join((HEADER, "|---" * HEADER.count(" | ") + "|---|", *(row.text() for row in rows)))
    return f"# Plans\n\n{today}, {versions}. {total}\n\n{introduction}\n\n{table}\n"


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="tests.verify.every_plan", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="PLAN", help="verify these, and leave the page as it is")
    only = parser.parse_args(arguments).only
    chosen = [path for path in canonical_plans() if only is None or path.stem in only]
    rows = []
    for path in chosen:
        rows.append(verified(path))
        print(rows[-1].text(), flush=True)
    if only is None:
        PAGE.write_text(page(rows, today=date.today().isoformat()), encoding="utf-8")
    return int(not all(row.ok for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
