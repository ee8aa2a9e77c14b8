"""Every launch shape against one process, as two tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.dist.pool import RankError, start_server
from tests.parity.cases import CASES, Case, make_workspace
from tests.parity.compare import TOLERANCE, Row, parity
from tests.parity.reference import Training, train_reference
from tests.parity.resume import TOLERANCE as RESUME_TOLERANCE
from tests.parity.resume import ResumeRow, pairs, resume_rows


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0 if every row passes. An argument keeps the rows whose name contains it."""
    if len(arguments) > 1:
        print("give one name at most", file=sys.stderr)
        return 2
    wanted = arguments[0] if arguments else ""
    if not any(wanted in case.name for case in CASES):
        print(
            f"no row is called {wanted!r}; there are {', '.join(case.name for case in CASES)}",
            file=sys.stderr,
        )
        return 2
    console = Console(width=None if sys.stdout.isatty() else 160)
    began = time.monotonic()
    start_server()
    with TemporaryDirectory(prefix="planc-parity-") as folder:
        workspace = make_workspace(Path(folder) / "workspace")
        references: dict[str, Training] = {}
        failed = _parity_table(console, wanted, workspace=workspace, references=references)
        failed += _resume_table(console, wanted, workspace=workspace, references=references)
    seconds = time.monotonic() - began
    console.print(f"\n{failed or 'no'} row{'s' if failed != 1 else ''} failed, {seconds:.0f} s")
    return 1 if failed else 0


def _reference(case: Case, *, workspace: Path, references: dict[str, Training]) -> Training:
    if case.model not in references:
        references[case.model] = train_reference(case.model, workspace=workspace)
    return references[case.model]


def _parity_table(console: Console, wanted: str, *, workspace: Path, references: dict[str, Training]) -> int:
    """The number of rows that fail; each is shown as soon as it is known."""
    table = Table(title=f"Against one process: 6 steps, fp32, relative errors up to {TOLERANCE:.0e}")
    for heading in ("shape", "variant", "ranks", "loss", "grad norm", "gradient", "of", "ids", "weights", ""):
        table.add_column(heading)
    failed = 0
    with Live(table, console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for case in (case for case in CASES if wanted in case.name):
            try:
                reference = _reference(case, workspace=workspace, references=references)
                row = parity(case, workspace=workspace, reference=reference)
            except (RankError, TimeoutError, ValueError) as error:
                failed += 1
                table.add_row(case.shape, case.variant, str(case.world_size), _last_line(error), style="red")
            else:
                failed += bool(row.problems)
                table.add_row(*_cells(row), style="red" if row.problems else None)
            live.refresh()
    return failed


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.case.shape,
        row.case.variant,
        str(row.case.world_size),
        f"{row.loss_error:.1e}",
        f"{row.grad_norm_error:.1e}",
        f"{row.gradient_error:.1e}",
        row.worst_parameter.removeprefix("model."),
        "equal" if row.same_ids else "differ",
        "equal" if row.same_weights else "differ",
        "; ".join(row.problems) or "ok",
    )


def _resume_table(console: Console, wanted: str, *, workspace: Path, references: dict[str, Training]) -> int:
    """The number of rows that fail."""
    console.print()
    table = Table(title=f"Saved at step 3, resumed to step 6: the same bits, or {RESUME_TOLERANCE:.0e}")
    for heading in ("saved on", "resumed on", "loss", "weights", "of", "bits", "ids", ""):
        table.add_column(heading)
    failed = 0
    with Live(table, console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for saver, loaders in pairs():
            if wanted not in saver.name:
                continue
            try:
                reference = _reference(saver, workspace=workspace, references=references)
                rows = resume_rows(saver, loaders, workspace=workspace, reference=reference)
            except (RankError, TimeoutError, ValueError) as error:
                failed += 1
                table.add_row(saver.name, "", _last_line(error), style="red")
            else:
                failed += sum(bool(row.problems) for row in rows)
                for row in rows:
                    table.add_row(*_resume_cells(row), style="red" if row.problems else None)
            live.refresh()
    return failed


def _resume_cells(row: ResumeRow) -> tuple[str, ...]:
    return (
        row.saved_on.name,
        row.resumed_on.name,
        f"{row.loss_error:.1e}",
        f"{row.weight_error:.1e}",
        row.worst_parameter.removeprefix("model."),
        "equal" if row.same_bits else "differ",
        "equal" if row.same_ids else "differ",
        "; ".join(row.problems) or "ok",
    )


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
