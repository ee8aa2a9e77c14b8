"""Where published configurations rank among the plans that a search scores: `python -m tests.tune.published`.

For each run, the search gets its model, device, number of devices, sequence length and tokens per step, and
the memory of the published device. One that planc estimates not to fit has no place. The others have four:

    of plans     among all scored plans: one more than those that are expected to be faster
    no pp        among those without a pipeline: the runs had none, and llm-foundry has none to choose. Of
                 pipelines, the search scores only those that may be among the fastest
    by > 3 %     of the same, without those that are expected to be faster by less than `CLOSE`, which is the
                 least difference that the scores of estimates count as one
    of meshes    among meshes without pp, each with its fastest plan; the run's has the run's own settings

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
from tests.estimate.published_speed import CLOSE, plan_of, rows
from tests.plans import PLANS

TOP = 0.1
_PLACES = ("of plans", "no pp", "by > 3 %", "of meshes")
_H100_96GB = 95 * 2**30


@dataclass(frozen=True, slots=True)
class Place:
    """How many are expected to be faster, of how many."""

    faster: int
    number: int

    @property
    def is_near_the_top(self) -> bool:
        return self.faster < max(1, TOP * self.number)


@dataclass(frozen=True, slots=True)
class Rank:
    """A published run, and the plans that are expected to be faster than it, of all that were scored."""

    row: Row
    places: tuple[Place, ...]
    """None of them where planc estimates that it does not fit."""
    scored: int
    expected: float
    best: float
    best_name: str

    @property
    def text(self) -> str:
        row = self.row
        ranks = int(row["dp_shard"]) * int(row["tp"])
        name = f"{row['model']} on {ranks} {row['device']}, {row['sequence']} x {row['local_batch']}"
        name += f", tp {row['tp']}, {row['recompute']}"
        if not self.places:
            return f"{name:<62} does not fit by the estimate, of {self.scored}"
        places = "".join(f"{f'{one.faster + 1} of {one.number}':>12}" for one in self.places)
        gap = 100 * (self.best / self.expected - 1)
        return f"{name:<62}{places}   best is {gap:4.1f} % faster: {self.best_name}"


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
        return Rank(row, (), len(found), 0.0, 0.0, "")
    best = found[0]
    speeds = 1 / own.seconds, 1 / best.score.seconds
    name = f"{best.choice.mesh.text}, {best.choice.text}"
    return Rank(row, _places(row, own.seconds, found), len(found), *speeds, name)


def _places(row: Row, own: float, found: tuple[Scored, ...]) -> tuple[Place, ...]:
    """Those of `_PLACES`, for a run that is expected to take `own` seconds a step."""
    faster = [one for one in found if one.score.seconds < own and not _is_same(one, row)]
    faster_alike = [one for one in faster if one.choice.mesh.pp == 1]
    alike = [one for one in found if one.choice.mesh.pp == 1]
    # Rules of tp are settings, too.
    meshes = {one.choice.mesh.sizes for one in faster_alike} - {_choice(row).mesh.sizes}
    return (
        Place(len(faster), len(found)),
        Place(len(faster_alike), len(alike)),
        Place(sum(CLOSE * one.score.seconds < own for one in faster_alike), len(alike)),
        Place(len(meshes), len({one.choice.mesh.sizes for one in alike})),
    )


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
    yield f"{'':<62}{''.join(f'{name:>12}' for name in _PLACES)}"
    for row in chosen():
        found.append(rank_of(row))
        yield found[-1].text
        sys.stdout.flush()
    fitting = [one for one in found if one.places]
    texts = [
        f"{name} {sum(one.places[index].is_near_the_top for one in fitting)} of {len(found)}"
        for index, name in enumerate(_PLACES)
    ]
    yield f"within the first {100 * TOP:.0f} %: {', '.join(texts)}"


if __name__ == "__main__":
    for line in report():
        print(line)
