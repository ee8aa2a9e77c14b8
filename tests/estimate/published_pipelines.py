"""The estimate's peak against published peaks of pipelines: `python -m tests.estimate.published_pipelines`.

Every published run with a pipeline that the catalogue has is here as a plan, also those without a peak: the
language has to express them. No run had planc's features exactly, so each row names what differs:

    float8, async TP    enter as bfloat16 and as tensor parallelism that waits
    ZeRO-1, distributed optimizer    enter as FSDP whose parameters and gradients stay whole in a step
    fused kernels       enter as transformers' eager modules, which keep more for backward
    a setting not stated    enters as the trainer's default

torchtitan's rows enter as they do in `tests.estimate.published`. Only those are comparable. Its
pipelines are those of torch.distributed.pipelining. They too keep parameters whole until a step's last
backward (`set_reshard_after_backward(False)` in its stage.py), and hold messages that planc does not hold: a
second figure counts them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

from planc.estimate.estimate import estimate
from planc.estimate.parts import message
from planc.graph.graph import Graph
from planc.graph.pipeline import pipeline_of
from planc.inventory.schema import Inventory
from planc.lower import draft_graph
from planc.pipelining.simulate import equal_step
from planc.plan.bind import bind
from planc.plan.resolve import resolve
from planc.source import SourceFile
from planc.syntax.parse import parse
from planc.vocab import MeshDim
from tests.estimate.published import SEQUENCE_PARALLEL, Row, sized_inventory
from tests.estimate.published_speed import TENSOR_PARALLEL

ROWS = Path(__file__).with_name("published_pipelines.csv")


@dataclass(frozen=True, slots=True)
class Score:
    """A row, the pp rank that needs the most by the estimate, and its peak in GiB."""

    row: Row
    pp_rank: int
    estimated_gib: float
    messages_gib: float
    """What torch.distributed.pipelining holds on that rank and planc does not."""

    @property
    def name(self) -> str:
        row = self.row
        mesh = " ".join(f"{name} {row[name]}" for name in ("pp", "dp_shard", "cp", "tp") if row[name] != "1")
        batch = f"{row['sequence']} x {row['micro_batch']} x {row['micro_batches']}"
        kind = {"none": "", "full": ", full", "selective": ", selective"}[row["recompute"]]
        return f"{row['trainer']} {row['model']}, {batch}, {mesh}, v {row['stages_per_rank']}{kind}"

    @property
    def error(self) -> float | None:
        """Relative, signed; None without a published peak."""
        return self.estimated_gib / float(self.row["peak_gib"]) - 1 if self.row["peak_gib"] else None

    @property
    def error_with_messages(self) -> float | None:
        """The error of the estimate and torch's messages together."""
        return self.error and self.error + self.messages_gib / float(self.row["peak_gib"])

    @property
    def is_comparable(self) -> bool:
        return self.row["trainer"] == "torchtitan"


@cache
def rows() -> tuple[Row, ...]:
    """Every published row with a pipeline."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def scored(row: Row) -> Score:
    graph, inventory = lowered(row)
    found = estimate(graph, inventory)
    assert found.place is not None, "the row has a pipeline"
    rank = found.place.pp_rank
    return Score(row, rank, found.memory.peak.num_bytes / 2**30, messages_of_torch(graph, rank) / 2**30)


def messages_of_torch(graph: Graph, rank: int) -> int:
    """Bytes that torch.distributed.pipelining holds on a pp rank and planc does not.

    Its `PipelineStage` makes a buffer for every micro batch's input, and one for the gradient of its output,
    before the first step, and keeps each output until its backward. planc holds an input until its backward,
    and the outputs that are under way.
    """
    pipeline = pipeline_of(graph)
    assert pipeline is not None, "the row has a pipeline"
    number, last = pipeline.num_micro_batches, pipeline.num_stages - 1
    in_flight = equal_step(pipeline.orders, num_stages=pipeline.num_stages).in_flight
    own = range(rank, pipeline.num_stages, int(graph.size(MeshDim.PP)))
    inputs = sum(number - in_flight[stage] for stage in own if stage > 0)
    outputs = sum(in_flight[stage] + number for stage in own if stage < last)
    return (inputs + outputs - pipeline.split.max_sends) * message(pipeline, 1).input_bytes


def lowered(row: Row) -> tuple[Graph, Inventory]:
    """The graph of a row's plan, and its model."""
    file, problems = parse(SourceFile("row.plan", plan_of(row)))
    assert file is not None, problems
    plan, problems = resolve(file)
    assert plan is not None, problems
    inventory = sized_inventory(row, is_plain=row["trainer"] == "Megatron")
    return draft_graph(bind(plan, inventory)), inventory


