"""Whether the plan that a search puts first is among the fastest: `python -m tests.tune.measured`.

Six small models on 4 CPU ranks. Plans without recomputation are written by hand for them, checked and run:
all ways to make 4 ranks of pp, dp_replicate, dp_shard, cp and tp, each with every micro batch, with and
without sequence parallelism, parameters gathered once or twice. So is the plan that `planc tune` puts first
on a device whose peaks are measured here, on the same ranks. Three steps of each tell which are far from the
fastest; the others are run in turns.

The table has, for each model, how much slower the first plan is than the fastest. Results are kept in a file,
so a run that ends early continues.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planc.api import check_source
from planc.estimate import efficiency
from planc.graph.graph import Graph, plan_hash
from planc.graph.op import Op
from planc.graph.ops import NextBatch
from planc.hub.user_dirs import cache_dir
from planc.inventory.known import KnownModels
from planc.inventory.load import save_inventory
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer
from planc.runtime.torch.backend import TorchBackend
from planc.source import SourceFile
from planc.tune.base import base_of
from planc.tune.score import Scorer
from planc.tune.search import Proposal, Search
from planc.verify.ranks import Task, open_run
from tests.dist.pool import run_ranks, start_server
from tests.tune.cpu_device import DEVICE, Peaks, measured_peaks

NUM_RANKS = 4
SEQUENCE_LENGTH, SEQUENCES = 128, 16
NUM_STEPS, NUM_WARMUP = 8, 3
NUM_ROUNDS = 3
LOOK_STEPS = 3
"""The steps of the first look at a plan, of which the first warms up."""
FAR, NEAR = 1.5, 1.3
"""At the first look, and in a round: what takes longer than so many times the fastest is not run again."""
GOAL = 1.10
FOLDER = Path(__file__).parent
_SIZES: Mapping[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
}
_GROUPED: Mapping[str, Any] = {**_SIZES, "num_key_value_heads": 4, "head_dim": 32}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**_GROUPED, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "qwen3": {
        **_GROUPED,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 8,
    },
    "mistral": {
        **_GROUPED,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": None,
        "hidden_size": 512,
        "intermediate_size": 1_408,
        "head_dim": 64,
    },
    "gpt_neox": {**_SIZES, "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"},
    "starcoder2": {
        **_GROUPED,
        "architectures": ["Starcoder2ForCausalLM"],
        "model_type": "starcoder2",
        "sliding_window": None,
        "intermediate_size": 1_024,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "gemma": {
        **_GROUPED,
        "architectures": ["GemmaForCausalLM"],
        "model_type": "gemma",
        "vocab_size": 8_192,
        "tie_word_embeddings": True,
    },
}
_DIMS = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


def plain_text(model: str) -> str:
    """What all plans of a model have in common."""
    return f"""\
