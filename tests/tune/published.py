"""Where published configurations rank among the plans of a search: `python -m tests.tune.published`.

tests/tune/published_best.csv has the configurations of four publications, each of which presents them as its
best, or as those that its authors chose:

    torchtitan   its benchmark on H100: a configuration for each of three models
    Llama 3      the three configurations of its pre-training
    nanotron     the best of a sweep, for each model and number of nodes
    Megatron     the table of SC21, with degrees by the heuristics of its paper

Twelve of them count: three of each publication, the first, the middle and the last in its order, the lower of
two middle ones. A number of a row ranks that row alone.

A configuration is ranked among everything that its software could have been set to, within what `planc tune`
tries: meshes, micro batches, recomputation, schedules. Plans that planc estimates not to fit are left out.
What a publication leaves open is what is fastest with the rest of it. Of more than `MOST` plans a sample is
scored, always the same. The places:

    faster       plans that are expected to be faster, of all
    surely       those of them that are faster by more than the intervals of the coefficients leave open
    of tune      plans that are expected to be faster, of those that `planc tune` scores. It leaves out plans
                 that a bound shows to be slower than ten others, and tries settings that the software lacks
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from math import sqrt
from pathlib import Path
from random import Random

from planc.devices.hardware import DEVICES, Device
from planc.estimate.efficiency import Efficiencies, efficiencies_of
from planc.estimate.estimate import estimate
from planc.estimate.expectation import expected_step
from planc.estimate.step_work import StepWork, step_work
from planc.hub.user_dirs import cache_dir
from planc.inventory.known import KnownModels
from planc.lower import draft_graph
from planc.plan.auto import own_rules
from planc.plan.bind import bind
from planc.plan.resolve import resolve
from planc.source import SourceFile
from planc.syntax.parse import parse
from planc.tune.base import base_of
from planc.tune.choice import Choice, Mesh, Recompute, Rules, Space
from planc.tune.score import Scored, Scorer
from planc.tune.search import Search
from tests.estimate.published import Row, sized_inventory
from tests.estimate.published_speed import plan_of
from tests.plans import PLANS

ROWS = Path(__file__).with_name("published_best.csv")
MOST = 180
_NEAR = 1.1
TOP = 0.1
_PLACES = ("faster", "surely", "of tune")
_DIMS = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
_STAGES = (1, 2, 4, 8)
_H100_96GB = replace(DEVICES["h100"], memory_bytes=95 * 2**30)


@dataclass(frozen=True, slots=True)
class Software:
    """What a publication's software could be set to, of what a search tries."""

    recompute: tuple[Recompute, ...] = tuple(Recompute)
    has_fsdp: bool = True
    """Without it ranks of data parallelism have whole replicas."""
    has_zero: bool = True
    """Whether replicas can share the optimizer."""
    has_cp: bool = True
    has_interleaving: bool = True
    needs_equal_stages: bool = False
    rules: Rules = Rules.SEQUENCE


SOFTWARE = {
    "torchtitan": Software(),
    "Llama 3": Software(),
    # Its sweep recomputes nothing.
    "nanotron": Software((Recompute.NONE,), has_fsdp=False, has_cp=False, has_interleaving=False),
    # Sequence parallelism and selective recomputation came with a later paper.
    "Megatron": Software(
        (Recompute.NONE, Recompute.FULL),
        has_fsdp=False,
        has_zero=False,
        has_cp=False,
        needs_equal_stages=True,
        rules=Rules.AUTO,
    ),
}


@dataclass(frozen=True, slots=True)
class Place:
    """How many are expected to be faster, of how many."""

    faster: int
    number: int

    @property
    def is_near_the_top(self) -> bool:
        return self.faster < max(1, TOP * self.number)

    @property
    def text(self) -> str:
        return f"{self.faster} of {self.number}"


@dataclass(frozen=True, slots=True)
class Rank:
    """A published configuration among the plans that fit."""

    row: Row
    own: Scored | None
    """None without a place, for which `reason` is why."""
    reason: str
    places: tuple[Place, ...]
    num_plans: int
    """Of which a sample is scored."""
    best: Scored
    """What `planc tune` puts first."""

    @property
    def text(self) -> str:
        row = self.row
        sizes = ", ".join(f"{name} {row[name]}" for name in _DIMS if row[name] != "1")
        settings = [row["micro_batch"] and f"micro_batch {row['micro_batch']}"]
        settings += [row["recompute"] and f"recompute {row['recompute']}"]
        name = f"{row['software']}, {row['model']} on {row['num_devices']} {row['device']}"
        lines = [f"{name}: {', '.join(filter(None, (sizes, *settings)))}"]
        best = f"{self.best.choice.mesh.text}, {self.best.choice.text}"
        if self.own is None:
            lines += [f"  {self.reason}", f"  tune: {best}"]
            return "\n".join(lines)
        places = "".join(f"{one.text:>14}" for one in self.places)
        gain = 100 * (self.own.score.seconds / self.best.score.seconds - 1)
        lines += [f"  {places}   of {self.num_plans:_} plans", f"  tune: {gain:.1f} % faster with {best}"]
        return "\n".join(lines)


