"""The expected speed of a step against runs that others published: `make estimate-accuracy`.

Every published row that a plan can say is here: dense models in bfloat16, without float8 or
asynchronous tensor parallelism, compiled layer by layer or not at all, with every setting stated. They were
run by torchtitan, llm-foundry and Megatron, not by planc. GPT and MPT are written as a Llama without gate and
rotary embedding. The rows are apart:

    fit     every second row of the catalogue, to which the fitted coefficients of
            planc/estimate/efficiency.py were fitted
    score   the catalogue's other rows
    test    all other bfloat16 rows of llm-foundry's tables

`--fit` fits them again, and prints them beside those that planc has.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from math import ceil, log
from pathlib import Path
from statistics import median

from planc.devices.hardware import DEVICES
from planc.estimate.bound import step_bound
from planc.estimate.efficiency import Efficiencies, efficiencies_of
from planc.estimate.estimate import estimate
from planc.estimate.expectation import expected_step, step_expectation
from planc.estimate.step_work import StepWork, step_work
from planc.lower import draft_graph
from planc.plan.bind import bind
from planc.plan.resolve import resolve
from planc.source import SourceFile
from planc.syntax.parse import parse
from tests.estimate.published import COMPILE, SEQUENCE_PARALLEL, Row, sized_inventory

ROWS = Path(__file__).with_name("published_speeds.csv")
CLOSE = 1.03
"""Two runs of one model on one device are a pair if their speeds differ by more than this factor."""
FITTED = ("matmul", "attention", "narrow_features", "exposed")
"""What is fitted, the first two for each generation of devices."""

TENSOR_PARALLEL = """tensor_parallel on tp {
  "model.embed_tokens" -> embedding_rowwise
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise
  "model.layers.*.self_attn.o_proj" -> rowwise
  "model.layers.*.mlp.up_proj" -> colwise
  "model.layers.*.mlp.down_proj" -> rowwise
  "lm_head" -> colwise(output = Shard(-1))
}
"""


@dataclass(frozen=True, slots=True)
class Score:
    """One row: tokens a second and device as published, expected with its interval, and bound."""

    row: Row
    published: float
    expected: float
    slow: float
    fast: float
    most: float

    @property
    def name(self) -> str:
        row = self.row
        shape = " ".join(f"{name} {row[name]}" for name in ("pp", "dp_shard", "tp") if row[name] != "1")
        kind = {"none": "", "every_second": ", every 2nd recomputed"}.get(row["recompute"], row["recompute"])
        kind = f", {kind} recomputation" if row["recompute"] in ("full", "selective") else kind
        compiled = ", compiled" if row["compiled"] == "1" else ""
        batch = f"{row['sequence']} x {row['local_batch']}"
        return f"{row['model']} on {row['device']}, {batch}, {shape}{kind}{compiled}"

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.expected / self.published - 1


@cache
def rows() -> tuple[Row, ...]:
    """Every published row."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def used_to(purpose: str) -> tuple[Row, ...]:
    return tuple(row for row in rows() if row["used_to"] == purpose)


def scores(chosen: Iterable[Row]) -> tuple[Score, ...]:
    """The rows with planc's expectation and bound."""
    return tuple(scored(row, work_of(row)) for row in chosen)


def scored(row: Row, step: StepWork, *, known: Efficiencies | None = None) -> Score:
    """A row with the expectation of planc's efficiencies, or of others."""
    device = DEVICES[row["device"]]
    expected, bound = step_expectation(step, device, known=known), step_bound(step, device)
    assert expected is not None and bound is not None, "the device's peaks are known"

    def speed(seconds: float) -> float:
        return step.tokens / step.world_size / seconds

    return Score(
        row,
        float(row["tokens_per_second"]),
        speed(expected.step_seconds),
        speed(expected.slow_seconds),
        speed(expected.fast_seconds),
        speed(bound.step_seconds),
    )


def work_of(row: Row) -> StepWork:
    """The work of a plan of the row."""
    file, problems = parse(SourceFile("row.plan", plan_of(row)))
    assert file is not None, problems
    plan, problems = resolve(file)
    assert plan is not None, problems
    inventory = sized_inventory(row, is_plain=row["trainer"] not in ("torchtitan", "nanotron"))
    graph = draft_graph(bind(plan, inventory))
    return step_work(graph, inventory, estimate(graph, inventory))