model {{
  hf = "{model}"
}}
data {{
  source = python_stdlib
  sequence_length = {SEQUENCE_LENGTH}
  micro_batch = 1
}}
optimizer {{
  kind = adamw(lr = 1e-3)
}}
train {{
  steps = {NUM_STEPS}
  tokens_per_step = {SEQUENCES * SEQUENCE_LENGTH}
}}
"""


def hand_made(model: str) -> Iterator[tuple[str, str]]:
    """The name and the text of every plan, whether the check accepts it or not."""
    for sizes in product((1, 2, 4), repeat=len(_DIMS)):
        mesh = dict(zip(_DIMS, sizes, strict=True))
        if prod(sizes) != NUM_RANKS:
            continue
        num_sequences = SEQUENCES // (mesh["dp_replicate"] * mesh["dp_shard"])
        is_sharded = mesh["dp_shard"] * mesh["cp"] > 1
        micro_batches = [size for size in (1, 2, 4, 8, 16) if num_sequences % size == 0]
        rules = ("auto", "auto(sequence_parallel = true)") if mesh["tp"] > 1 else ("",)
        for micro_batch, rule, keeps in product(micro_batches, rules, (False, True)[: 1 + is_sharded]):
            parts = [f"{name} {size}" for name, size in mesh.items() if size > 1]
            parts += [f"micro_batch {micro_batch}", *["no reshard"] * keeps]
            parts += ["sequence parallel"] if "true" in rule else []
            yield ", ".join(parts), _text(model, mesh, micro_batch, rule, keeps=keeps)


def _text(model: str, mesh: Mapping[str, int], micro_batch: int, rule: str, *, keeps: bool) -> str:
    text = plain_text(model).replace("micro_batch = 1", f"micro_batch = {micro_batch}")
    sizes = "".join(f"  {name} = {size}\n" for name, size in mesh.items())
    text += f"mesh {{\n{sizes}}}\n"
    if mesh["pp"] > 1:
        text += "pipeline on pp {\n  schedule = one_f_one_b\n}\n"
    if rule:
        text += f"tensor_parallel on tp {{\n  {rule}\n}}\n"
    if mesh["dp_shard"] * mesh["cp"] > 1:
        replicated = "  replicate_on = dp_replicate\n" if mesh["dp_replicate"] > 1 else ""
        unit = "unit(reshard_after_forward = false)" if keeps else "unit"
        layers = "gpt_neox.layers" if model == "gpt_neox" else "model.layers"
        text += f'fsdp on dp_shard, cp {{\n{replicated}  "{layers}.*" -> {unit}\n}}\n'
    if mesh["cp"] > 1:
        text += (
            "context_parallel on cp {\n  rotate = allgather\n"
            '  ["input_ids", "labels", "position_ids"] -> Shard(1)\n}\n'
        )
    return text


def legal(model: str, folder: Path) -> Mapping[str, Graph]:
    """The graphs of all plans that the check accepts, by name."""
    found = {}
    for name, text in hand_made(model):
        checked = check_source(SourceFile("hand.plan", text), base=folder)
        if checked.graph is not None:
            found[name] = checked.graph
    return found


def tuned(model: str, folder: Path, peaks: Peaks) -> Proposal:
    """The plan that a search on the measured device puts first."""
    device = peaks.device(NUM_RANKS)
    # What planc has by name are GPUs; this one's shares are those of its own measured peaks.
    efficiency.EFFICIENCIES = {**efficiency.EFFICIENCIES, DEVICE: peaks.efficiencies}
    checked = check_source(SourceFile("plain.plan", plain_text(model)), base=folder)
    assert checked.bound is not None, checked.diagnostics
    inventory = checked.bound.inventory
    base = replace(
        base_of(checked.bound, tokens=SEQUENCES * SEQUENCE_LENGTH), may_chunk=False, may_compile=False
    )
    models = KnownModels(folder, cache_dir(), found={model: inventory})
    scorer = Scorer(base, inventory, device, NUM_RANKS)
    search = Search(base, models, folder, scorer, device, NUM_RANKS, NUM_RANKS)
    return search.proposals()[0]


class Timed(TorchBackend):
    """Notes when each step begins."""

    starts: list[float]

    def execute(self, op: Op, position: Position) -> None:
        if isinstance(op, NextBatch):
            self.starts.append(time.perf_counter())
        super().execute(op, position)


def timed_rank(rank: int, world_size: int, task: Task) -> list[float]:
    """The seconds of each step but the last."""
    backend = Timed(open_run(task, Observer()))
    backend.starts = []
    run(task.graph, backend, stop_after=task.stop_after)
    return [after - before for before, after in zip(backend.starts, backend.starts[1:], strict=False)]


def look_at(graph: Graph, folder: Path) -> float:
    """The seconds of a step, of a few."""
    return min(_slowest(graph, folder, num_steps=LOOK_STEPS + 1)[1:])


def seconds_of(graph: Graph, folder: Path) -> float:
    """The median seconds of a step, without the first ones."""
    return statistics.median(_slowest(graph, folder, num_steps=NUM_STEPS)[NUM_WARMUP:])


def _slowest(graph: Graph, folder: Path, *, num_steps: int) -> list[float]:
    """The seconds of each step but the last, of the rank that takes the longest."""
    with TemporaryDirectory(prefix="planc-measured-") as run_folder:
        task = Task(graph, folder, Path(run_folder), stop_after=num_steps)
        ranks = run_ranks(timed_rank, NUM_RANKS, task, init=False, quiet=True)
    return [max(seconds) for seconds in zip(*ranks, strict=True)]


@dataclass(frozen=True, slots=True)
class Result:
    """One model: the seconds of every plan, and those of the one that was put first."""

    model: str
    chosen: str
    seconds: float
    expected: float
    plans: Mapping[str, float]

    @property
    def fastest(self) -> str:
        return min(self.plans, key=self.plans.__getitem__)

    @property
    def ratio(self) -> float:
        """How many times as long the first plan takes as the fastest one."""
        return self.seconds / min(self.seconds, self.plans[self.fastest])


_FIRST = "put first"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is measured of a model's plans, by name: at the first look, and by round."""

    looks: dict[str, float]
    rounds: dict[str, list[float]]
    save: Callable[[], None]