@cache
def rows() -> tuple[Row, ...]:
    """Every published configuration."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def chosen() -> tuple[Row, ...]:
    """The twelve that count."""
    found: list[Row] = []
    for software in SOFTWARE:
        own = [row for row in rows() if row["software"] == software]
        found += [own[0], own[(len(own) - 1) // 2], own[-1]]
    return tuple(found)


def search_of(row: Row) -> Search:
    """The search for a configuration's model, devices and batch."""
    unset = dict.fromkeys(
        ("pp", "stages_per_rank", "dp_replicate", "cp", "tp", "local_batch", "accumulation"), "1"
    )
    plain = {
        **row,
        **unset,
        "dp_shard": row["num_devices"],
        "recompute": "none",
        "reshard": "default",
        "reduce_dtype": "float32",
        "sequence_parallel": "1",
    }
    file, problems = parse(SourceFile("row.plan", plan_of(plain)))
    assert file is not None, problems
    plan, problems = resolve(file)
    assert plan is not None, problems
    inventory = sized_inventory(row, is_plain=row["is_plain"] == "1")
    inventory = replace(inventory, max_positions=int(row["sequence"]))
    device = _device(row)
    tokens = int(row["sequence"]) * int(row["sequences"])
    # The runs compute the loss whole.
    base = replace(base_of(bind(plan, inventory), tokens=tokens), may_chunk=False, may_compile=False)
    models = KnownModels(PLANS, cache_dir(), found={plan.model.hf: inventory})
    node = device.devices_per_node
    assert node is not None, "every device has a node"
    num_devices = int(row["num_devices"])
    return Search(base, models, PLANS, Scorer(base, inventory, device, node), device, node, num_devices)


def _device(row: Row) -> Device:
    return _H100_96GB if row["device"] == "h100_96gb" else DEVICES[row["device"]]


def choices(row: Row, search: Search) -> Iterator[Choice]:
    """Everything that the software could have been set to."""
    software = SOFTWARE[row["software"]]
    known = search.space()
    rules = {tp: (Rules.NONE if tp == 1 else software.rules,) for tp in known.rules}
    for pp in range(1, min(search.num_devices, int(row["layers"])) + 1):
        if search.num_devices % pp:
            continue
        space = replace(
            known,
            num_devices=search.num_devices // pp,
            rules=rules,
            rotations=known.rotations if software.has_cp else (),
        )
        for mesh in space.meshes():
            if _could_share(mesh, software):
                yield from _on_mesh(replace(mesh, pp=pp), row, space)


def _could_share(mesh: Mesh, software: Software) -> bool:
    if software.has_fsdp or mesh.dp_shard == 1:
        return True
    return software.has_zero and mesh.dp_replicate == 1


def _on_mesh(mesh: Mesh, row: Row, space: Space) -> Iterator[Choice]:
    software = SOFTWARE[row["software"]]
    reshards = (True, False) if software.has_fsdp and mesh.dp_shard * mesh.cp > 1 else (False,)
    rotations = space.rotations if mesh.cp > 1 else ("",)
    sizes = space.micro_batches(mesh)
    for size, recompute, reshard, rotate in product(sizes, software.recompute, reshards, rotations):
        number = space.sequences(mesh) // size
        for stages in _stages(mesh.pp, number, int(row["layers"]), software):
            yield Choice(mesh, size, recompute, reshard, rotate, stages_per_rank=stages)


