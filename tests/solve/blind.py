"""Rules that planc finds against each model's own: `python -m tests.solve.blind`.

For every tiny model that has a tensor-parallel plan of its own: what `auto(solve)` leaves on a rank and
sends, next to `auto`. planc shards what it can, and may send more than a plan that leaves modules whole. Then
its rules with those modules whole must leave no more and send no more than the model's own.
Exits with 1 if any do not. A run over all models writes BLIND.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from planc.api import check_source
from planc.diagnostics import Severity
from planc.estimate.estimate import estimate
from planc.inventory.load import InventoryError, save_inventory
from planc.source import SourceFile
from planc.vocab import MeshDim
from tests.models.architectures import architectures
from tests.models.plans import Variant, plan_with_rules
from tests.models.tiny import tiny_config

PAGE = Path(__file__).parent / "BLIND.md"
_INTRODUCTION = """\
# Rules that planc finds, next to the models' own

transformers {transformers}, torch {torch}. `python -m tests.solve.blind` writes this page; with `--only` and
names it prints rows.

Every causal language model of transformers that has a tensor-parallel plan, tiny, on 2 ranks: `auto`, which
takes that plan, and `auto(solve)`, which takes from it only how parameters are sharded that belong to no
layer, such as stacked experts. *parameters* are those of one rank, and *sent* are the bytes that it sends
over tp in a step, both by `planc estimate`.

- **better**: planc leaves no more on a rank and sends no more, and less of one of them.
- **shards more**: planc also shards modules that the model's plan leaves whole, and sends more for it: its
  search minimizes first the work and the weights that every rank repeats, then bytes. The last two columns
  are `auto(solve)` with a `replicate` rule for each of those modules. It leaves no more on a rank than the
  model's plan and sends no more.
- **WORSE**: none of these.
- **own plan rejected**, **both rejected**: `planc check` rejects the plan; the reasons are below the table.

{counts}.
"""
_COLUMNS = (
    "model type",
    "parameters",
    "own",
    "sent",
    "own",
    "verdict",
    "same modules whole: parameters",
    "sent",
)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one rank: parameters, bytes sent over tp in a step, and the modules that are sharded."""

    kept: int
    sent: int
    sharded: frozenset[str]

    def exceeds(self, other: Costs) -> bool:
        return self.kept > other.kept or self.sent > other.sent


@dataclass(frozen=True, slots=True)
class Rejection:
    """The first error about a plan."""

    code: str
    reason: str


Outcome = Costs | Rejection


@dataclass(frozen=True, slots=True)
class Row:
    """One model, by planc's rules and by its own; and by planc's with the same modules whole, if asked."""

    model: str
    found: Outcome
    own: Outcome
    same_whole: Outcome | None = None

    @property
    def verdict(self) -> str:
        if isinstance(self.own, Rejection):
            return "both rejected" if isinstance(self.found, Rejection) else "own plan rejected"
        if isinstance(self.found, Rejection):
            return "WORSE"
        if not self.found.exceeds(self.own):
            return "better" if self.own.exceeds(self.found) else "equal"
        is_fair = isinstance(self.same_whole, Costs) and not self.same_whole.exceeds(self.own)
        return "shards more" if is_fair and self.found.kept < self.own.kept else "WORSE"

    @property
    def cells(self) -> tuple[str, ...]:
        (kept, sent), (own_kept, own_sent) = _figures(self.found), _figures(self.own)
        return (self.model, kept, own_kept, sent, own_sent, self.verdict, *_figures(self.same_whole))


def _figures(one: Outcome | None) -> tuple[str, str]:
    match one:
        case Costs():
            return f"{one.kept:_}", f"{one.sent:_}"
        case Rejection():
            return one.code, one.code
        case None:
            return "", ""


def outcome(rules: str, *, model: str, base: Path) -> Outcome:
    """The costs of a plan with these rules, or why it is rejected even with eager attention."""
    for attention in ("sdpa", "eager"):
        text = plan_with_rules(rules, model=model, dtype="float32", variant=Variant(attention))
        checked = check_source(SourceFile(f"{model}.plan", text), base=base)
        if checked.graph is not None and checked.inventory is not None and checked.bound is not None:
            found = estimate(checked.graph, checked.inventory)
            over_tp = [one for one in found.collectives if MeshDim.TP in one.over]
            sharded = frozenset(fqn for fqn, one in checked.bound.styles.items() if one.parameters)
            return Costs(found.num_local_parameters, int(found.sent_bytes(over_tp)), sharded)
    error = next(one for one in checked.diagnostics if one.severity is Severity.ERROR)
    return Rejection(error.code.code, f"{error.code.summary}: {error.primary.text}")


def row(model: str, architecture: str, *, base: Path) -> Row | None:
    """The outcomes for a model; None for one without a plan of its own."""
    (base / model).mkdir()
    config = json.dumps(tiny_config(model, architecture))
    (base / model / "config.json").write_text(config, encoding="utf-8")
    try:
        save_inventory(base / model)
    except InventoryError:
        return None
    inventory = json.loads((base / model / "inventory.json").read_text(encoding="utf-8"))
    if not inventory["tp_plan"]:
        return None
    found, own = (outcome(rules, model=model, base=base) for rules in ("  auto(solve)", "  auto"))
    same_whole = None
    if isinstance(found, Costs) and isinstance(own, Costs) and found.exceeds(own):
        whole = (f'  "{fqn}" -> replicate' for fqn in sorted(found.sharded - own.sharded))
        same_whole = outcome("\n".join(("  auto(solve)", *whole)), model=model, base=base)
    return Row(model, found, own, same_whole)


def page(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of BLIND.md."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in counted(rows).items())
    versions = {name: version(name) for name in ("transformers", "torch")}
    yield _INTRODUCTION.format(**versions, counts=f"{len(rows)} models: {counts}")
    yield from _table(_COLUMNS, (one.cells for one in rows))
    yield "\n## Rejected\n"
    rejected = (
        (one.model, name, f"{of.code}: {of.reason}")
        for one in rows
        for name, of in (("`auto`", one.own), ("`auto(solve)`", one.found))
        if isinstance(of, Rejection)
    )
    yield from _table(("model type", "rules", "error"), rejected)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from (f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))


def counted(rows: Sequence[Row]) -> Counter[str]:
    return Counter(one.verdict for one in rows)


def _line(cells: Sequence[str]) -> str:
    """For the terminal."""
    return "".join(f"{cell:20}" for cell in cells)


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 if planc's rules are worse for any model."""
    parser = argparse.ArgumentParser(prog="tests.solve.blind", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="MODEL_TYPE", help="these models, without a page")
    options = parser.parse_args(arguments)
    known, rows = architectures(), list[Row]()
    print(_line(_COLUMNS))
    for model in options.only or known:
        with TemporaryDirectory(prefix="planc-blind-") as folder:
            one = row(model, known[model], base=Path(folder))
        if one is not None:
            rows.append(one)
            print(_line(one.cells), flush=True)
    if not options.only:
        PAGE.write_text("\n".join((*page(rows), "")), encoding="utf-8")
    counts = counted(rows)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return int("WORSE" in counts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
