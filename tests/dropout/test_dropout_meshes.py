"""Every mesh drops what one process drops, against transformers and torch alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from planc.api import check_source
from planc.source import SourceFile
from tests.dist.pool import run_ranks
from tests.dropout.cases import Case, errors, expected, prepare, ranks_of
from tests.dropout.reference import Trained
from tests.parity.ranks import Record, Task, train_rank

LIMIT = 1e-12
"""Relative, in float64, where a wrong mask is off by some hundredths."""

LAYERS = "transformer.h"
TP = "tensor_parallel on tp {\n  auto\n}\n"
SEQUENCE = "tensor_parallel on tp {\n  auto(sequence_parallel = true)\n}\n"
WEIGHTS = ("attn_pdrop",)
"""Attention weights, which no mesh with shards of sequences drops."""


def fsdp(over: str = "dp_shard", more: str = "") -> str:
    return f'fsdp on {over} {{\n{more}  "{LAYERS}.*" -> unit\n}}\n'


def recomputed(mode: str) -> str:
    return f'activation_checkpoint {{\n  "{LAYERS}.*" -> {mode}\n}}\n'


def context(rotate: str, balance: str, on: str = "cp") -> str:
    return (
        f"context_parallel on {on} {{\n  rotate = {rotate}\n  load_balancer = {balance}\n"
        '  "input_ids" -> Shard(1)\n  "labels" -> Shard(1)\n  "position_ids" -> Shard(1)\n}\n'
    ) + fsdp(on)


def staged(schedule: str) -> str:
    return f"pipeline on pp {{\n  schedule = {schedule}\n}}\n"


COMPILED = f'compile {{\n  backend = aot_eager\n  "{LAYERS}.*" -> region\n}}\n'
ONE = Case("one process")
QUICK = (
    ONE,
    Case("one sequence at a time, recomputed", blocks=recomputed("full"), micro_batch=1),
    Case("tp", {"tp": 2}, TP),
    Case("sequence parallel", {"tp": 2}, SEQUENCE, attention="sdpa", without=WEIGHTS),
    Case("cp headtail", {"cp": 2}, context("ring", "headtail"), attention="sdpa", without=WEIGHTS),
    Case("replicas", {"dp_replicate": 2}, micro_batch=3),
    Case(
        "interleaved stages, recomputed",
        {"pp": 2},
        staged("interleaved(stages_per_rank = 2)") + recomputed("full"),
        model="gpt2-untied",
        micro_batch=1,
    ),
)
SLOW = (
    Case("stages", {"pp": 2}, staged("gpipe") + recomputed("selective"), model="gpt2-untied", micro_batch=1),
    Case("stages and tp", {"pp": 2, "tp": 2}, staged("one_f_one_b") + TP, model="gpt2-untied"),
    Case("tp 4", {"tp": 4}, TP),
    Case("tp, recomputed", {"tp": 2}, TP + recomputed("full")),
    Case("tp, selectively recomputed", {"tp": 2}, TP + recomputed("selective")),
    Case("fsdp", {"dp_shard": 2}, fsdp(), micro_batch=1),
    Case("fsdp and tp", {"dp_shard": 2, "tp": 2}, TP + fsdp(), micro_batch=3),
    Case("fsdp 3 and tp", {"dp_shard": 3, "tp": 2}, TP + fsdp(), micro_batch=1),
    Case("sequence parallel, recomputed", {"tp": 2}, SEQUENCE + recomputed("full")),
    Case("sequence parallel 4", {"tp": 4}, SEQUENCE, attention="sdpa", without=WEIGHTS),
    Case("cp", {"cp": 2}, context("allgather", "none"), attention="sdpa", without=WEIGHTS),
    Case("cp ulysses", {"cp": 2}, context("ulysses", "none"), attention="sdpa", without=WEIGHTS),
    Case("cp 4", {"cp": 4}, context("ring", "headtail"), attention="sdpa", without=WEIGHTS),
    Case(
        "cp and sequence parallel",
        {"cp": 2, "tp": 2},
        SEQUENCE + context("allgather", "headtail"),
        attention="sdpa",
        without=WEIGHTS,
    ),
    Case("compiled", blocks=COMPILED),
    Case("compiled over tp, recomputed", {"tp": 2}, TP + recomputed("full") + COMPILED),
    Case("opt", model="opt"),
    Case("opt over tp", {"tp": 2}, TP, model="opt"),
    Case("opt over dp", {"dp_replicate": 2}, model="opt", micro_batch=1),
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], tuple[Path, Trained]]:
    """The folder of a case's model, and what one process makes of it; each model is trained once."""
    known: dict[tuple[str, tuple[str, ...]], tuple[Path, Trained]] = {}

    def find(case: Case) -> tuple[Path, Trained]:
        key = case.model, case.without
        if key not in known:
            folder = tmp_path_factory.mktemp(case.model)
            prepare(case.config, folder)
            known[key] = folder, expected(folder)
        return known[key]

    return find