def _stages(pp: int, number: int, num_layers: int, software: Software) -> Iterator[int]:
    """Stages a rank, for a number of micro batches."""
    if not software.needs_equal_stages:
        tried = _STAGES if pp > 1 and software.has_interleaving else (1,)
        yield from (stages for stages in tried if pp * stages <= num_layers)
    elif num_layers % pp == 0:
        tried = tuple(one for one in range(1, num_layers // pp + 1) if num_layers // pp % one == 0)
        yield from tried if pp > 1 and number % pp == 0 else (1,)


def states(row: Row, choice: Choice) -> bool:
    """Whether a choice is what the publication states."""
    found = {name: getattr(choice.mesh, name) for name in _DIMS}
    found |= {"micro_batch": choice.micro_batch, "stages_per_rank": choice.stages_per_rank}
    found |= {"recompute": choice.recompute, "reshard": int(choice.reshard)}
    return all(row[name] in ("", str(value)) for name, value in found.items())


def rank_of(row: Row) -> Rank:
    """The rank of a published configuration."""
    search = search_of(row)
    possible = [*choices(row, search)]
    everything = [one for one in possible if _may_fit(one, search)]
    published = [one for one in possible if states(row, one)]
    own = min(_scored(published, search), key=_seconds, default=None)
    proposed = search.scored()
    if own is None:
        reason = "does not fit by the estimate" if published else "is not among what is tried"
        return Rank(row, None, reason, (), len(everything), proposed[0])
    sample = everything if len(everything) <= MOST else Random(0).sample(everything, MOST)
    faster, number = _faster(sample, _seconds(own), search)
    ends = _seconds_at_ends(own.choice, search)
    surely = sum(is_surely_faster(_seconds_at_ends(one.choice, search), ends) for one in faster)
    places = (
        Place(len(faster), number),
        Place(surely, number),
        Place(sum(_seconds(one) < _seconds(own) for one in proposed), len(proposed)),
    )
    return Rank(row, own, "", places, len(everything), proposed[0])


def _seconds(one: Scored) -> float:
    return one.score.seconds


def _faster(tried: Iterable[Choice], seconds: float, search: Search) -> tuple[list[Scored], int]:
    """The choices that fit and take less time, and how many fit.

    A pipeline is not estimated stage by stage where the mesh without it shows that it is slower by far; it
    then fits if the layers of its first rank do.
    """
    pipelines = search.pipelines()
    found: list[Scored] = []
    number = 0
    for choice in tried:
        if choice.mesh.pp > 1:
            least_seconds, least_bytes = pipelines.bound(choice)
            if least_bytes > search.limit or least_seconds > _NEAR * seconds:
                number += least_bytes <= search.limit
                continue
        for one in _scored([choice], search):
            number += 1
            found += [one] if _seconds(one) < seconds else []
    return found, number


def _may_fit(choice: Choice, search: Search) -> bool:
    parameters = search.scorer.inventory.num_parameters / choice.mesh.num_shards
    return search.base.state_bytes * parameters <= search.limit


def _scored(tried: Iterable[Choice], search: Search) -> Iterator[Scored]:
    """Those that fit."""
    for choice in tried:
        score = search.score(choice)
        if score.peak_bytes <= search.limit:
            yield Scored(choice, score)


def _seconds_at_ends(choice: Choice, search: Search) -> tuple[float, ...]:
    """The expected step, then that with each coefficient at either end of its interval."""
    known = efficiencies_of(search.device.name)
    work = _work(choice, search)

    def seconds(values: Efficiencies) -> float:
        return expected_step(work, search.device, values).step_seconds

    ends = [
        seconds(replace(known, **{one.name: replace(value, expected=end)}))
        for one in fields(known)
        for value in (getattr(known, one.name),)
        for end in (value.low, value.high)
    ]
    return seconds(known), *ends


def is_surely_faster(choice: tuple[float, ...], own: tuple[float, ...]) -> bool:
    """Whether a choice is faster by more than every coefficient's interval leaves open.

    Both plans run on the same machine, so a coefficient that is off is off for both.
    """
    expected, *gains = (first - second for first, second in zip(own, choice, strict=True))
    ends = zip(gains[::2], gains[1::2], strict=True)
    return expected > sqrt(sum(max(0.0, expected - low, expected - high) ** 2 for low, high in ends))


def _work(choice: Choice, search: Search) -> StepWork:
    inventory = search.scorer.inventory
    file, problems = parse(SourceFile("choice.plan", search.text(choice)))
    assert file is not None, problems
    plan, problems = resolve(file)
    assert plan is not None, problems
    graph = draft_graph(bind(plan, inventory, own_rules(inventory)))
    return step_work(graph, inventory, estimate(graph, inventory))


def report(configurations: Iterable[Row]) -> Iterator[str]:
    """The places of each, and how many are within the first tenth."""
    found = []
    yield f"  {''.join(f'{name:>14}' for name in _PLACES)}"
    for row in configurations:
        found.append(rank_of(row))
        yield found[-1].text
    ranked = [one.places for one in found if one.places]
    texts = [
        f"{name} {sum(places[index].is_near_the_top for places in ranked)} of {len(found)}"
        for index, name in enumerate(_PLACES)
    ]
    yield f"within the first {100 * TOP:.0f} %: {', '.join(texts)}"


if __name__ == "__main__":
    for line in report([rows()[int(index)] for index in sys.argv[1:]] or chosen()):
        print(line, flush=True)
