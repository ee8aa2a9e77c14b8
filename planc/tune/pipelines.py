"""The pipelines that a search proposes: every mesh of fewer devices, a stage of the model on each.

A pipeline's ranks share the work of the same mesh without it, which costs as much to score for any depth. The
slowest rank's part of it, with the bubble and without messages, ranks all its pipelines, and the best are
estimated stage by stage.
`gpipe` is not tried: it takes the time of `one_f_one_b`, and has at least as many micro batches in flight.
Nor is `zero_bubble`, with which any rank may need the most memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise, product

from planc.inventory.products import products
from planc.inventory.schema import Inventory
from planc.pipelining.balance import balance
from planc.plan.stages import layers, stage_by_name, stage_of
from planc.record import record
from planc.tables import format_bytes, format_seconds
from planc.tune.choice import Choice, Mesh, Space
from planc.tune.score import Score, Scored

_STAGES = (1, 2, 4, 8)
"""Stages a rank that are tried."""
_MOST_BOUNDED, _MOST_SCORED = 100, 20
"""Meshes without the pipeline that are scored, and pipelines."""
_GATHERED_BYTES = 2
"""The least of a parameter that stays gathered."""
_NEAR = 1.1
"""The share of the limit that the peak of a plan may have that may fit with its loss in chunks."""
_KEPT = 0.95
"""The part of activations that layers keep, at least: the head keeps the rest."""


@record
class _Candidate:
    """A choice with the least that its step is expected to take, and its first rank's layers."""

    seconds: float
    choice: Choice
    num_bytes: float = 0.0

    @property
    def inner(self) -> Choice:
        """The same choice without its pipeline, on as many fewer devices."""
        return replace(self.choice, mesh=replace(self.choice.mesh, pp=1), stages_per_rank=1)


@record
class LayerWork:
    """FLOPs of layers for a token, and of the rest after them; parameters, and bytes of the gradient and of
    the states of one."""

    costs: tuple[int, ...]
    after: int
    num_parameters: int
    gradient_bytes: float
    state_bytes: float


@record
class _Split:
    """The slowest rank's share of the work, and the first rank's of the layers."""

    slowest: float
    first: float


def layer_work(
    inventory: Inventory, *, sequence_length: int, gradient_bytes: float, state_bytes: float
) -> LayerWork:
    """The work of a model with one list of layers."""
    index = stage_by_name([[name] for name in layers(inventory)])
    costs, after = [0] * len(index), 0
    for name, count in products(inventory, sequence_length):
        layer = stage_of(name, index)
        if layer is None:
            after += count
        else:
            costs[layer] += count
    return LayerWork(tuple(costs), after, inventory.num_parameters, gradient_bytes, state_bytes)


NONE_FITS = "with these tokens per step, no choice is estimated to fit"


