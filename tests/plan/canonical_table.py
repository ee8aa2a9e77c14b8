"""plans/README.md, from the plans themselves."""

from __future__ import annotations

from pathlib import Path

from planc.estimate.estimate import estimate
from planc.tables import format_bytes
from tests.plans import canonical_plans, checked

HEAD = """\
# Canonical plans

Each is checked, formatted, estimated and rehearsed by the tests. `planc check plans/NAME.plan` says what a
plan is in a few lines, `planc check --deep` rehearses it, `planc show --resolved` prints it whole.

Model folders hold a published `config.json` and the inventory that planc takes from it: no weights and no
tokenizer. `base/` and `presets/` hold what plans share. What a plan trains on, `data/*.txt`, is yours to put
there; `quickstart` and `launch-*` train on the Python standard library's sources, on CPUs.

The peak is the closed form's, of rank 0. This table is made by `make goldens`.

"""
COLUMNS = ("plan", "what it shows", "mesh", "sequence", "ranks", "peak")


def header(path: Path) -> str:
    """The comment at the top of a plan, as one line; "" where there is none."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def purpose(path: Path) -> str:
    """The header without the command that launches the plan."""
    text = header(path)
    for command in ("torchrun ", "planc run "):
        text = text.partition(command)[0]
    return text.strip()


def readme() -> str:
    """The whole file."""
    rows = (COLUMNS, ("---",) * len(COLUMNS), *(_row(path) for path in canonical_plans()))
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(path: Path) -> tuple[str, ...]:
    found = checked(path)
    assert found.graph is not None and found.inventory is not None and found.plan is not None
    mesh = ", ".join(f"{mesh_dim} {size}" for mesh_dim, size in found.graph.mesh if size > 1)
    return (
        f"[{path.stem}]({path.name})",
        purpose(path),
        mesh or "none",
        f"{found.plan.data.sequence_length:_}",
        f"{found.graph.world_size:_}",
        format_bytes(estimate(found.graph, found.inventory).memory.peak.num_bytes),
    )
