"""Where published configurations rank among the plans that a search scores: `python -m tests.tune.published`.

For each run, the search gets its model, device, number of devices, sequence length and tokens per step, and
the memory of the published device. The rank of its own mesh, micro batch, recomputation and reshard is the
number of scored plans that are expected to be faster. One that planc estimates not to fit has none.

The runs are the fastest of their model, device and number of devices in tests/estimate/published_speeds.csv,
of those with recomputation that is the same in all layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from planc.devices.hardware import DEVICES
from planc.inventory.known import KnownModels
from planc.inventory.schema import Inventory
from planc.plan.bind import bind
from planc.plan.resolve import resolve
from planc.source import SourceFile
from planc.syntax.parse import parse
from planc.tune.base import base_of
from planc.tune.choice import Choice, Mesh, Recompute, Rules
from planc.tune.score import Scorer
from planc.tune.search import Scored, Search
from planc.user_dirs import cache_dir
from tests.estimate.published import Row, sized_inventory
from tests.estimate.published_speed import plan_of, rows
from tests.plans import PLANS

TOP = 0.1
_H100_96GB = 95 * 2**30


@dataclass(frozen=True, slots=True)
class Rank:
    """A published run, and the plans that are expected to be faster than it, of all that were scored."""

    row: Row
    faster: int | None
    """None where planc estimates that it does not fit."""
    scored: int
    expected: float
    best: float
    best_name: str

    @property
    def is_near_the_top(self) -> bool:
        return self.faster is not None and self.faster < max(1, TOP * self.scored)

    @property
    def text(self) -> str:
        row = self.row
        ranks = int(row["dp_shard"]) * int(row["tp"])
        name = f"{row['model']} on {ranks} {row['device']}, {row['sequence']} x {row['local_batch']}"
        name += f", tp {row['tp']}, {row['recompute']}"
        if self.faster is None:
            return f"{name:<62} does not fit by the estimate, of {self.scored}"
        place = f"{self.faster + 1} of {self.scored}"
        gap = 100 * (self.best / self.expected - 1)
        return f"{name:<62} {place:>12}   best is {gap:4.1f} % faster: {self.best_name}"


def chosen() -> tuple[Row, ...]:
    """Twelve: torchtitan's, then those of llm-foundry on the most devices."""
    best: dict[tuple[str, ...], Row] = {}
    for row in rows():
        if row["recompute"] == "every_second" or row["compiled"] == "1" or row["trainer"] == "Megatron":
            continue
        if row["device"] == "a100_40gb" or int(row["dp_shard"]) * int(row["tp"]) < 8:
            continue
        key = row["model"], row["device"], str(int(row["dp_shard"]) * int(row["tp"]))
        if key not in best or float(row["tokens_per_second"]) > float(best[key]["tokens_per_second"]):
            best[key] = row

    def order(row: Row) -> tuple[bool, int]:
        return row["trainer"] != "torchtitan", -int(row["dp_shard"]) * int(row["tp"])

    return tuple(sorted(best.values(), key=order)[:12])


def rank_of(row: Row) -> Rank:
    """The rank of a published run among the plans that a search scores."""
    search = search_of(row)
    found = search.scored()
    own = search.score(_choice(row))
    if own.peak_bytes > search.limit:
        return Rank(row, None, len(found), 0.0, 0.0, "")
    best = found[0]
    faster = sum(one.score.seconds < own.seconds for one in found if not _is_same(one, row))
    speeds = 1 / own.seconds, 1 / best.score.seconds
    return Rank(row, faster, len(found), *speeds, f"{best.choice.mesh.text}, {best.choice.text}")


def _choice(row: Row) -> Choice:
    rules = Rules.SEQUENCE if row["tp"] != "1" else Rules.NONE
    mesh = Mesh(*(int(row[name]) for name in ("dp_replicate", "dp_shard", "cp", "tp")), rules)
    reshard = row["reshard"] != "never"
    return Choice(mesh, int(row["local_batch"]), Recompute(row["recompute"]), reshard, rotate="")


def search_of(row: Row) -> Search:
    file, problems = parse(SourceFile("row.plan", plan_of(row)))
    assert file is not None, problems
    plan, problems = resolve(file)
    assert plan is not None, problems
    inventory: Inventory = sized_inventory(row, is_plain=row["trainer"] != "torchtitan")
    inventory = replace(inventory, max_positions=int(row["sequence"]))
    device = DEVICES[row["device"]]
    if row["trainer"] == "torchtitan" and row["device"] == "h100":
        device = replace(device, memory_bytes=_H100_96GB)
    # The runs compute the loss whole, and their rules are not written for a search to keep.
    plain = replace(plan, tensor_parallel=None, mesh=replace(plan.mesh, tp=1))
    base = replace(base_of(bind(plain, inventory), tokens=None), may_chunk=False)
    models = KnownModels(PLANS, cache_dir(), found={plan.model.hf: inventory})
    tokens = plan.train.tokens_per_step
    assert tokens is not None, "plan_of writes it"
    base = replace(base, tokens_per_step=tokens)
    num_devices = plan.mesh.world_size
    node = device.devices_per_node or 8
    return Search(base, models, PLANS, Scorer(base, inventory, device, node), device, node, num_devices)


def _is_same(one: Scored, row: Row) -> bool:
    choice, mesh = one.choice, one.choice.mesh
    sizes = mesh.dp_replicate, mesh.dp_shard, mesh.cp, mesh.tp
    published = tuple(int(row[name]) for name in ("dp_replicate", "dp_shard", "cp", "tp"))
    return (
        sizes == published
        and choice.micro_batch == int(row["local_batch"])
        and choice.recompute is Recompute(row["recompute"])
        and choice.reshard == (row["reshard"] != "never")
    )


def report() -> Iterator[str]:
    """A line a run, and how many are near the top."""
    found = []
    for row in chosen():
        found.append(rank_of(row))
        yield found[-1].text
        sys.stdout.flush()
    number = sum(one.is_near_the_top for one in found)
    yield f"within the first {100 * TOP:.0f} %: {number} of {len(found)}"


if __name__ == "__main__":
    for line in report():
        print(line)
