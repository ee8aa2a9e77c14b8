"""Rules that planc finds against each model's own: `python -m tests.solve.blind`.

For every tiny model that has a tensor-parallel plan of its own, `auto(solve)`, which does not read it, next
to `auto`: parameters on a rank, and bytes that it sends over tp in a step. Exits with 1 if what planc finds
keeps more parameters, or keeps as many and sends more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from planc.api import check_source
from planc.estimate.estimate import estimate
from planc.inventory.load import InventoryError, save_inventory
from planc.source import SourceFile
from planc.vocab import MeshDim
from tests.models.architectures import architectures
from tests.models.plans import Variant, plan_with_rules
from tests.models.tiny import tiny_config


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one rank: parameters, and bytes sent over tp in a step."""

    kept: int
    sent: int


def costs(rules: str, *, model: str, base: Path) -> Costs | str:
    """The costs of a plan with these rules, or the code of the finding that refuses it."""
    code = ""
    for attention in ("sdpa", "eager"):
        text = plan_with_rules(rules, model=model, dtype="float32", variant=Variant(attention))
        checked = check_source(SourceFile(f"{model}.plan", text), base=base)
        if checked.graph is not None and checked.inventory is not None:
            found = estimate(checked.graph, checked.inventory)
            over_tp = [one for one in found.collectives if MeshDim.TP in one.over]
            return Costs(found.num_local_parameters, int(found.sent_bytes(over_tp)))
        code = code or checked.diagnostics[0].code.code
    return code


def row(model: str, architecture: str, *, base: Path) -> tuple[Costs | str, Costs | str] | None:
    """The costs by `auto(solve)` and by `auto`; None for a model without a plan of its own."""
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
    return costs("  auto(solve)", model=model, base=base), costs("  auto", model=model, base=base)


def verdict(found: Costs | str, own: Costs | str) -> str:
    if isinstance(found, str):
        return "neither" if isinstance(own, str) else "WORSE"
    if isinstance(own, str):
        return "better: the own plan is refused"
    if found == own:
        return "equal"
    is_better = found.kept < own.kept or (found.kept == own.kept and found.sent < own.sent)
    return "better" if is_better else "WORSE"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.solve.blind", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="MODEL_TYPE", help="these models")
    options = parser.parse_args(arguments)
    known, counts = architectures(), dict[str, int]()
    print(f"{'model type':24}{'parameters':>12}{'own':>12}{'sent':>14}{'own':>14}  verdict")
    for model in options.only or known:
        with TemporaryDirectory(prefix="planc-blind-") as folder:
            both = row(model, known[model], base=Path(folder))
        if both is None:
            continue
        said = verdict(*both)
        counts[said] = counts.get(said, 0) + 1
        cells = [(f"{one.kept:_}", f"{one.sent:_}") if isinstance(one, Costs) else (one, one) for one in both]
        (kept, sent), (own_kept, own_sent) = cells
        print(f"{model:24}{kept:>12}{own_kept:>12}{sent:>14}{own_sent:>14}  {said}", flush=True)
    print(", ".join(f"{count} {said}" for said, count in counts.items()))
    return int("WORSE" in counts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