def measure(model: str, folder: Path, peaks: Peaks, kept: Kept) -> Result:
    """Fills `kept` with what it does not have."""
    first = tuned(model, folder, peaks)
    assert first.checked.graph is not None
    # What was measured of another plan that was once put first does not count for this one.
    put_first = f"{_FIRST}, {plan_hash(first.checked.graph)[:12]}"
    graphs = {**legal(model, folder), put_first: first.checked.graph}
    for name in _shuffled(graphs, seed=NUM_ROUNDS):
        if name not in kept.looks:
            kept.looks[name] = look_at(graphs[name], folder)
            kept.save()
            print(f"{model}, {name}: {kept.looks[name]:.3f} s", flush=True)
    near = _within(FAR, {name: kept.looks[name] for name in graphs})
    for round_ in range(NUM_ROUNDS):
        for name in _shuffled(near, seed=round_):
            if len(kept.rounds.setdefault(name, [])) <= round_:
                kept.rounds[name].append(seconds_of(graphs[name], folder))
                kept.save()
                print(f"{model}, round {round_ + 1}, {name}: {kept.rounds[name][-1]:.3f} s", flush=True)
        near = _within(NEAR, {name: statistics.median(kept.rounds[name]) for name in near})
    plans = kept.looks | {name: statistics.median(found) for name, found in kept.rounds.items()}
    plans = {name: plans[name] for name in graphs}
    name = f"{first.choice.mesh.text}, {first.choice.text}"
    return Result(model, name, plans.pop(put_first), first.seconds, plans)


def _shuffled(names: Iterable[str], *, seed: int) -> list[str]:
    order = sorted(names)
    random.Random(seed).shuffle(order)
    return order


def _within(limit: float, seconds: Mapping[str, float]) -> list[str]:
    """The plans that take up to so many times the fastest, and the one that was put first."""
    least = min(seconds.values())
    return [name for name, one in seconds.items() if name.startswith(_FIRST) or one <= limit * least]


def report(results: list[Result]) -> Iterator[str]:
    """A row a model, as Markdown."""
    yield "| model | plans | put first | s a step | fastest | s a step | ratio | goal | |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in results:
        verdict = "met" if one.ratio <= GOAL else "MISSED"
        cells = (
            one.model,
            str(len(one.plans)),
            one.chosen,
            f"{one.seconds:.3f}, {one.expected:.3f} expected",
            one.fastest,
            f"{one.plans[one.fastest]:.3f}",
            f"{one.ratio:.3f}",
            f"<= {GOAL:.2f}",
            verdict,
        )
        yield f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    """The exit status: 0 if the goal is met for every model."""
    parser = argparse.ArgumentParser(prog="tests.tune.measured", description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--results", type=Path, default=Path("runs/measured.json"))
    options = parser.parse_args(arguments)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    start_server()
    kept = json.loads(options.results.read_text()) if options.results.exists() else {}

    def save() -> None:
        options.results.write_text(json.dumps(kept, indent=1), encoding="utf-8")

    with TemporaryDirectory(prefix="planc-models-") as name:
        folder = Path(name)
        for model in options.only:
            (folder / model).mkdir()
            (folder / model / "config.json").write_text(json.dumps(MODELS[model]), encoding="utf-8")
            save_inventory(folder / model)
        if "peaks" not in kept:
            kept["peaks"] = measured_peaks(NUM_RANKS).values
        peaks = Peaks(kept["peaks"])
        print(peaks.text, flush=True)
        results = [
            measure(one, folder, peaks, Kept(**kept.setdefault(one, {"looks": {}, "rounds": {}}), save=save))
            for one in options.only
        ]
    print("\n".join(report(results)))
    return int(any(one.ratio > GOAL for one in results))


if __name__ == "__main__":
    # Every rank imports the script that started it.
    from tests.tune import measured

    sys.exit(measured.main(sys.argv[1:]))
