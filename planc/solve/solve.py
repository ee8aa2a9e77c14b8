"""Finds tensor-parallel rules, container by container.

The residual stream is the only interface between the attention, the MLP and whatever else a layer has, and it
is whole on every rank. So each container is solved alone: rules are tried from the cheapest, and the first
that planc's own checks accept are taken. There is no second opinion on what is legal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from planc.inventory.schema import Inventory
from planc.layouts.families import as_patterns
from planc.plan.auto import Automatic, AutoRule
from planc.plan.spec import Plan
from planc.plan.style_actions import StyleAction
from planc.solve.choices import (
    Choice,
    Cost,
    choices,
    members_of,
    patterns_for,
    sent_at,
    small_elements,
    width_of_input,
)
from planc.solve.containers import Container, containers
from planc.solve.oracle import Culprits, Oracle, Refusal, stand_in
from planc.solve.search import Combination, Search, Solution, Solved
from planc.solve.sequence import with_sequence_parallel
from planc.styles import BY_NAME, Boundary
from planc.styles.edges import READ_BY_PARTS, WHOLE, At, Edge
from planc.vocab import parent_of

MAX_TRIES = 300
"""The tries of a container's rules by the checks, at most."""
_PREPARE = StyleAction(BY_NAME["prepare_input"], Boundary())


def auto_rules(plan: Plan, inventory: Inventory) -> Automatic:
    """The rules that planc finds for `auto`."""
    solution = solve(plan, inventory)
    return Automatic(as_rules(solution, inventory), solution.refused)


def as_rules(solution: Solution, inventory: Inventory) -> tuple[AutoRule, ...]:
    """The actions as rules, siblings with one style in one pattern."""
    members = members_of(inventory)
    patterns_by_style: dict[tuple[str, str, Boundary], list[str]] = {}
    for one, action in solution.actions:
        key = parent_of(one), action.style.name, action.boundary
        patterns_by_style.setdefault(key, []).extend(patterns_for(one, members, action.style, inventory))
    return tuple(
        AutoRule(pattern, style, boundary)
        for (_, style, boundary), names in patterns_by_style.items()
        for pattern in as_patterns(names)
    )


def solve(plan: Plan, inventory: Inventory, *, with_runner_up: bool = False) -> Solution:
    """The cheapest legal rules of every container; one for which none are legal stays whole.

    If only a size is in the way of any rules, they are those for a size that fits: the check of the plan
    reports the size.
    """
    assert plan.tensor_parallel and plan.tensor_parallel.auto, "only a plan with `auto` asks for rules"
    few = stand_in(inventory)
    # Experts take shards of the sequence in place of the rules that are found for whole ones.
    whole = replace(plan, expert_parallel=None)
    oracle = Oracle(whole, few)
    groups = tuple(containers(plan, few))
    solved = _solved(oracle, groups, with_runner_up=with_runner_up)
    if not _rules_of(solved):
        of_any_size = _solved(Oracle(whole, few, any_size=True), groups, with_runner_up=with_runner_up)
        solved = of_any_size if _rules_of(of_any_size) else solved
    known = _rules_of(solved)
    refused = "" if known else next((one.refused for one in solved if one.refused), _NOTHING)
    if known and plan.tensor_parallel.auto.sequence_parallel:
        sharded, refusal = with_sequence_parallel(Oracle(plan, few), groups, known, inventory)
        if refusal is not None:
            judge = Oracle(plan, few, any_size=True)
            sharded, other = with_sequence_parallel(judge, groups, known, inventory)
            refused = _told(refusal) if other else ""
        known = sharded
    return Solution(tuple(known.items()), solved, refused)


def _solved(oracle: Oracle, groups: Sequence[Container], *, with_runner_up: bool) -> tuple[Solved, ...]:
    """Solve each container, given the rules of those before it."""
    found: list[Solved] = []
    for container in groups:
        solver = _Solver(oracle, container, oracle.plan.mesh.tp, _rules_of(found))
        found.append(solver.solved(with_runner_up=with_runner_up))
    return tuple(found)


def _rules_of(solved: Sequence[Solved]) -> dict[str, StyleAction]:
    return {name: action for one in solved for name, action in one.actions}


_NOTHING = "no layer has a matrix that a style could shard"


