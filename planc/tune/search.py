"""The search: every mesh, then everything else on the best of them, and the checks on what is proposed.

Two bounds prune: the states of a mesh's shards, which no choice on it makes smaller, and the least time of a
choice, which no run of it can beat. Micro batches grow until one does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TypeVar

from planc.api import Checked, check_source
from planc.devices.hardware import FITS, Device
from planc.diagnostics import Severity
from planc.estimate.result import Estimate
from planc.estimate.step_work import step_work
from planc.inventory.known import KnownModels
from planc.plan.expectations import holds
from planc.record import record
from planc.show.times import Times, times_of
from planc.source import SourceFile
from planc.tables import format_bytes, format_seconds
from planc.tune.base import ROTATIONS, Base, plan_text, recurrent_layer, rules_of
from planc.tune.choice import Choice, Mesh, Recompute, Rules, Space, sharing_experts, sizes_of_tp
from planc.tune.pipelines import NONE_FITS, Pipelines, layer_work
from planc.tune.score import Score, Scored, Scorer
from planc.vocab import MeshDim

_WIDENED = 16
"""The choices around which the search looks at everything else."""
_SPARE = 2
"""Proposals that are checked beyond those that are wanted, since scores are near the exact ones."""
_MOST_CHECKED = 40
_MOST_DIMS = len(MeshDim)
MARGIN = 0.02 + 1 - FITS
"""The share of a device's memory that plans leave free: what `check` asks, and what rehearsals may add."""
UNTIMED = "the time of this model's steps is not modeled"
"""The note on models with code of their own where planc counts no work."""
_OF_A_SIZE = ("expect", "hardware")
_OF_A_MESH = (*_OF_A_SIZE, "elastic")
"""Blocks that would refuse a small mesh for another reason than its rules."""


@record
class Proposal:
    """A plan that passed the check, with its figures from the whole model."""

    choice: Choice
    text: str
    checked: Checked
    found: Estimate
    times: Times

    @property
    def seconds(self) -> float:
        assert self.times.expected is not None, "the search requires an expectation"
        return self.times.expected.step_seconds


AnyPlan = TypeVar("AnyPlan", Scored, Proposal)


