"""The memory and the time of a choice, by the estimate.

Layers that are equal cost the same, so a model with one kind of layer is estimated with three layers and with
four, and the rest follows: nothing that is counted for one layer depends on how many there are. Other models
are estimated as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace

from planc.devices.hardware import Device
from planc.estimate.bound import step_bound
from planc.estimate.efficiency import efficiencies_of
from planc.estimate.estimate import estimate
from planc.estimate.expectation import expected_step
from planc.estimate.step_work import step_work
from planc.inventory.schema import Inventory
from planc.lower import draft_graph
from planc.plan.auto import own_rules
from planc.plan.bind import BoundPlan, bind
from planc.plan.pipeline_schedule import Interleaved, OneFOneB, ZeroBubble
from planc.plan.resolve import resolve
from planc.record import record
from planc.solve.oracle import num_kinds, stand_in
from planc.source import SourceFile
from planc.syntax.parse import parse
from planc.tune.base import Base
from planc.tune.choice import Choice, Recompute
from planc.vocab import MeshDim

_OF_PARAMETERS = ("optimizer", "freeze", "adapter")
"""Blocks whose rules can make layers of one kind differ."""


@record
class Score:
    """Bytes at the peak, expected seconds of a step, and the least that any run takes."""

    peak_bytes: float
    kept_bytes: float
    """The part of the peak that is activations of one micro batch; in a pipeline, of those in flight."""
    seconds: float
    least_seconds: float
    outside_seconds: float
    """The part of the expected seconds that comes after all forwards and backwards."""
    layers_bytes: float
    """The part of the peak that grows with layers; 0 where it is not known, since layers differ."""


@record
class Scored:
    """A choice with its score; it fits."""

    choice: Choice
    score: Score

    @property
    def seconds(self) -> float:
        return self.score.seconds


@record
class _Depth:
    """An inventory with a number of layers."""

    inventory: Inventory
    num_layers: int


@dataclass(slots=True)
class Scorer:
    """Scores choices for one model and device; every fact of the model is computed once."""

    base: Base
    inventory: Inventory
    device: Device
    node: int
    _depths: tuple[_Depth, ...] = ()
    _whole: tuple[_Depth, ...] = ()
    _bound: dict[object, tuple[BoundPlan, ...]] = field(default_factory=dict)
    num_scored: int = 0

    def __post_init__(self) -> None:
        kept = (text for kind, text in self.base.kept if kind in _OF_PARAMETERS)
        patterns = "".join(re.findall(r'"[^"]*" ->', "".join((self.base.given_rules, *kept))))
        if num_kinds(self.inventory) == 1 and not re.search(r"\d", patterns):
            found = tuple(stand_in(self.inventory, num_alike=number) for number in (2, 3))
            self._depths = tuple(_Depth(one, len(one.layers())) for one in found)
        self._whole = (_Depth(self.inventory, len(self.inventory.layers())),)
        if len({depth.num_layers for depth in self._depths}) < 2:
            self._depths = self._whole

    def score(self, choice: Choice, text: str) -> Score:
        """The choice's figures; the text is its plan, or that of another mesh with the same dims."""
        self.num_scored += 1
        scores = [self._score(bound, choice) for bound in self._plans(choice, text)]
        if len(scores) == 1:
            return scores[0]
        first, second = self._depths
        factor = (len(self.inventory.layers()) - first.num_layers) / (second.num_layers - first.num_layers)

        def extended(few: float, more: float) -> float:
            return few + factor * (more - few)

        score = Score(*(extended(*(getattr(one, figure.name) for one in scores)) for figure in fields(Score)))
        each = (scores[1].peak_bytes - scores[0].peak_bytes) / (second.num_layers - first.num_layers)
        return replace(score, layers_bytes=each * len(self.inventory.layers()))

    def _score(self, bound: BoundPlan, choice: Choice) -> Score:
        varied = _varied(bound, choice)
        graph = draft_graph(varied)
        estimated = estimate(graph, bound.inventory)
        step = step_work(graph, bound.inventory, estimated)
        device = replace(self.device, devices_per_node=self.node)
        least = step_bound(step, device)
        assert least is not None, "the search requires a device with peaks"
        expected = expected_step(step, device, efficiencies_of(device.name))
        kept = next(part.num_bytes for part in estimated.memory.parts if part.name == "activations")
        outside = expected.replicas_seconds + expected.optimizer_seconds
        return Score(
            peak_bytes=estimated.memory.peak.num_bytes,
            kept_bytes=kept,
            seconds=expected.step_seconds,
            least_seconds=least.step_seconds,
            outside_seconds=outside,
            layers_bytes=0.0,
        )

    def _plans(self, choice: Choice, text: str) -> tuple[BoundPlan, ...]:
        """The choice's plan for every depth; sizes are put in later."""
        mesh = choice.mesh
        dims = mesh.dp_replicate > 1, mesh.dp_shard > 1, mesh.cp > 1, mesh.pp > 1
        key = mesh.rules, mesh.tp, dims, choice.rotate, choice.is_compiled, choice.ep
        if key not in self._bound:
            file, problems = parse(SourceFile(self.base.name, text))
            assert file is not None, problems
            plan, problems = resolve(file)
            assert plan is not None, problems
            # Expectations are for the check.
            plan = replace(plan, expectations=())
            # The search writes the rules that planc finds; `auto` here means the model's own.
            auto = own_rules(self.inventory)
            # Stages differ, and how many layers each has is not a matter of two depths.
            depths = self._depths if mesh.pp == 1 else self._whole
            self._bound[key] = tuple(bind(plan, depth.inventory, auto) for depth in depths)
        return self._bound[key]


def _varied(bound: BoundPlan, choice: Choice) -> BoundPlan:
    plan, mesh = bound.plan, choice.mesh
    sizes = {str(name): getattr(mesh, str(name)) for name in MeshDim}
    layers = bound.inventory.layers()
    recomputed = layers if choice.recompute is not Recompute.NONE else ()
    span = plan.span("model")
    units = tuple(
        replace(unit, unit=replace(unit.unit, reshard_after_forward=choice.reshard))
        if unit.fqns and unit.fqns[0] in layers
        else unit
        for unit in bound.units
    )
    train = replace(plan.train, loss_chunks="auto") if choice.in_chunks else plan.train
    data = replace(plan.data, micro_batch=choice.micro_batch)
    pipeline = plan.pipeline
    if pipeline is not None:
        number = choice.stages_per_rank
        plain = ZeroBubble() if choice.is_zero_bubble else OneFOneB()
        pipeline = replace(pipeline, schedule=Interleaved(number) if number > 1 else plain)
    return replace(
        bound,
        plan=replace(plan, mesh=replace(plan.mesh, **sizes), pipeline=pipeline, data=data, train=train),
        checkpointed=dict.fromkeys(recomputed, span),
        selective=frozenset(recomputed if choice.recompute is Recompute.SELECTIVE else ()),
        offloaded=frozenset(recomputed if choice.recompute is Recompute.OFFLOAD else ()),
        units=units,
    )