class _Solver:
    """The search for one container's rules."""

    def __init__(self, oracle: Oracle, container: Container, tp: int, known: dict[str, StyleAction]) -> None:
        self.oracle, self.container, self.tp, self.known = oracle, container, tp, known
        self.search = self._search()
        self.refused: Refusal | None = None
        self.num_tried = 0

    def solved(self, *, with_runner_up: bool) -> Solved:
        legal = self._legal()
        best = next(legal, None)
        actions = _actions(best, self.container) if best else ()
        num_tried = self.num_tried
        next_best = next(legal, None) if with_runner_up and actions else None
        return Solved(
            self.container.name,
            actions,
            best.cost if best else Cost(),
            num_tried,
            self._why_none(best) if not actions else "",
            _actions(next_best, self.container) if next_best else (),
            next_best.cost if next_best else None,
        )

    def _why_none(self, best: Combination | None) -> str:
        """Explain why the container stays whole: the first finding, and whether the search was cut short."""
        first = _told(self.refused) if self.refused else ""
        return first if best else f"{first} (the search ended after {self.num_tried} combinations)"

    def _legal(self) -> Iterator[Combination]:
        """Combinations that the checks accept, the cheapest first."""
        for combination in self.search:
            actions = dict(_actions(combination, self.container))
            if not actions:
                yield combination
                return
            if self.num_tried == MAX_TRIES:
                return
            self.num_tried += 1
            refusal = self.oracle.refusal({**self.known, **actions})
            if refusal is None:
                yield combination
                continue
            self.refused = self.refused or refusal
            self._learn(combination, refusal)

    def _search(self) -> Search:
        streams = {False: (self._choices(prepared=False), Cost())}
        if self.container.takes_rule and len(self.container.readers) > 1:
            # As unusual as it is, one more rule must save something.
            streams[True] = self._choices(prepared=True), Cost(sent=self._prepared(), rank=1)
        return Search(streams)

    def _prepared(self) -> int:
        """Return the bytes that a rank sends to sum the gradient of the container's input."""
        widths = {width_of_input(self.container.members[reader]) for reader in self.container.readers}
        return sum(sent_at(Edge(At.INPUT, WHOLE, READ_BY_PARTS), width, tp=self.tp) for width in widths)

    def _choices(self, *, prepared: bool) -> Mapping[str, tuple[Choice, ...]]:
        container = self.container
        small = small_elements(list(container.members.values()))
        return {
            name: choices(
                module,
                tp=self.tp,
                small=small,
                is_head=name == container.head,
                is_prepared=prepared and name in container.readers,
                is_behind_heads=name in container.behind_heads,
                held=self.oracle.packed.get(module.fqn),
                replicates_kv=self.oracle.replicates_kv(module.fqn),
            )
            for name, module in container.members.items()
        }

    def _learn(self, combination: Combination, refusal: Refusal) -> None:
        """Leave out what the checks refuse for the same reason."""
        choices = self._choices(prepared=combination.is_prepared)
        for culprits in refusal.culprits:
            found = {
                family: _alike(chosen, choices[family], family, culprits)
                for family, chosen in combination.choices.items()
            }
            refused = {family: alike for family, alike in found.items() if alike}
            # What is at fault outside of this container can't change any more.
            self.search.refuse(
                combination.is_prepared, refused or {f: (c,) for f, c in combination.choices.items()}
            )


def _alike(chosen: Choice, choices: Sequence[Choice], family: str, culprits: Culprits) -> tuple[Choice, ...]:
    """The choices of a family that would be at fault as the chosen one is; none if it is not."""
    takes, gives = family in culprits.takes, family in culprits.gives
    if family in culprits.is_exact or (chosen.is_norm and (culprits.takes or culprits.gives)):
        return (chosen,)
    if not takes and not gives:
        return ()
    same_input = [other for other in choices if not takes or other.takes == chosen.takes]
    return tuple(other for other in same_input if not gives or other.gives == chosen.gives)


def _told(refusal: Refusal) -> str:
    finding = refusal.finding
    return f"{finding.code.code}: {finding.primary.text}"


def _actions(one: Combination, container: Container) -> tuple[tuple[str, StyleAction], ...]:
    found = [(family, choice.action) for family, choice in one.choices.items() if choice.action is not None]
    return ((container.name, _PREPARE), *found) if one.is_prepared else tuple(found)
