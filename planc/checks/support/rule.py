"""The types of a rule and of the subject that it checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from planc.devices.hardware import Demand, PairDemand
from planc.diagnostics import Code, Diagnostic
from planc.inventory.schema import Inventory
from planc.layouts.families import as_patterns, families, quoted
from planc.layouts.flow import Flow, layout_flow
from planc.plan.bind import BoundPlan
from planc.plan.facts import facts
from planc.plan.spec import Plan
from planc.record import record
from planc.source import Span
from planc.styles.style import Style
from planc.vocab import MeshDim, Placement


@dataclass(frozen=True, eq=False)
class Subject:
    """A plan bound to its model, with the world size of the launch if it is known.

    `estimated` returns the facts that need an estimate, and `demand` the memory that the plan needs on its
    device, None if nothing asks for it; `pairs` the memory that attention holds for pairs of tokens, None if
    that is not much. Not slotted, since facts and the layout flow are cached when the
    first rule uses them. Equal to itself alone: what several rules ask for is kept by subject.
    """

    bound: BoundPlan
    world_size: int | None = None
    estimated: Callable[[], Mapping[str, int]] = dict
    demand: Callable[[], Demand | None] = lambda: None
    pairs: Callable[[], PairDemand | None] = lambda: None
    base: Path | None = None
    """The directory that the plan's relative paths start from."""
    meshes: tuple[Plan, ...] = ()
    """The other plans of an elastic run, if this is one of them."""

    @property
    def plan(self) -> Plan:
        return self.bound.plan

    @property
    def inventory(self) -> Inventory:
        return self.bound.inventory

    @cached_property
    def facts(self) -> Mapping[str, int]:
        """Every fact that an expectation can name; estimates the plan only if an expectation needs it."""
        known = facts(self.plan, self.inventory)
        is_enough = all(expectation.subject in known for expectation in self.plan.expectations)
        return known if is_enough else {**known, **self.estimated()}

    @cached_property
    def flow(self) -> Flow:
        """The layouts of activations over tp."""
        return layout_flow(self.bound)

    @property
    def tp_span(self) -> Span:
        """The span where a missing tensor-parallel rule would belong."""
        spec = self.plan.tensor_parallel
        assert spec is not None, "layouts differ only under a tensor_parallel block"
        return spec.span

    def style(self, fqn: str) -> Style | None:
        """The tensor-parallel style of a module."""
        assignment = self.bound.styles.get(fqn)
        return assignment.style if assignment else None

    def rule_spans(self, fqns: Iterable[str]) -> tuple[Span, ...]:
        """The rules that gave these modules their styles, each once."""
        assignments = (self.bound.styles.get(fqn) for fqn in fqns)
        return tuple(dict.fromkeys(assignment.span for assignment in assignments if assignment))

    def primary_span(self, spans: Sequence[Span]) -> Span:
        """The first of the rules that a finding is about, or the place for a missing rule."""
        return spans[0] if spans else self.tp_span

    def patterns(self, fqns: Iterable[str]) -> tuple[str, ...]:
        """Modules or parameters as patterns over all layers."""
        return as_patterns(families(self.inventory, fqns))

    def named(self, fqns: Iterable[str]) -> str:
        """Modules or parameters as a finding names them: quoted patterns over all layers."""
        return quoted(self.patterns(fqns))

    def outputs(self, fqns: Sequence[str], layout: Placement) -> str:
        """ "`model.norm` outputs Shard(1)", as patterns over all layers."""
        return f"{self.clause(fqns, 'outputs', several='output')} {layout}"

    def clause(self, fqns: Iterable[str], verb: str, *, several: str) -> str:
        """Modules as patterns over all layers, and the verb that agrees with them."""
        names = self.patterns(fqns)
        # A pattern such as `model.layers.*.self_attn.{q,k}_proj` is several modules too.
        is_single = len(names) == 1 and "{" not in names[0]
        return f"{quoted(names)} {verb if is_single else several}"

    def rules_to_add(self, fqns: Iterable[str], action: str) -> str:
        """`add "model.layers.*.mlp.down_proj" -> rowwise`."""
        rules = (f'`"{pattern}" -> {action}`' for pattern in self.patterns(fqns))
        return f"add {' and '.join(rules)}"

    def size_note(self, fqns: Sequence[str]) -> tuple[str, ...]:
        """The number of affected modules, if the finding's text shows fewer."""
        if len(fqns) == len(families(self.inventory, fqns)):
            return ()
        return (f"{len(fqns)} modules are affected, starting with `{fqns[0]}`",)


Findings = Iterator[Diagnostic]
"""The findings of a rule, in the order of the plan."""


@record
class Rule:
    """A check: the function that finds something, and the codes that it can report. `reports` makes one.

    The rule is skipped if the mesh dim `over` has size 1. Codes of `unless`, found in `block` (anywhere if it
    is empty), make this rule's findings mere consequences. With `of_sound`, the rule is skipped if another
    one found an error, because the fix would change its input.
    With `unless_refused`, findings with a label at a setting that the task refuses are left out: their help
    would keep the setting.
    """

    check: Callable[[Subject], Findings]
    codes: tuple[Code, ...]
    over: MeshDim | None = None
    block: str = ""
    unless: tuple[Code, ...] = ()
    of_sound: bool = False
    unless_refused: bool = False


def reports(
    *codes: Code,
    over: MeshDim | None = None,
    block: str = "",
    unless: tuple[Code, ...] = (),
    of_sound: bool = False,
    unless_refused: bool = False,
) -> Callable[[Callable[[Subject], Findings]], Rule]:
    """Makes the function below it a `Rule`, as whose `check` it is registered."""
    return lambda check: Rule(check, codes, over, block, unless, of_sound, unless_refused)
