"""Many mutants, each judged by planc and by a run."""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from planc.api import Checked, check_plan
from planc.graph.graph import plan_hash
from planc.inventory.load import InventoryError, save_inventory
from planc.lower import draft_graph
from planc.plan.bind import BoundPlan
from tests.mutants import (
    expert_mutations,
    layout_mutations,
    model_mutations,
    plan_mutations,
    stage_mutations,
    training_mutations,
)
from tests.mutants.mutant import Edited, MutationType
from tests.mutants.shrink import Base, Config, bases, write_corpus
from tests.mutants.verdicts import broken_promises, codes_of
from tests.plans import canonical_plans

_TP = ("tp",)
_SHARDED = ("dp_replicate", "dp_shard", "cp")
MUTATIONS: Mapping[str, MutationType] = {
    "style": MutationType(layout_mutations.style_swap, _TP, 2),
    "rule-drop": MutationType(layout_mutations.rule_drop, _TP),
    "rule-add": MutationType(layout_mutations.rule_add, _TP, 2),
    "rule-narrow": MutationType(layout_mutations.rule_narrow, _TP),
    "mosaic": MutationType(layout_mutations.mosaic, _TP, 4),
    "rule-part": MutationType(layout_mutations.rule_part, _TP, 2),
    "boundary": MutationType(layout_mutations.boundary, _TP, 2),
    "residual": MutationType(layout_mutations.residual_layout, _TP),
    "gather": MutationType(layout_mutations.gather_in_layers, _TP),
    "auto": MutationType(layout_mutations.automatic, _TP),
    "mesh": MutationType(plan_mutations.mesh_size),
    "fsdp-dims": MutationType(plan_mutations.sharded_dims, _SHARDED),
    "tp-dim": MutationType(plan_mutations.parallel_dim, _TP),
    "units": MutationType(plan_mutations.units, _SHARDED),
    "stages": MutationType(stage_mutations.stages, ("pp",), 2),
    "block": MutationType(plan_mutations.block_drop),
    "context": MutationType(plan_mutations.context, ("cp",), 2),
    "recompute": MutationType(plan_mutations.recomputation),
    "dtype": MutationType(plan_mutations.dtypes),
    "batch": MutationType(plan_mutations.batch),
    "sequence": MutationType(plan_mutations.sequence_length, ("cp", "tp")),
    "evaluation": MutationType(plan_mutations.evaluation),
    "optimizer": MutationType(plan_mutations.optimizer),
    "expect": MutationType(plan_mutations.expectation),
    "order": MutationType(plan_mutations.order),
    "experts": MutationType(expert_mutations.experts, ("dp_shard",), 2),
    "experts-tp": MutationType(expert_mutations.on_tp, ("dp_shard",), 2),
    "capacity": MutationType(expert_mutations.capacity, ("dp_shard",)),
    "balance": MutationType(expert_mutations.balance),
    "training": MutationType(training_mutations.training, weight=2),
    "losses": MutationType(training_mutations.losses),
    "heads": MutationType(model_mutations.heads, ("cp", "tp")),
    "widths": MutationType(model_mutations.widths),
    "ties": MutationType(model_mutations.ties),
    "biases": MutationType(model_mutations.biases),
    "options": MutationType(model_mutations.options),
    "windows": MutationType(model_mutations.windows),
    "architecture": MutationType(model_mutations.architecture, weight=3),
}
"""Every type of mutation. A "pair" is one of any type after another."""

PAIR = "pair"
TYPES = (*MUTATIONS, PAIR)
_MAX_IDLE_ROUNDS = 60
"""Rounds over all types without a new mutant after which the search ends."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutated plan on disk. `meaning` is equal for plans that run the same and promise the same."""

    number: int
    type: str
    base: str
    note: str
    path: Path
    meaning: str