def plan_of(row: Row) -> str:
    """The row as a plan. Layers are FSDP units, resharded but for the last by default."""
    size = {name: int(row[name]) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp")}
    tokens = int(row["sequence"]) * int(row["local_batch"]) * int(row["accumulation"])
    tokens *= size["dp_replicate"] * size["dp_shard"]
    number = int(row["stages_per_rank"])
    schedule = f"interleaved(stages_per_rank = {number})" if number > 1 else "one_f_one_b"
    sharding = SEQUENCE_PARALLEL if row["sequence_parallel"] == "1" else TENSOR_PARALLEL
    return f"""model {{
  hf = "models/tiny-llama"
  dtype = {"float32" if size["dp_shard"] > 1 else "bfloat16"}
}}
mesh {{
  pp = {size["pp"]}
  dp_replicate = {size["dp_replicate"]}
  dp_shard = {size["dp_shard"]}
  cp = {size["cp"]}
  tp = {size["tp"]}
}}
{f"pipeline on pp {{ schedule = {schedule} }}" if size["pp"] > 1 else ""}
{sharding if size["tp"] > 1 else ""}
{_units(row) if size["dp_shard"] > 1 else ""}
{_recompute(row)}
{COMPILE if row["compiled"] == "1" else ""}
data {{
  source = python_stdlib()
  sequence_length = {row["sequence"]}
  micro_batch = {row["local_batch"]}
}}
optimizer {{ kind = adamw(lr = 1e-3) }}
train {{
  steps = 10
  tokens_per_step = {tokens}
}}
"""


def _units(row: Row) -> str:
    last = int(row["layers"]) - 1
    return f"""fsdp on dp_shard {{
  param_dtype = bfloat16
  reduce_dtype = {row["reduce_dtype"]}
  "model.layers.{{0..{last - 1}}}" -> unit(reshard_after_forward = {str(row["reshard"] != "never").lower()})
  "model.layers.{last}" -> unit(reshard_after_forward = false)
}}
"""


def _recompute(row: Row) -> str:
    if row["recompute"] == "none":
        return ""
    mode, layers = row["recompute"], "*"
    if mode == "every_second":
        mode, layers = "full", f"{{{','.join(map(str, range(0, int(row['layers']), 2)))}}}"
    return f"""activation_checkpoint {{
  "model.layers.{layers}" -> {mode}
}}
"""


def spearman(found: Iterable[Score]) -> float:
    """The correlation of the ranks of published and expected speeds."""
    pairs = [(score.published, score.expected) for score in found]
    ranks = [_ranks([pair[index] for pair in pairs]) for index in (0, 1)]
    number = len(pairs)
    squares = sum((first - second) ** 2 for first, second in zip(*ranks, strict=True))
    return 1 - 6 * squares / (number * (number**2 - 1))


def _ranks(values: list[float]) -> list[float]:
    """Equal values share the mean of their ranks."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


def pairs_in_order(found: Iterable[Score], *, up_to: float = float("inf")) -> tuple[int, int]:
    """Pairs of one model on one device whose order is right, and all of them; a tie is not in order."""
    right = number = 0
    for first, second in combinations(found, 2):
        ratio = first.published / second.published
        is_alike = all(first.row[name] == second.row[name] for name in ("model", "device"))
        if is_alike and CLOSE < max(ratio, 1 / ratio) <= up_to:
            number += 1
            right += (first.expected - second.expected) * (ratio - 1) > 0
    return right, number


def beaten(found: Iterable[Score]) -> tuple[Score, ...]:
    """Rows that ran faster than their bound."""
    return tuple(score for score in found if score.published > score.most)


def covered(found: tuple[Score, ...]) -> float:
    """The share of rows inside their interval."""
    return sum(score.slow <= score.published <= score.fast for score in found) / len(found)


def errors_of(found: Iterable[Score]) -> list[float]:
    return sorted(abs(score.error) for score in found)


@dataclass(frozen=True, slots=True)
class Fit:
    """Efficiencies by generation: those of A100, and those of all others."""

    ampere: Efficiencies
    others: Efficiencies

    def of(self, device: str) -> Efficiencies:
        return self.ampere if device.startswith("a100") else self.others

    def value(self, name: str, *, is_ampere: bool) -> float:
        found: float = getattr(self.ampere if is_ampere else self.others, name).expected
        return found

    def scaled(self, name: str, factor: float, *, generations: tuple[bool, ...]) -> Fit:
        changed = [
            replace(known, **{name: replace(one, expected=one.expected * factor)})
            if index in generations
            else known
            for index, known in ((True, self.ampere), (False, self.others))
            for one in (getattr(known, name),)
        ]
        return Fit(*changed)


def fit(chosen: Iterable[Row]) -> Fit:
    """The least sum of logarithmic errors, by coordinates, from shares that data sheets suggest."""
    steps = [(row, work_of(row)) for row in chosen]
    found = Fit(efficiencies_of("a100"), efficiencies_of("h100"))
    starts = {"matmul": (0.8, 0.62), "attention": (0.55, 0.38), "narrow_features": (100,) * 2}
    for name, values in {**starts, "exposed": (0.2, 0.2)}.items():
        for generation, value in zip((True, False), values, strict=True):
            factor = value / found.value(name, is_ampere=generation)
            found = found.scaled(name, factor, generations=(generation,))

    def loss(one: Fit) -> float:
        return sum(
            abs(
                log(
                    step.tokens
                    / step.world_size
                    / expected_step(step, DEVICES[row["device"]], one.of(row["device"])).step_seconds
                    / float(row["tokens_per_second"])
                )
            )
            for row, step in steps
        )

    for size in (1.2, 1.1, 1.05, 1.02):
        for _ in range(4):
            found = _descend(found, loss, size)
    return found


def _descend(found: Fit, loss: Callable[[Fit], float], size: float) -> Fit:
    """One round over all coefficients, each once up and once down."""
    alone = [(name, (generation,)) for name in FITTED[:2] for generation in (True, False)]
    for name, generations in (*alone, *((name, (True, False)) for name in FITTED[2:])):
        for factor in (size, 1 / size):
            other = found.scaled(name, factor, generations=generations)
            found = min((found, other), key=loss)
    return found


def report() -> Iterator[str]:
    """A line for each row of the catalogue, then every set's figures."""
    halves = {purpose: scores(used_to(purpose)) for purpose in ("fit", "score", "test")}
    yield f"{'tokens/s/device':<74}{'run':>8}{'expected':>10}{'':>8}{'interval':>18}{'at most':>9}"
    for purpose in ("fit", "score"):
        for score in halves[purpose]:
            interval = f"{score.slow:.0f} to {score.fast:.0f}"
            yield (
                f"{purpose:<6}{score.name:<68}{score.published:>8.0f}{score.expected:>10.0f}"
                f"{100 * score.error:>+6.0f} %{interval:>18}{score.most:>9.0f}"
            )
    catalogue = halves["fit"] + halves["score"]
    sets = {
        "fit": halves["fit"],
        "score": halves["score"],
        "catalogue": catalogue,
        "test": halves["test"],
        "every row": catalogue + halves["test"],
    }
    for name, found in sets.items():
        yield _summary(name, found)
    worst = sorted(catalogue + halves["test"], key=lambda score: -abs(score.error))[:6]
    yield "worst: " + "; ".join(f"{score.name} {100 * score.error:+.0f} %" for score in worst)


def _summary(name: str, found: tuple[Score, ...]) -> str:
    errors = errors_of(found)
    right, number = pairs_in_order(found)
    near, near_number = pairs_in_order(found, up_to=1.15)
    texts = (
        f"Spearman {spearman(found):.3f}",
        f"median error {100 * median(errors):.1f} %",
        f"nine of ten within {100 * errors[ceil(0.9 * len(errors)) - 1]:.1f} %",
        f"pairs in order {right} of {number}, of those that differ by up to 15 % {near} of {near_number}",
        f"in the interval {100 * covered(found):.0f} %",
        f"faster than the bound {len(beaten(found))}",
    )
    return f"{name}, {len(found)} rows: {', '.join(texts)}"


def fitted_report() -> Iterator[str]:
    """The coefficients as the fit finds them, and as planc has them."""
    found = fit(used_to("fit"))
    for name in FITTED:
        for device, is_ampere in (("a100", True), ("h100", False)):
            shipped = getattr(efficiencies_of(device), name).expected
            yield f"{name} of {device}: {found.value(name, is_ampere=is_ampere):.4g}, planc has {shipped}"


if __name__ == "__main__":
    print("\n".join(fitted_report() if "--fit" in sys.argv[1:] else report()))
