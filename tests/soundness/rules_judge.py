"""One architecture's random rule sets: which ones `check` accepts, and how these train on two ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch.distributed as dist

from planc.api import Checked, check_source
from planc.diagnostics import Severity
from planc.graph.graph import Graph
from planc.inventory.load import InventoryError
from planc.inventory.schema import Inventory
from planc.source import SourceFile
from planc.verify.pool import RankError, run_ranks
from planc.verify.ranks import Record, Task, train_rank
from planc.verify.verify import cause
from tests.launch.processes import free_port
from tests.models.agreement import agreement
from tests.models.independent import Measured, write_corpus
from tests.models.judge import Cell, Status, outcome_of, prepare, reference_of
from tests.models.plans import CORPUS, Variant, plan_with_rules, variants
from tests.models.tiny import SEQUENCE_LENGTH
from tests.soundness.rule_sets import AUTOS, Base, Draw, base_of

NUM_STEPS = 3
_MAX_ALIKE = 5
"""How many more rule sets are drawn for those that mean the same as others: a small model has few."""
_TIMEOUT_SECONDS = 300.0
_COLLECTIVE_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Trained:
    """A rule set that `check` accepts, and what became of it."""

    plan: str
    cell: Cell


@dataclass(frozen=True, slots=True)
class Found:
    """One architecture. `num_alike` more rule sets meant the same as others."""

    model_type: str
    num_refused: int = 0
    num_alike: int = 0
    trained: tuple[Trained, ...] = ()
    reason: str = ""
    """Why there is nothing to train."""

    def having(self, status: Status) -> list[Trained]:
        return [one for one in self.trained if one.cell.status is status]

    @property
    def faults(self) -> list[Trained]:
        return [one for one in self.trained if one.cell.status is not Status.EQUAL]


def fuzzed(model_type: str, architecture: str, *, num_sets: int, seed: int, pp: int = 1) -> Found:
    """What the architecture's rule sets of this seed came to, in `pp` stages."""
    with TemporaryDirectory(prefix="planc-rules-") as name:
        folder = Path(name)
        write_corpus(folder / CORPUS, sequence_length=SEQUENCE_LENGTH)
        try:
            inventory = prepare(model_type, architecture, changes={}, folder=folder)
        except InventoryError as error:
            return Found(model_type, reason=error.message.replace(f"{folder}/", ""))
        except (RankError, TimeoutError) as error:
            return Found(model_type, reason=cause(error))
        sets = Sets(inventory, model_type, folder, pp=pp)
        if not list(sets.bases()):
            return Found(model_type, reason=f"no `auto` is accepted: {sets.refusal()}")
        plans, num_refused, num_alike = sets.drawn(Random(f"{seed} {model_type}"), num_sets=num_sets)
        trained = tuple(judged(sets, plans))
        return Found(model_type, num_refused, num_alike, trained)


@dataclass(slots=True)
class Sets:
    """The rule sets of one model in the folder `model_type` below `folder`."""

    inventory: Inventory
    model_type: str
    folder: Path
    variant: Variant = variants("tp")[0]
    pp: int = 1

    def checked(self, rules: str, *, dtype: str = "float32") -> Checked:
        text = plan_with_rules(rules, model=self.model_type, dtype=dtype, variant=self.variant, pp=self.pp)
        return check_source(SourceFile(f"{self.model_type}.plan", text), base=self.folder)

    def bases(self) -> Iterator[Base]:
        """The distinct meanings of `auto`, with the first attention with which there are any."""
        for self.variant in variants("tp"):
            found = [(auto, self.checked(f"  {auto}")) for auto in AUTOS]
            right = [(auto, one.bound) for auto, one in found if one.graph is not None and one.bound]
            if right:
                known = set()
                for auto, bound in right:
                    base = base_of(auto, bound)
                    meaning = tuple(sorted(base.actions.items(), key=lambda one: one[0]))
                    if meaning not in known:
                        known.add(meaning)
                        yield base
                return

    def drawn(self, random: Random, *, num_sets: int) -> tuple[list[str], int, int]:
        """(accepted rule sets, how many are refused, how many more meant what one before them meant)."""
        bases = list(self.bases())
        draw = Draw(self.inventory, bases, random)
        known = {meaning_of(self.checked(f"  {base.auto}")) for base in bases}
        accepted: list[str] = []
        num_refused = num_alike = 0
        while len(accepted) + num_refused < num_sets and num_alike < _MAX_ALIKE * num_sets:
            rules = draw.rules()
            checked = self.checked(rules)
            meaning = rules if checked.bound is None else meaning_of(checked)
            if meaning in known:
                num_alike += 1
            elif checked.graph is None:
                num_refused += 1
            else:
                accepted.append(rules)
            known.add(meaning)
        return accepted, num_refused, num_alike

    def refusal(self) -> str:
        """Why the first `auto` is refused with the first attention."""
        self.variant = variants("tp")[0]
        errors = [one for one in self.checked(f"  {AUTOS[0]}").diagnostics if one.severity is Severity.ERROR]
        return "; ".join(f"{one.code.code}: {one.primary.text}" for one in errors[:1])

    def graph(self, rules: str, *, dtype: str) -> Graph:
        graph = self.checked(rules, dtype=dtype).graph
        assert graph is not None, "accepted in another dtype"
        return graph