@dataclass(frozen=True, slots=True)
class Result:
    """A mutant with the codes of every depth of checking, what it breaks, and how it ran."""

    mutant: Mutant
    codes: Mapping[str, tuple[str, ...]]
    promises: tuple[str, ...] = ()
    status: str = "unbuilt"
    """A run's, or "unbuilt" where there is no graph to run."""
    detail: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        return self.status != "equal" or bool(self.promises)

    def rejected_by(self, depth: str) -> bool:
        """Whether this depth, or one before it, finds an error."""
        depths = tuple(self.codes)
        return any(self.codes[name] for name in depths[: depths.index(depth) + 1])


class Workshop:
    """A folder of mutated plans, with the models and the text that they name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_corpus(folder)

    def write(self, name: str, edited: Edited) -> Path:
        """The path of the plan, which names its model's folder."""
        draft = edited.draft.setting("model", "hf", f'"{self._model(edited.config)}"')
        path = self.folder / f"{name}.plan"
        path.write_text(f"# {edited.note}\n\n{draft}", encoding="utf-8")
        return path

    def _model(self, config: Config) -> str:
        text = json.dumps(config, indent=2, sort_keys=True)
        name = f"models/{hashlib.sha256(text.encode()).hexdigest()[:10]}"
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(text, encoding="utf-8")
            try:
                save_inventory(folder)
            except InventoryError as error:
                (folder / "no-inventory.txt").write_text(error.message, encoding="utf-8")
        return name


def drafted_plans() -> tuple[Path, ...]:
    """The plans that drafts can hold: those without blocks inside blocks."""
    nested = re.compile(r"^  eval ", re.MULTILINE)
    return tuple(path for path in canonical_plans() if not nested.search(path.read_text(encoding="utf-8")))


@functools.cache
def shrunk_bases() -> tuple[Base, ...]:
    """The bases of every plan that a draft can hold."""
    return tuple(base for path in drafted_plans() for base in bases(path))


def mutants(
    workshop: Workshop, starts: Sequence[Base], *, seed: int, types: Sequence[str]
) -> Iterator[Mutant]:
    """Mutants that differ in meaning from each other and from every base, type after type."""
    known = {_meaning(workshop.write("base", Edited(base.draft, base.config, ""))) for base in starts}
    number = idle = round_number = 0
    while idle < _MAX_IDLE_ROUNDS:
        idle += 1
        for type_name in _round(types):
            random = Random(f"{seed}/{type_name}/{round_number}/{number}")
            edited, base = _mutated(type_name, starts, random)
            if edited is None:
                continue
            path = workshop.write(f"{number:04}", edited)
            meaning = _meaning(path)
            if meaning in known:
                continue
            known.add(meaning)
            yield Mutant(number, type_name, base.name, edited.note, path, meaning)
            number, idle = number + 1, 0
        round_number += 1
    (workshop.folder / f"{number:04}.plan").unlink(missing_ok=True)


def _round(types: Sequence[str]) -> Iterator[str]:
    """Each type as often as it weighs; pairs as often as the heaviest."""
    heaviest = max(one.weight for one in MUTATIONS.values())
    for turn in range(heaviest):
        yield from (name for name in types if name == PAIR or turn < MUTATIONS[name].weight)


def _mutated(type_name: str, starts: Sequence[Base], random: Random) -> tuple[Edited | None, Base]:
    """A base, and an edit of it where there is one to make."""
    names = [type_name] if type_name != PAIR else [random.choice(tuple(MUTATIONS)) for _ in range(2)]
    over = {mesh_dim for name in names for mesh_dim in MUTATIONS[name].over}
    fitting = [base for base in starts if not over or any(base.draft.mesh()[dim] > 1 for dim in over)]
    # Small worlds show most faults, and cost least.
    shares = Counter(base.plan for base in fitting)
    weights = [1 / (base.draft.world_size() * shares[base.plan]) for base in fitting]
    (base,) = random.choices(fitting, weights)
    edited: Edited | None = Edited(base.draft, base.config, "")
    for name in names:
        before = edited
        edited = before and MUTATIONS[name].mutate(before.draft, before.config, random)
        if edited is not None and before is not None and before.note:
            edited = replace(edited, note=f"{before.note}; {edited.note}")
    return edited, base


