"""The orders of ops that the verifier accepts train equal: `python -m tests.graph.orders`, `--only` for some.

Every op of a plan's setup, step and micro step is moved to every other place, and every two are swapped. An
order that the verifier accepts is trained, and must have the same losses, norms, learning rates and weights,
bit for bit, as the plan's own. Prints how many orders were tried, accepted, and accepted and unequal: the
last must be 0. Exits with 1 if it is not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planc.api import check_source
from planc.graph.graph import Graph
from planc.graph.op import Op
from planc.graph.ops import Accumulate
from planc.graph.verify import verify
from planc.source import SourceFile
from tests.dist.pool import RankError, run_ranks
from tests.parity.cases import PP2_DP2, SEQUENCE_PARALLEL, TP2_DP2, Case, make_workspace, plan_text
from tests.parity.ranks import Task, digest, train_rank

NUM_STEPS = 3
_TIMED = ("seconds", "tokens_per_second", "tokens_per_second_per_device", "memory_bytes", "phase_seconds")
_EVALUATED = 'eval "held" { source = text("corpus.txt"), every = 2 steps, sequences = 4 }\n  shuffle_seed'
_MIXED = (
    'source "a" { source = text("corpus.txt"), weight = 0.75 }\n'
    '  source "b" { source = text("corpus.txt"), weight = 0.25 }'
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch shape of the parity table, blocks that its plan has besides, and texts that are replaced."""

    case: Case
    blocks: str = ""
    edits: tuple[tuple[str, str], ...] = ()

    def graph(self, workspace: Path) -> Graph:
        text = plan_text(self.case, saves=True) + self.blocks
        for old, new in self.edits:
            assert old in text
            text = text.replace(old, new)
        checked = check_source(
            SourceFile("orders.plan", text), base=workspace, world_size=self.case.world_size
        )
        assert checked.graph is not None, checked.diagnostics
        return checked.graph


_FEWER_RULES = """  "model.layers.*.mlp.{gate,up}_proj" -> colwise
  "model.layers.*.mlp.down_proj" -> rowwise
  "lm_head" -> colwise(output = Shard(-1))
"""
_GUARD = "guard {\n  loss_spike = skip(window = 5 steps)\n  replicas_every = 1 step\n}\n"
PLANS: Mapping[str, Plan] = {
    "FSDP + TP": Plan(
        Case("TP2·DP2", "", TP2_DP2, micro_batch=2), edits=((SEQUENCE_PARALLEL, _FEWER_RULES),)
    ),
    "whole replicas, guarded, evaluated": Plan(
        Case("DP2", "", {"dp_replicate": 2}, micro_batch=2, replicas="whole"),
        blocks=_GUARD,
        edits=(("shuffle_seed", _EVALUATED),),
    ),
    "a tied pipeline": Plan(Case("PP2·DP2", "", PP2_DP2, model="llama-tied", micro_batch=1)),
    "compiled, traced, a mixture": Plan(
        Case("1", "", micro_batch=2, recomputes=True),
        blocks=(
            'compile {\n  backend = aot_eager\n  "model.layers.*" -> region\n}\n'
            "profile {\n  first_step = 2\n  last_step = 2\n  memory = false\n}\n"
        ),
        edits=(('source = text("corpus.txt")', _MIXED),),
    ),
}


@dataclass(slots=True)
class Tally:
    """The orders of one plan."""

    tried: int = 0
    accepted: int = 0
    unequal: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        return (
            f"{name}: {self.tried} orders, {self.accepted} accepted, {len(self.unequal)} accepted and unequal"
        )


def orders(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Each order in which one op is moved or two are swapped, once, with what was done."""
    seen = {graph}
    for what, other in _all_orders(graph):
        if other not in seen:
            seen.add(other)
            yield what, other


def _all_orders(graph: Graph) -> Iterator[tuple[str, Graph]]:
    for what, ops in _changed(graph.setup):
        yield f"setup: {what}", replace(graph, setup=ops)
    for what, ops in _changed(graph.step):
        yield f"step: {what}", replace(graph, step=ops)
    (loop,) = (op for op in graph.step if isinstance(op, Accumulate))
    for what, ops in _changed(loop.body):
        body: Any = ops
        step = tuple(replace(loop, body=body) if op is loop else op for op in graph.step)
        yield f"micro step: {what}", replace(graph, step=step)


def _changed(ops: Sequence[Op]) -> Iterator[tuple[str, tuple[Op, ...]]]:
    for start, end in permutations(range(len(ops)), 2):
        rest = [*ops[:start], *ops[start + 1 :]]
        yield f"{ops[start].name} from {start} to {end}", (*rest[:end], ops[start], *rest[end:])
    for one, other in combinations(range(len(ops)), 2):
        found = [*ops]
        found[one], found[other] = ops[other], ops[one]
        yield f"{ops[one].name} and {ops[other].name} swapped", tuple(found)


def tally(graph: Graph, workspace: Path, *, parts: Sequence[str] = ("setup", "step", "micro step")) -> Tally:
    """Try all orders of some parts of a graph."""
    found = Tally()
    with TemporaryDirectory(prefix="planc-orders-") as folder:
        own = trained(graph, workspace, Path(folder) / "own")
        for what, other in orders(graph):
            if what.partition(":")[0] not in parts:
                continue
            found.tried += 1
            if verify(other):
                continue
            found.accepted += 1
            try:
                if trained(other, workspace, Path(folder) / str(found.tried)) != own:
                    found.unequal = (*found.unequal, what)
            except (RankError, TimeoutError) as error:
                found.unequal = (*found.unequal, f"{what}: {str(error).splitlines()[-1]}")
    return found


def trained(graph: Graph, workspace: Path, run_folder: Path) -> object:
    """What a run of the first steps reports and leaves behind, without times."""
    run_folder.mkdir()
    task = Task(graph, workspace, run_folder, stop_after=NUM_STEPS)
    first, *_ = run_ranks(train_rank, graph.world_size, task, timeout_seconds=120, init=False, quiet=True)
    metrics = [
        {name: value for name, value in asdict(one).items() if name not in _TIMED} for one in first.metrics
    ]
    weights = {name: digest(tensor) for name, tensor in first.final.items()}
    return metrics, first.learning_rates, first.states, weights


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="plans whose name has this text")
    chosen = parser.parse_args().only
    has_unequal = False
    with TemporaryDirectory(prefix="planc-orders-") as folder:
        workspace = make_workspace(Path(folder) / "workspace")
        for name, plan in PLANS.items():
            if chosen not in name:
                continue
            found = tally(plan.graph(workspace), workspace)
            print(found.text(name), *(f"  unequal: {one}" for one in found.unequal), sep="\n", flush=True)
            has_unequal |= bool(found.unequal)
    return int(has_unequal)


if __name__ == "__main__":
    sys.exit(main())
