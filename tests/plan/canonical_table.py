"""plans/README.md, from the plans themselves."""

from __future__ import annotations

from pathlib import Path

from planc.estimate.estimate import estimate
from planc.tables import format_bytes
from tests.plans import canonical_plans, checked

HEAD = """\
# Plans

The tests check, format, estimate and rehearse every plan. `planc check plans/NAME.plan` prints a plan's
summary, `planc check --deep` rehearses it, `planc show --resolved` prints all of its settings.

`models/` holds published `config.json` files and the inventories that planc takes from them, without weights
and tokenizers. `base/` and `presets/` hold what plans share. A plan can include files from its own directory
and below, so all plans share one directory, and this page groups them. Put your text into `data/*.txt`.

Peaks are closed-form estimates of rank 0. `make goldens` writes this page.
"""
GROUPS = {
    "Start here": "Trains on four CPU ranks, on the Python standard library's sources.",
    "Fine-tune": "From pretrained weights, on your own data.",
    "Pretrain": "One plan for each model, on the mesh that suits it.",
    "Published runs": "The meshes and batches of published torchtitan runs, as estimates are tested on.",
    "Launch shapes": "One model on every kind of mesh, on CPUs: each trains as one process does.",
}
"""The groups of plans by purpose, in order."""
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


def group(path: Path) -> str:
    """The purpose that a plan serves, by its name and what it imports."""
    if path.stem == "quickstart":
        return "Start here"
    if path.stem.startswith("launch-"):
        return "Launch shapes"
    text = path.read_text(encoding="utf-8")
    if "weights = pretrained" in text:
        return "Fine-tune"
    return "Published runs" if "presets/torchtitan.plan" in text else "Pretrain"


def readme() -> str:
    """The whole file."""
    grouped = {name: [path for path in canonical_plans() if group(path) == name] for name in GROUPS}
    return HEAD + "".join(_section(name, paths) for name, paths in grouped.items() if paths)


def _section(name: str, paths: list[Path]) -> str:
    rows = (COLUMNS, ("---",) * len(COLUMNS), *map(_row, paths))
    return f"\n## {name}\n\n{GROUPS[name]}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


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