@dataclass(slots=True)
class Search:
    """A search for one plan's model on a number of devices."""

    base: Base
    models: KnownModels
    folder: Path
    scorer: Scorer
    device: Device
    node: int
    num_devices: int
    num_wanted: int = 10
    margin: float = MARGIN
    """The share of the device's memory that plans leave free: the allocator does not hold all of the rest."""
    tie: float = 0.0
    """Plans that are slower by up to this share tie with the fastest: the mesh with the fewest dims wins."""
    notes: dict[Mesh, str] = field(default_factory=dict)
    """The reason, by mesh, that it is not among the best."""
    refused_rules: dict[str, str] = field(default_factory=dict)
    """The reason, by size of tp, way to compute attention over cp, or compilation, that it is not tried."""
    pipeline_notes: dict[int, str] = field(default_factory=dict)
    """The reason, by size of pp, that it is not among the best."""
    num_meshes: int = 0
    _rules: dict[tuple[int, Rules], str] = field(default_factory=dict)
    _space: Space | None = None
    _fits: set[Mesh] = field(default_factory=set)
    _least: dict[Mesh, float] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """Bytes that a plan may reserve."""
        return (1 - self.margin) * self.device.memory_bytes

    def proposals(self) -> tuple[Proposal, ...]:
        """The best plans, each sound, the fastest first, or the simplest of those that tie."""
        best = self._ranked(self.scored())
        proposals: list[Proposal] = []
        seen: set[str] = set()
        for one in best:
            text = self.text(one.choice)
            if len(proposals) == self.num_wanted + _SPARE or len(seen) == _MOST_CHECKED:
                break
            if text not in seen:
                seen.add(text)
                proposals.extend(self._checked(one.choice, text))
        kept = self._ranked(proposals)[: self.num_wanted]
        for proposal in kept:
            self.notes.pop(proposal.choice.mesh, None)
            self.pipeline_notes.pop(proposal.choice.mesh.pp, None)
        for one in best:
            if one.choice.mesh not in {proposal.choice.mesh for proposal in kept}:
                slower = f"slower: {format_seconds(one.score.seconds)} a step at best, with {one.choice.text}"
                self.notes.setdefault(one.choice.mesh, slower)
        for mesh, seconds in self._least.items():
            if mesh not in {proposal.choice.mesh for proposal in kept}:
                slower = f"slower: {format_seconds(seconds)} a step at least, and others take less"
                self.notes.setdefault(mesh, slower)
        return kept

    def scored(self) -> tuple[Scored, ...]:
        """Every choice that fits, of those that no bound rules out, the fastest first; not checked yet."""
        scored = self._first()
        scored.extend(self._around(scored))
        scored.extend(self._pipelined(scored))
        scored.extend(self._compiled(scored))
        return tuple(sorted(scored, key=lambda one: (*_place(one), one.score.peak_bytes)))

    def _ranked(self, plans: Sequence[AnyPlan]) -> tuple[AnyPlan, ...]:
        """The fastest first; of those that tie with it, the one whose mesh has the fewest dims."""
        fastest = min((one.seconds for one in plans), default=0.0)

        def place(one: AnyPlan) -> tuple[float, ...]:
            is_tied = one.seconds <= (1 + self.tie) * fastest
            return len(one.choice.mesh.sizes) if is_tied and self.tie else _MOST_DIMS, *_place(one)

        return tuple(sorted(plans, key=place))

    def text(self, choice: Choice) -> str:
        """A choice's whole plan."""
        rules = self._rules.get((choice.mesh.tp, choice.mesh.rules), "")
        return plan_text(self.base, choice, devices_per_node=self.node, rules=rules)

    def score(self, choice: Choice) -> Score:
        """A choice's memory and time, whether it fits or not."""
        return self.scorer.score(choice, self.text(replace(choice, micro_batch=1)))

    def _is_expected(self, choice: Choice) -> bool:
        """Whether the plan's expectations hold of what needs no estimate."""
        mesh = choice.mesh
        dp_size = mesh.dp_replicate * mesh.dp_shard
        sequences = self.base.tokens_per_step // self.base.sequence_length
        known = {
            "world_size": self.num_devices,
            "dp_size": dp_size,
            "gradient_accumulation": sequences // (dp_size * choice.micro_batch),
            "tokens_per_step": self.base.tokens_per_step,
            "sequences_per_step": sequences,
        }
        for expectation in self.base.expectations:
            if expectation.subject in known and not holds(expectation, known[expectation.subject]):
                if mesh.pp == 1:
                    value = f"{known[expectation.subject]:_}"
                    self.notes[mesh] = f"{expectation.subject} would be {value}, which breaks `expect`"
                return False
        return True

    def _first(self) -> list[Scored]:
        """On every mesh, the largest micro batch of each way to recompute that fits."""
        space = self.space()
        scored: list[Scored] = []
        for mesh in sorted(space.meshes(), key=lambda one: (one.tp, one.cp, -one.dp_shard)):
            self.num_meshes += 1
            states = self.base.state_bytes * self.scorer.inventory.num_parameters / mesh.num_shards
            if states > self.limit:
                self.notes[mesh] = f"parameters and optimizer alone are {format_bytes(round(states))} a rank"
                continue
            rotate = space.rotations[0] if mesh.cp > 1 else ""
            scored.extend([*self._fitting(mesh, space, rotate, self._tenth(scored))])
        return scored

    def _tenth(self, found: list[Scored]) -> float:
        """The time that a choice must not be bound to exceed."""
        times = sorted(one.score.seconds for one in found)
        enough = len(times) >= self.num_wanted
        return (1 + self.tie) * times[self.num_wanted - 1] if enough else float("inf")

    def _fitting(self, mesh: Mesh, space: Space, rotate: str, worst: float) -> Iterator[Scored]:
        """The choices on a mesh that fit, from the one that recomputes least."""
        most = space.micro_batches(mesh)[-1]
        for in_chunks, recompute in product((False, True)[: 1 + self.base.may_chunk], space.recompute):
            first = Choice(mesh, 1, recompute, reshard=True, rotate=rotate, in_chunks=in_chunks)
            found = [*self._growing(first, space, worst)]
            yield from found
            if recompute is Recompute.NONE and found and found[-1].choice.micro_batch == most:
                # Nothing that needs less memory is faster.
                return

    def _growing(self, first: Choice, space: Space, worst: float) -> Iterator[Scored]:
        """The choice with growing micro batches, until one does not fit.

        A step of one micro batch is tried all the same: FSDP then keeps no gradients between micro steps.
        """
        mesh, has_failed = first.mesh, False
        for size in space.micro_batches(mesh):
            choice = replace(first, micro_batch=size)
            if (has_failed and size != space.sequences(mesh)) or not self._is_expected(choice):
                continue
            score = self.score(choice)
            if score.peak_bytes > self.limit:
                has_failed = True
                if mesh not in self._fits:
                    self.notes[mesh] = f"needs {format_bytes(round(score.peak_bytes))} with {choice.text}"
                continue
            self._fits.add(mesh)
            self.notes.pop(mesh, None)
            if score.least_seconds > worst:
                # A larger micro batch gathers parameters less often.
                self._least[mesh] = min(score.least_seconds, self._least.get(mesh, score.least_seconds))
                continue
            yield Scored(choice, score)

    def _around(self, scored: list[Scored]) -> Iterator[Scored]:
        """Yield variants of the best choices: other rules, kept parameters, other attention over cp."""
        best = sorted(scored, key=lambda one: one.score.seconds)[:_WIDENED]
        space = self.space()
        for one in best:
            choice, mesh = one.choice, one.choice.mesh
            others = [replace(choice, reshard=False)] if mesh.dp_shard * mesh.cp > 1 else []
            for rules in space.rules.get(mesh.tp, ())[1:]:
                others.append(replace(choice, mesh=replace(mesh, rules=rules)))
            others.extend(
                replace(choice, rotate=rotate)
                for rotate in space.rotations
                if choice.rotate and rotate != choice.rotate
            )
            yield from self._fitting_of((*others, *self._sharing_experts(choice)))

    def _fitting_of(self, choices: Sequence[Choice]) -> Iterator[Scored]:
        scored = (Scored(choice, self.score(choice)) for choice in dict.fromkeys(choices))
        return (one for one in scored if one.score.peak_bytes <= self.limit)

    def _sharing_experts(self, choice: Choice) -> Iterator[Choice]:
        mesh = Mesh(1, 2, 1, choice.mesh.tp, Rules.EXPERTS)
        # A capacity is of whole sequences.
        may = choice.mesh.rules is Rules.SEQUENCE and not self.base.given_experts
        over_tp = (lambda: self._is_legal(mesh, "")) if may else None
        return sharing_experts(choice, self.scorer.inventory, over_tp=over_tp)

    def _compiled(self, scored: list[Scored]) -> Iterator[Scored]:
        """The best choices with compiled layers, and what fits only so: compiled code keeps less."""
        if not self.base.may_compile:
            return
        if layer := recurrent_layer(self.scorer.inventory):
            self.refused_rules["compile"] = f"`{layer}` has no attention: its code may loop over tokens"
            return
        seen: set[Choice] = set()
        for one in sorted(scored, key=lambda one: one.score.seconds)[:_WIDENED]:
            cp, rotate = (2 if one.choice.rotate else 1), one.choice.rotate
            mesh = Mesh(1, 2, cp, 1, Rules.NONE)
            is_whole = not one.choice.is_zero_bubble and one.choice.ep == 1
            if is_whole and self._is_legal(mesh, rotate, is_compiled=True):
                yield from self._keeping_most(replace(one.choice, is_compiled=True), seen)

    def _keeping_most(self, choice: Choice, seen: set[Choice]) -> Iterator[Scored]:
        """The first choice that fits, of this one and those that recompute less or have the loss whole."""
        ways = self.space().recompute
        for recompute, in_chunks in product(ways[: ways.index(choice.recompute) + 1], (False, True)):
            other = replace(choice, recompute=recompute, in_chunks=in_chunks)
            if other in seen or in_chunks > choice.in_chunks:
                continue
            seen.add(other)
            score = self.score(other)
            if score.peak_bytes <= self.limit:
                yield Scored(other, score)
                return

    def _pipelined(self, scored: list[Scored]) -> list[Scored]:
        """Plans with pipelines that may be among the best."""
        if not self._is_legal(Mesh(1, 1, 1, 1, Rules.NONE, pp=2), ""):
            return []
        pipelines = self.pipelines()
        found = pipelines.found(scored, self.num_wanted)
        self.num_meshes += pipelines.num_meshes
        best = sorted(found, key=lambda one: one.score.seconds)[:_WIDENED]
        deferring = {replace(one.choice, stages_per_rank=1, is_zero_bubble=True): None for one in best}
        sharing = [other for plan in best for other in self._sharing_experts(plan.choice)]
        return [*found, *self._fitting_of((*deferring, *sharing))]

    def pipelines(self) -> Pipelines:
        """The pipelines of this search."""
        return Pipelines(
            self.space(),
            layer_work(
                self.scorer.inventory,
                sequence_length=self.base.sequence_length,
                gradient_bytes=self.base.gradient_bytes,
                state_bytes=self.base.state_bytes,
            ),
            self.limit,
            self.base.may_chunk,
            self.score,
            self._is_expected,
            self.pipeline_notes,
        )

    def space(self) -> Space:
        """Return the choices left after the checks have judged sizes of tp and ways of cp."""
        self._space = self._space or self._judged()
        return self._space

    def _judged(self) -> Space:
        rules: dict[int, tuple[Rules, ...]] = {1: (Rules.NONE,)}
        for tp in sizes_of_tp(self.num_devices, self.node):
            wanted = (Rules.GIVEN,) if self.base.given_rules else (Rules.SEQUENCE, Rules.AUTO)
            legal = tuple(one for one in wanted if self._is_legal(Mesh(1, 2, 1, tp, one), ""))
            if legal:
                rules[tp] = legal
        rotations = tuple(one for one in ROTATIONS if self._is_legal(Mesh(1, 2, 2, 1, Rules.NONE), one))
        return Space(
            self.num_devices,
            self.node,
            self.base.sequence_length,
            self.base.sequences_together,
            self.base.tokens_per_step,
            rules,
            rotations if self.num_devices % 2 == 0 else (),
            tuple(way for way in Recompute if way is not Recompute.OFFLOAD or self.device.host_bandwidth),
        )

    def _is_legal(self, mesh: Mesh, rotate: str, *, is_compiled: bool = False) -> bool:
        """Whether the checks accept a size of tp or cp, a pipeline, or compiled layers with one of cp.

        `refused_rules` keeps why not.
        """
        tp, rules = mesh.tp, mesh.rules
        name = f"tp {tp}, {rules}" if tp > 1 else f"cp {mesh.cp}, {rotate}" if rotate else "pp"
        if is_compiled:
            name = f"compile, {rotate}" if rotate else "compile"
        if name not in self.refused_rules:
            ep = 2 if rules is Rules.EXPERTS else 1
            together = self.base.sequences_together
            choice = Choice(mesh, together, Recompute.NONE, True, rotate, is_compiled=is_compiled, ep=ep)
            without = _OF_A_MESH if mesh.pp == 1 else _OF_A_SIZE
            base = replace(
                self.base,
                tokens_per_step=2 * together * self.base.sequence_length,
                kept=tuple(one for one in self.base.kept if one[0] not in without),
            )
            text = plan_text(base, choice, devices_per_node=self.node)
            checked = check_source(SourceFile(self.base.name, text), base=self.folder, models=self.models)
            self.refused_rules[name] = _first_error(checked)
            # A refused plan may have found no rules at all.
            if checked.bound is not None and tp > 1 and not self.refused_rules[name]:
                self._rules[tp, rules] = rules_of(checked.bound)
        return not self.refused_rules[name]

    def _checked(self, choice: Choice, text: str) -> Iterator[Proposal]:
        """The choice as a proposal; nothing if the checks refuse it, with the reason in `notes`."""
        checked = check_source(SourceFile(self.base.name, text), base=self.folder, models=self.models)
        error = _first_error(checked)
        draft = checked.draft
        if error or draft is None:
            self.notes[choice.mesh] = error
            return
        estimated = draft.estimate
        if estimated.memory.peak.num_bytes > self.limit:
            self.notes[choice.mesh] = f"needs {format_bytes(estimated.memory.peak.num_bytes)}"
            return
        step = step_work(draft.graph, draft.bound.inventory, estimated)
        times = times_of(step, self.device, devices_per_node=self.node)
        if times.expected is None:
            self.notes[choice.mesh] = UNTIMED
            return
        yield Proposal(choice, text, checked, estimated, times)


def _first_error(checked: Checked) -> str:
    """`P402: ...` of the first error; empty for a sound plan."""
    errors = (diagnostic for diagnostic in checked.diagnostics if diagnostic.severity is Severity.ERROR)
    first = next(errors, None)
    return f"{first.code.code}: {first.code.summary}, {first.primary.text}" if first else ""


def _place(one: Scored | Proposal) -> tuple[float, int]:
    """The faster first; of those as fast, the one with fewer micro steps: each takes more than its work."""
    return float(f"{one.seconds:.4g}"), -one.choice.micro_batch


def reasons(search: Search) -> Mapping[str, str]:
    """Return the reasons against all others: by mesh, or by what the checks refuse."""
    refused = {name: error for name, error in search.refused_rules.items() if error}
    none = f"{NONE_FITS} and to meet `expect`" if search.base.expectations else NONE_FITS
    notes = {size: none if note == NONE_FITS else note for size, note in search.pipeline_notes.items()}
    pipelines = {f"pp {size}": note for size, note in sorted(notes.items())}
    return {**refused, **{f"{mesh.text}": note for mesh, note in search.notes.items()}, **pipelines}
