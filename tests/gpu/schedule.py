"""Which steps a session has the time for, and which of them run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from tests.gpu.site import Site
from tests.gpu.steps import Step

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Capacity:
    """What steps that run side by side share: GiB of device memory, and cores."""

    gib: float
    cores: int

    def has_room(self, step: Step, beside: Sequence[Step]) -> bool:
        """Whether a step fits beside others. One that is larger than the machine runs by itself."""
        if not beside:
            return True
        gib = sum(one.gib for one in (*beside, step))
        return gib <= self.gib and sum(one.cores for one in (*beside, step)) <= self.cores


def ordered(steps: Sequence[Step], first: Sequence[str], *, measured: Container[str] = ()) -> list[Step]:
    """The steps with those that are named `first` in front, then those that were never measured."""
    names = [*first, *(step.name for step in steps if step.name not in measured)]
    return sorted(steps, key=lambda step: names.index(step.name) if step.name in names else len(names))


def with_needs(chosen: Sequence[Step], steps: Sequence[Step], has_files: Callable[[str], bool]) -> list[Step]:
    """The chosen steps, each after those that it needs and that have left no files here."""
    by_name, found = {step.name: step for step in steps}, dict[str, Step]()
    names = {step.name for step in chosen}

    def add(step: Step) -> None:
        for name in step.needs:
            if name in by_name and name not in found and (name in names or not has_files(name)):
                add(by_name[name])
        found.setdefault(step.name, step)

    for step in chosen:
        add(step)
    return [*found.values()]


def fitting(
    steps: Sequence[Step], site: Site, capacity: Capacity, *, seconds: float
) -> tuple[list[Step], list[Step]]:
    """The steps that the time is expected to suffice for, in their order of worth, and what is left out.

    A step without the steps that it needs is left out with them, and so is a preparation for it.
    """
    taken: list[Step] = []
    left: list[Step] = []
    out: set[str] = set()
    for step in steps:
        has_needs = not out & set(step.needs)
        if has_needs and makespan([*taken, step], site, capacity) <= seconds:
            taken.append(step)
        else:
            left.append(step)
            out.add(step.name)
    needed = {name for step in taken for name in step.needs}
    useless = [step for step in taken if step.is_preparation and step.name not in needed]
    return [step for step in taken if step not in useless], [*left, *useless]


def makespan(steps: Sequence[Step], site: Site, capacity: Capacity) -> float:
    """The expected seconds of a session: those side by side, then each that runs alone."""
    running: list[tuple[float, Step]] = []
    waiting, now = [step for step in steps if not step.is_alone], 0.0
    done: set[str] = set()
    names = {step.name for step in steps}
    while waiting or running:
        for step in _startable(waiting, [one for _, one in running], done, names, capacity):
            running.append((now + step.expected(site), step))
            waiting.remove(step)
        assert running, "a step needs one that never runs"
        now, ended = min(running, key=lambda pair: pair[0])
        running.remove((now, ended))
        done.add(ended.name)
    return now + sum(step.expected(site) for step in steps if step.is_alone)


def run_side_by_side(
    steps: Sequence[Step], capacity: Capacity, run: Callable[[Step], R], cancelled: Event
) -> Iterator[tuple[Step, R]]:
    """Run steps in threads, as many at once as there is room for; yield each as it ends.

    A caller that stops early sets `cancelled`, which `run` heeds: a thread can't be ended.
    """
    waiting, done = [*steps], set[str]()
    names = {step.name for step in steps}
    running: dict[Future[R], Step] = {}
    with ThreadPoolExecutor(max_workers=max(1, len(steps))) as pool:
        try:
            while waiting or running:
                for step in _startable(waiting, [*running.values()], done, names, capacity):
                    running[pool.submit(run, step)] = step
                    waiting.remove(step)
                assert running, "a step needs one that never runs"
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    step = running.pop(future)
                    done.add(step.name)
                    yield step, future.result()
        except BaseException:
            cancelled.set()
            raise


def _startable(
    waiting: Sequence[Step], beside: Sequence[Step], done: set[str], names: set[str], capacity: Capacity
) -> list[Step]:
    """The waiting steps that can start now. None passes one that only lacks room, which might never start."""
    found: list[Step] = []
    for step in waiting:
        if {name for name in step.needs if name in names} <= done:
            if not capacity.has_room(step, [*beside, *found]):
                break
            found.append(step)
    return found