def plan_of(row: Row) -> str:
    """The row as a plan. Llama 3's trainer keeps layers gathered until their backward, others for a step."""
    tokens = int(row["sequence"]) * int(row["micro_batch"]) * int(row["micro_batches"]) * int(row["dp_shard"])
    number = int(row["stages_per_rank"])
    schedule = f"interleaved(stages_per_rank = {number})" if number > 1 else "one_f_one_b"
    keeps = row["trainer"] != "Llama 3"
    sharding = SEQUENCE_PARALLEL if row["sequence_parallel"] == "1" else TENSOR_PARALLEL
    if row["trainer"] == "Megatron":
        sharding = sharding.replace("{gate,up}_proj", "up_proj")
    return f"""model {{ hf = "models/tiny-llama" }}
mesh {{
  pp = {row["pp"]}
  dp_shard = {row["dp_shard"]}
  cp = {row["cp"]}
  tp = {row["tp"]}
}}
pipeline on pp {{ schedule = {schedule} }}
{sharding if row["tp"] != "1" else ""}
fsdp on dp_shard, cp {{
  param_dtype = bfloat16
  reduce_dtype = float32
  reshard_after_backward = {str(not keeps).lower()}
  "model.layers.*" -> unit(reshard_after_forward = false)
}}
context_parallel on cp {{
  rotate = allgather
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}}
activation_checkpoint {{
  "model.layers.*" -> {row["recompute"]}
}}
data {{
  source = python_stdlib()
  sequence_length = {row["sequence"]}
  micro_batch = {row["micro_batch"]}
}}
optimizer {{ kind = adamw(lr = 1e-3) }}
train {{
  steps = 10
  tokens_per_step = {tokens}
}}
"""


def mean_error(found: Iterable[Score]) -> float:
    """The mean absolute error of the rows with a published peak."""
    return mean(abs(score.error) for score in found if score.error is not None)


def report() -> Iterator[str]:
    """A line a row, and the mean errors."""
    found = tuple(map(scored, rows()))
    yield f"{'':<92}{'GiB':>7}{'estimated':>12}{'':>9}  differs"
    for score in found:
        error = "" if score.error is None else f"{100 * score.error:+.1f} %"
        published = score.row["peak_gib"] or "-"
        yield f"{score.name:<92}{published:>7}{score.estimated_gib:>12.2f}{error:>9}  {score.row['differs']}"
    comparable = tuple(score for score in found if score.is_comparable)
    for score in comparable:
        assert score.error_with_messages is not None, "torchtitan prints its peaks"
        more = f"{score.messages_gib:.2f} GiB of messages that torch holds"
        yield f"{score.name}: {100 * score.error_with_messages:+.1f} % with {more}"
    together = mean(abs(score.error_with_messages or 0.0) for score in comparable)
    yield f"comparable, with torch's messages: mean error {100 * together:.1f} %"
    for name, some in (("comparable", comparable), ("with a peak", found)):
        number = sum(score.error is not None for score in some)
        yield f"{name}, {number} rows: mean error {100 * mean_error(some):.1f} %"


if __name__ == "__main__":
    print("\n".join(report()))