@dataclass(slots=True)
class Pipelines:
    """The pipelines of a search."""

    space: Space
    work: LayerWork
    limit: float
    """Bytes that a plan may reserve."""
    may_chunk: bool
    score: Callable[[Choice], Score]
    is_expected: Callable[[Choice], bool]
    notes: dict[int, str] = field(default_factory=dict)
    """The reason, by size of pp, that no plan with it is faster."""
    num_meshes: int = 0
    _inner: dict[Choice, Score] = field(default_factory=dict)
    _kinds: dict[object, tuple[float, float]] = field(default_factory=dict)
    """The seconds and the bytes kept of a micro batch on ranks without data parallelism, by what decides
    them."""
    _splits: dict[tuple[int, int], _Split] = field(default_factory=dict)
    """Splits by size of pp, and stages a rank."""
    _needs: dict[int, str] = field(default_factory=dict)
    """The needs of plans that do not fit, by size of pp."""
    _bounds: dict[int, _Candidate] = field(default_factory=dict)
    """The fastest of those that a bound rules out, by size of pp."""

    def found(self, scored: list[Scored], num_wanted: int) -> list[Scored]:
        """The pipelines that fit and that may be among the fastest; `scored` are the plans without any."""
        times = sorted(one.score.seconds for one in scored)
        fitting: list[Scored] = []
        num_scored, ratios = 0, dict[int, float]()
        for candidate in self._likely(times, num_wanted):
            size = candidate.choice.mesh.pp
            if candidate.seconds > _worst(times, num_wanted) or num_scored == _MOST_SCORED:
                self._note_bound(candidate)
                continue
            if candidate.num_bytes * ratios.get(size, 1) > self.limit:
                continue
            num_scored += 1
            best = self._best(candidate.choice)
            ratio = best.score.peak_bytes / candidate.num_bytes if candidate.num_bytes else 1
            ratios[size] = min(ratio, ratios.get(size, ratio))
            if best.score.peak_bytes > self.limit:
                needed = f"needs {format_bytes(round(best.score.peak_bytes))} with {_text(best.choice)}"
                self._needs.setdefault(size, needed)
                continue
            fitting.append(best)
            times = sorted((*times, best.score.seconds))
            slower = f"slower: {format_seconds(best.score.seconds)} a step"
            self.notes.setdefault(size, f"{slower}, with {_text(best.choice)}")
        self._explain(_worst(times, num_wanted))
        return fitting

    def _explain(self, worst: float) -> None:
        """Note why sizes without a plan that fits have none: one that needs too much, or else the bound."""
        bounds = {size: self._bound_text(one, worst) for size, one in self._bounds.items()}
        for size in self._sizes():
            self.notes.setdefault(size, self._needs.get(size, bounds.get(size, NONE_FITS)))

    def _likely(self, times: list[float], num_wanted: int) -> list[_Candidate]:
        """Candidates by what the mesh without the pipeline takes; those that fit no device are left out."""
        worst, candidates, bounded = _worst(times, num_wanted), [], set[Choice]()
        for first in sorted(self._candidates(), key=lambda one: one.seconds):
            inner = first.inner
            if first.seconds > worst or len(bounded | {inner}) > _MOST_BOUNDED:
                self._note_bound(first)
                continue
            bounded.add(inner)
            score = self._scored(inner)
            num_bytes = self._layers_bytes(first.choice, score)
            if num_bytes <= self.limit:
                candidates.append(_Candidate(self._seconds(first.choice, score), first.choice, num_bytes))
        return sorted(candidates, key=lambda one: one.seconds)

    def _candidates(self) -> Iterator[_Candidate]:
        """Every choice with a pipeline that may fit, without the time of data parallelism."""
        for pp in self._sizes():
            for mesh in replace(self.space, num_devices=self.space.num_devices // pp).meshes():
                self.num_meshes += 1
                yield from self._on_mesh(replace(mesh, pp=pp))

    def _sizes(self) -> Iterator[int]:
        most = min(self.space.num_devices, len(self.work.costs))
        return (pp for pp in range(2, most + 1) if self.space.num_devices % pp == 0)

    def _on_mesh(self, mesh: Mesh) -> Iterator[_Candidate]:
        if self.work.state_bytes * self.work.num_parameters / mesh.num_shards > self.limit:
            return
        rotate = self.space.rotations[0] if mesh.cp > 1 else ""
        stages = [number for number in _STAGES if mesh.pp * number <= len(self.work.costs)]
        for size, recompute, reshard in product(
            self.space.micro_batches(mesh), self.space.recompute, (False, True)
        ):
            choice = Choice(mesh, size, recompute, reshard, rotate)
            is_sharded = mesh.dp_shard * mesh.cp > 1
            if (reshard and not is_sharded) or not self.is_expected(choice):
                continue
            fitting = [replace(choice, stages_per_rank=number) for number in stages]
            for one in (one for one in fitting if self._likely_bytes(one) <= self.limit):
                seconds, _ = self._of_kind(one)
                yield _Candidate(seconds * self._num_micro_batches(one) * self._share(one), one)

    def _of_kind(self, choice: Choice) -> tuple[float, float]:
        """Times of one micro batch, whatever its data-parallel ranks."""
        mesh = Mesh(1, 1, choice.mesh.cp, choice.mesh.tp, choice.mesh.rules)
        alone = replace(choice, mesh=mesh, reshard=False, stages_per_rank=1)
        if alone not in self._kinds:
            score = self.score(alone)
            seconds = (score.seconds - score.outside_seconds) / self._num_micro_batches(alone)
            self._kinds[alone] = seconds, score.kept_bytes
        return self._kinds[alone]

    def _scored(self, inner: Choice) -> Score:
        if inner not in self._inner:
            self._inner[inner] = self.score(inner)
        return self._inner[inner]

    def _num_micro_batches(self, choice: Choice) -> int:
        return self.space.sequences(choice.mesh) // choice.micro_batch

    def _share(self, choice: Choice) -> float:
        """Share of a step without stages: the slowest rank's part and the bubble, or one micro batch."""
        slowest = self._split(choice).slowest + self._bubble(choice)
        return max(slowest, 1 / self._num_micro_batches(choice))

    def _bubble(self, choice: Choice) -> float:
        """The bubble of equal stages, as a share of a step without a pipeline."""
        pp = choice.mesh.pp
        return (pp - 1) / pp / choice.stages_per_rank / self._num_micro_batches(choice)

    def _split(self, choice: Choice) -> _Split:
        pp, number = choice.mesh.pp, choice.stages_per_rank
        if (pp, number) not in self._splits:
            costs, after = self.work.costs, self.work.after
            sizes = balance(costs, num_stages=pp * number, last=after)
            ends = [0, *accumulate(sizes)]
            own = [sum(costs[start:end]) for start, end in pairwise(ends)]
            own[-1] += after
            slowest = max(sum(own[rank::pp]) for rank in range(pp)) / sum(own)
            self._splits[pp, number] = _Split(slowest, sum(sizes[::pp]) / len(costs))
        return self._splits[pp, number]

    def _in_flight(self, choice: Choice) -> float:
        """Micro batches in flight on the first rank, in whole passes through its layers."""
        pp, stages, number = choice.mesh.pp, choice.stages_per_rank, self._num_micro_batches(choice)
        if stages == 1:
            return min(number, pp)
        largest_round = -(-number // max(1, number // pp))
        return min(stages * number, (stages - 1) * largest_round + 2 * pp - 1) / stages

    def bound(self, choice: Choice) -> tuple[float, float]:
        """Seconds of a choice's step if messages took no time, and bytes of its first rank's layers.

        They follow from the same mesh without the pipeline, and cost as little to score.
        """
        score = self._scored(replace(choice, mesh=replace(choice.mesh, pp=1), stages_per_rank=1))
        return self._seconds(choice, score), self._layers_bytes(choice, score)

    def _seconds(self, choice: Choice, inner: Score) -> float:
        """The step, if messages took no time."""
        inside = inner.seconds - inner.outside_seconds
        return inside * self._share(choice) + inner.outside_seconds / choice.mesh.pp

    def _layers_bytes(self, choice: Choice, inner: Score) -> float:
        """Bytes of the first rank's layers, by those of the mesh without the pipeline."""
        others = _KEPT * inner.kept_bytes * (self._in_flight(choice) - 1)
        return self._split(choice).first * (inner.layers_bytes + others)

    def _likely_bytes(self, choice: Choice) -> float:
        """Bytes of the first rank: states, gradients, gathered parameters, activations in flight."""
        mesh, work, first = choice.mesh, self.work, self._split(choice).first
        _, kept = self._of_kind(replace(choice, micro_batch=1))
        kept *= _KEPT * choice.micro_batch * self._in_flight(choice)
        shards = mesh.dp_shard * mesh.cp
        a_parameter = work.state_bytes / shards
        # FSDP keeps whole gradients between micro batches.
        a_parameter += work.gradient_bytes if self._num_micro_batches(choice) > 1 else 0
        a_parameter += 0 if choice.reshard or shards == 1 else _GATHERED_BYTES
        return first * (a_parameter * work.num_parameters / mesh.tp + kept)

    def _best(self, choice: Choice) -> Scored:
        """The choice, or with its loss in chunks, if it fits so."""
        score = self.score(choice)
        if self.may_chunk and self.limit < score.peak_bytes <= _NEAR * self.limit:
            choice = replace(choice, in_chunks=True)
            score = self.score(choice)
        return Scored(choice, score)

    def _note_bound(self, one: _Candidate) -> None:
        size = one.choice.mesh.pp
        self._bounds[size] = min(one, self._bounds.get(size, one), key=lambda bound: bound.seconds)

    def _bound_text(self, one: _Candidate, worst: float) -> str:
        share = self._share(one.choice)
        bubble = 1 - self._split(one.choice).slowest / share
        kind = "slower" if one.seconds > worst else "not estimated, as others promise more"
        slower = f"{kind}: {format_seconds(one.seconds)} a step at least"
        return f"{slower}, a bubble of {100 * bubble:.0f} %, with {_text(one.choice)}"


def _worst(times: list[float], num_wanted: int) -> float:
    """The time that a choice must not exceed."""
    return times[num_wanted - 1] if len(times) >= num_wanted else float("inf")


def _text(choice: Choice) -> str:
    return f"{choice.mesh.text}, {choice.text}"
