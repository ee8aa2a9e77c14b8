"""The rows as JSON, and the page that shows them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from tests.models.architectures import LEFT_OUT
from tests.models.judge import Cell, Row, Status
from tests.models.plans import COLUMNS, NUM_STEPS

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE / "MODELS.md"

_TITLE = "# Models"
_INTRODUCTION = """\
Every causal language model of transformers, tiny, through planc: the result of `planc check` for a plan, and
whether the plans that it accepts train as one process with transformers and torch alone does. `make models`
writes this page.

- `equal`: {num_steps} steps have the same loss, gradient norm, gradient of every parameter, new parameters
  and replicas, and the first step of each rank sends the collectives that its graph predicts. The number is
  the worst gradient's relative error in float32; up to 1e-5 counts as equal. What is above is tried again in
  float64, which tells rounding from a fault. In bfloat16 the limits follow from what its rounding does to
  transformers alone.
- `P412`: `planc check` rejects the plan; the reasons are below the table.
- `not loaded`: a run ends before its first step, naming weights that planc cannot convert.
- **DIFFERENT**, **FAILED**: a bug, of planc or of transformers. `unknown`: transformers and torch alone
  cannot train the model either, or not compile it.

The first column holds the loss against a forward of transformers with its own choice of attention, too.
`eager` and `ulysses` mean that the plan has `attention = eager`, or `rotate = ulysses`, since `check` refuses
what comes first, `sdpa` and `allgather`. `auto` is the model's own plan, or planc's for a model that has
none; `auto(solve)` and `auto(sequence_parallel = true)` are planc's for all of them. The compiled and the
recomputed column and those of 4 ranks without PP have `auto(solve)`; each layer is compiled by `aot_eager`,
without a graph break, or is recomputed as a whole.
TP 4, and TP 2 with FSDP2 over 2, are of a quarter of the architectures, drawn by a hash of the name; TP 4 is
of models with more heads. PP 2 with FSDP2 has one kind of unit inside layers, and none for the rest. EP is of
models with experts, over the ranks of FSDP2. EP 4, with two experts for each rank, and EP 2 with TP 2 are of
a quarter of them. EP 4 over the ranks of FSDP2 and TP 2 is of all of them."""


def read_rows(path: Path) -> dict[str, Row]:
    """The rows by model type; none without a file."""
    if not path.exists():
        return {}
    found = {}
    for model_type, one in json.loads(path.read_text(encoding="utf-8")).items():
        cells = {
            column: Cell(**{**cell, "status": Status(cell["status"]), "codes": tuple(cell["codes"])})
            for column, cell in one["cells"].items()
        }
        found[model_type] = Row(model_type, one["architecture"], cells)
    return found


def write_rows(rows: Mapping[str, Row], path: Path) -> None:
    """One architecture per line, so a diff shows which changed."""
    lines = (f"{json.dumps(model_type)}: {json.dumps(row.data())}" for model_type, row in rows.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def write_page(rows: Mapping[str, Row], *, date: str) -> None:
    """The page of these rows, measured at `date` with the versions that are installed."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("transformers", "torch"))
    sections = (
        f"{_TITLE}\n\n{date}, {versions}.\n\n{_INTRODUCTION.format(num_steps=NUM_STEPS)}",
        _table(rows.values(), totals=_totals(rows.values())),
        "## Why\n\n" + "\n".join(_reasons(rows.values())),
        "## Left out\n\n" + "\n".join(_left_out()),
    )
    PAGE.write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def _table(rows: Iterable[Row], *, totals: Iterable[str]) -> str:
    lines = [
        f"| model type | architecture | {' | '.join(COLUMNS.values())} |",
        f"|---|---|{'---|' * len(COLUMNS)}",
        f"| **equal** | | {' | '.join(totals)} |",
    ]
    for row in rows:
        cells = " | ".join(_shown(row.cells.get(column)) for column in COLUMNS)
        lines.append(f"| {row.model_type} | {row.architecture} | {cells} |")
    return "\n".join(lines)


def _totals(rows: Iterable[Row]) -> Iterator[str]:
    rows = tuple(rows)
    for column in COLUMNS:
        cells = [cell for row in rows if (cell := row.cells.get(column))]
        yield f"{sum(cell.status is Status.EQUAL for cell in cells)} of {len(cells)}"


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return ""
    match cell.status:
        case Status.EQUAL:
            error = "" if cell.error is None else f" {cell.error:.0e}"
            return f"equal{error} {cell.variant}".rstrip()
        case Status.REFUSED:
            return cell.codes[0]
        case Status.DIFFERENT | Status.FAILED:
            return f"**{cell.status.value}**"
        case Status.UNKNOWN | Status.NOT_LOADED:
            return cell.status.value


def _reasons(rows: Iterable[Row]) -> Iterator[str]:
    """Everything but equality: each reason with its rows and columns, the most frequent first."""
    found: dict[tuple[str, str], list[str]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for column, cell in row.cells.items():
            if cell.status is Status.EQUAL:
                continue
            key = (
                cell.codes[0] if cell.codes else cell.status.value,
                cell.detail.replace(row.architecture, "the model"),
            )
            found.setdefault(key, []).append(f"{row.model_type} ({column})")
            counts[key] += 1
    for key, _ in counts.most_common():
        name, detail = key
        yield f"- {name}: {detail.replace('|', ' ')}. {', '.join(_grouped(found[key]))}"


def _grouped(places: list[str]) -> list[str]:
    """`llama (one, fsdp)` of `llama (one)` and `llama (fsdp)`."""
    columns: dict[str, list[str]] = {}
    for place in places:
        name, _, column = place.rstrip(")").partition(" (")
        columns.setdefault(name, []).append(column)
    return [f"{name} ({', '.join(of)})" for name, of in columns.items()]


def _left_out() -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for model_type, reason in LEFT_OUT.items():
        reasons.setdefault(reason, []).append(model_type)
    for reason, names in reasons.items():
        yield f"- {reason}: {', '.join(names)}"