def _meaning(path: Path) -> str:
    """What runs and what is promised, as a text: equal for plans of which one is enough."""
    checked = _checked(path)
    if checked is None:
        return f"raised {path.name}"
    if checked.bound is None:
        told = sorted(f"{one.code.code} {one.primary.text}" for one in checked.diagnostics)
        return f"unbuilt {told}"
    promised = sorted((one.subject, one.operator, str(one.value)) for one in checked.bound.plan.expectations)
    faults = sorted(broken_promises(checked.bound))
    conflicts = sorted(conflict.name for conflict in checked.bound.conflicts)
    try:
        hashed = plan_hash(draft_graph(checked.bound))
    except AssertionError as error:
        hashed = f"no graph: {error}"
    return f"{hashed} {promised} {faults} {conflicts}"


def _checked(path: Path) -> Checked | None:
    """None where a check raises, which is a bug and counts as one."""
    try:
        return check_plan(path)
    except Exception:
        return None


def judged(mutant: Mutant, *, depths: Sequence[str]) -> Result:
    """The mutant's verdicts, then its truth."""
    began = time.monotonic()
    codes = {depth: codes_of(mutant.path, depth) for depth in depths}
    judged_at = time.monotonic()
    checked = _checked(mutant.path)
    bound = checked.bound if checked is not None else None
    if bound is None:
        return Result(mutant, codes, detail="no model, or no meaning", seconds={"check": judged_at - began})
    status, detail = _run(bound, folder=mutant.path.parent)
    seconds = {"check": judged_at - began, "run": time.monotonic() - judged_at}
    return Result(mutant, codes, tuple(broken_promises(bound)), status, detail, seconds)


def _run(bound: BoundPlan, *, folder: Path) -> tuple[str, str]:
    # torch is imported by workers alone, after they have forked nothing.
    from tests.mutants.reference import recipe_of
    from tests.mutants.truth import ground_truth

    try:
        graph = draft_graph(bound)
    except AssertionError as error:
        return "unbuilt", f"no graph: {error}"
    fsdp = bound.plan.fsdp
    used = {bound.plan.model.dtype, *((fsdp.param_dtype, fsdp.reduce_dtype) if fsdp else ())}
    truth = ground_truth(
        graph, recipe_of(bound, graph, base=folder), rounds=not used.isdisjoint(("bfloat16", "float16"))
    )
    return truth.status, truth.detail


_TASKS_OF_A_WORKER = 50
"""Wrong plans leave things behind in a process; a new one takes seconds."""


def campaign(
    found: Iterator[Mutant],
    *,
    depths: Sequence[str],
    limit: int,
    jobs: int,
    log: Path,
    told: Callable[[Result], None],
) -> tuple[Result, ...]:
    """The results of the first `limit` mutants by number, each told as soon as it is known.

    What ranks print, tracebacks of wrong plans for the most part, goes to `log`.
    """
    results: list[Result] = []
    with ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_log_to,
        initargs=(log,),
        max_tasks_per_child=_TASKS_OF_A_WORKER,
    ) as pool:
        waiting: set[Future[Result]] = set()
        for mutant, _ in zip(found, range(limit), strict=False):
            waiting.add(pool.submit(judged, mutant, depths=depths))
            # Finding mutants is quicker than judging them: no more than a few lie ready.
            if len(waiting) > 4 * jobs:
                waiting = _collect(waiting, results, told)
        while waiting:
            waiting = _collect(waiting, results, told)
    return tuple(sorted(results, key=lambda result: result.mutant.number))


def _log_to(path: Path) -> None:
    """Turns this process's output, and that of everything it starts, to a file."""
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _collect(
    waiting: set[Future[Result]], results: list[Result], told: Callable[[Result], None]
) -> set[Future[Result]]:
    done, rest = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        result = future.result()
        results.append(result)
        told(result)
    return set(rest)