Reference = Callable[[Case], tuple[Path, Trained]]


def require_parity(case: Case, reference: Reference) -> None:
    folder, trained = reference(case)
    found = errors(ranks_of(case, folder), trained)
    assert {name: error for name, error in found.items() if not error <= LIMIT} == {}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_a_mesh_drops_what_one_process_drops(case: Case, reference: Reference) -> None:
    require_parity(case, reference)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_every_mesh_drops_what_one_process_drops(case: Case, reference: Reference) -> None:
    require_parity(case, reference)


def test_the_reference_drops_in_every_module(reference: Reference) -> None:
    _, trained = reference(ONE)
    layers = [f"transformer.h.{layer}.{name}" for layer in (0, 1) for name in ("attn", "attn.resid_dropout")]
    assert {"transformer.drop", *layers} <= trained.num_dropped.keys()


def test_another_seed_drops_something_else(reference: Reference) -> None:
    folder, trained = reference(ONE)
    text = ONE.plan(dtype="float64").replace("seed = 7", "seed = 8", 1)
    (record,) = _run(text, folder)
    assert errors([record], trained)["gradient"] > 1e-2


def test_nothing_is_dropped_without_dropout(reference: Reference, tmp_path: Path) -> None:
    """`dropout = false` trains as a config.json whose rates are 0."""
    folder, _ = reference(ONE)
    text = ONE.plan(dtype="float64")
    (without,) = _run(text.replace("model {", "model {\n  dropout = false"), folder)
    rates = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    prepare(replace(ONE, without=rates).config, tmp_path)
    (other,) = _run(text, tmp_path)
    assert [one.loss for one in without.metrics] == [one.loss for one in other.metrics]
    assert without.blocks == other.blocks


def test_a_resumed_run_drops_what_it_would_have_dropped(reference: Reference) -> None:
    """Also on another mesh."""
    folder, trained = reference(ONE)
    saved = "checkpoint {\n  save_every = 1 steps\n  keep_last = 3\n}\n"
    with TemporaryDirectory(prefix="planc-dropout-") as name:
        run = Path(name)
        _run(ONE.plan(dtype="float64") + saved, folder, run=run, stop_after=1)
        resumed = Case("tp", {"tp": 2}, TP).plan(dtype="float64") + saved
        records = _run(resumed, folder, run=run, world_size=2)
    losses = [one.loss for one in records[0].metrics]
    assert records[0].first_step == 2
    assert losses == pytest.approx(trained.losses[1:], rel=LIMIT)


def test_an_evaluation_drops_nothing(reference: Reference) -> None:
    folder, _ = reference(ONE)
    evaluated = ONE.plan(dtype="float64").replace(
        "  shuffle_seed",
        '  eval "held_out" {\n    source = text("corpus.txt")\n    every = 1 steps\n  }\n  shuffle_seed',
        1,
    )
    still = evaluated.replace("lr = 0.01", "lr = 1e-30", 1)
    quiet = still.replace("model {", "model {\n  dropout = false", 1)
    (dropping,), (other,) = _run(still, folder), _run(quiet, folder)
    assert [one.loss for one in dropping.metrics] != [one.loss for one in other.metrics]
    found = [[one.loss for one in step.evaluations] for step in dropping.metrics]
    assert found == [[one.loss for one in step.evaluations] for step in other.metrics]
    assert all(found)


def _run(
    text: str, folder: Path, *, run: Path | None = None, world_size: int = 1, stop_after: int | None = None
) -> list[Record]:
    found = check_source(SourceFile("dropout.plan", text), base=folder)
    assert found.graph is not None, found.diagnostics
    with TemporaryDirectory(prefix="planc-dropout-") as name:
        task = Task(found.graph, folder, run or Path(name), stop_after=stop_after)
        return run_ranks(train_rank, world_size, task, init=False)