def meaning_of(checked: Checked) -> object:
    """What a plan's rules place, and where."""
    assert checked.bound is not None, "the rules are held against a model"
    styles = checked.bound.styles.values()
    return frozenset((one.fqn, str(one.use)) for one in styles if one.style.name != "replicate")


def judged(sets: Sets, plans: Sequence[str]) -> Iterator[Trained]:
    """How accepted rule sets train, against transformers' own training of the model."""
    references: dict[str, Measured | Cell] = {}

    def reference(dtype: str) -> Measured | Cell:
        if dtype not in references:
            references[dtype] = reference_of(sets.model_type, dtype, folder=sets.folder)
        return references[dtype]

    def outcome(plan: str, dtype: str) -> Cell:
        expected = reference(dtype)
        if isinstance(expected, Cell):
            return expected
        return outcome_of(sets.graph(plan, dtype=dtype), expected, dtype=dtype, folder=sets.folder)

    expected = reference("float32") if plans else Cell(Status.UNKNOWN)
    if isinstance(expected, Cell):
        yield from (Trained(plan, expected) for plan in plans)
        return
    together = trained_together([sets.graph(plan, dtype="float32") for plan in plans], folder=sets.folder)
    for number, plan in enumerate(plans):
        wrong = (
            agreement(together[number], expected, dtype="float32").wrong if number < len(together) else None
        )
        if wrong == ():
            yield Trained(plan, Cell(Status.EQUAL))
            continue
        cell = outcome(plan, "float32")
        if cell.status is Status.EQUAL and wrong:
            cell = Cell(Status.DIFFERENT, f"only after other runs of its process: {'; '.join(wrong)}")
        elif cell.status is Status.DIFFERENT:
            # Rounding that a model amplifies is gone in float64, and a fault is not.
            again = outcome(plan, "float64")
            cell = again if again.status is Status.EQUAL else cell
        yield Trained(plan, replace(cell, variant=""))


def trained_together(graphs: Sequence[Graph], *, folder: Path) -> list[list[Record]]:
    """What all ranks saw of each graph, one after the other in the same processes, up to the first failure.

    A process's first steps take seconds for what torch loads, all others a fraction.
    """
    with TemporaryDirectory(prefix="planc-rules-run-") as name:
        folders = [Path(name) / str(number) for number in range(len(graphs))]
        tasks = []
        for graph, run_folder in zip(graphs, folders, strict=True):
            run_folder.mkdir()
            task = Task(
                graph,
                folder,
                run_folder,
                stop_after=NUM_STEPS,
                collective_timeout_seconds=_COLLECTIVE_TIMEOUT_SECONDS,
            )
            tasks.append(task)
        ports = [free_port() for _ in tasks]
        try:
            found = run_ranks(
                train_all,
                graphs[0].world_size,
                tasks,
                ports,
                timeout_seconds=_TIMEOUT_SECONDS,
                init=False,
                quiet=True,
            )
        except (RankError, TimeoutError):
            # Each is then judged in processes of its own.
            return []
    return [list(records) for records in zip(*found, strict=False)]


def train_all(rank: int, world_size: int, tasks: Sequence[Task], ports: Sequence[int]) -> list[Record]:
    """This rank's records of the tasks until one fails."""
    records = []
    for task, port in zip(tasks, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        try:
            records.append(train_rank(rank, world_size, task))
            dist.destroy_process_group()
        except Exception:
            break
    return records
