"""A run's first step sends the collectives that its graph predicts, or the run ends before it saves."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_source
from planc.graph.graph import Graph
from planc.runtime.compilers import unusable_inductor
from planc.runtime.errors import ExitCode
from planc.source import SourceFile
from tests.dist.first_steps import run_compared
from tests.parity.cases import (
    CP2_DP2,
    CP2_TP2,
    TP2_DP2,
    TP2_REPLICATE2,
    Case,
    compile_case,
    plan_text,
)
from tests.slow import slow_except

TP2 = {"tp": 2}
CP2 = {"cp": 2}
HSDP = {"dp_replicate": 2, "dp_shard": 2}
EACH, NARROW = (
    ("fsdp.reduce_every=micro_batch",),
    ("fsdp.param_dtype=bfloat16", "fsdp.reduce_dtype=float32"),
)
CASES = (
    Case("TP2", "sequence parallel", TP2),
    Case("TP2", "auto, accumulate", TP2, tensor_parallel="auto", micro_batch=4),
    Case("TP2·DP2", "accumulate, recompute", TP2_DP2, micro_batch=1, recomputes=True),
    Case("TP2·DP2", "257 rows", TP2_DP2, model="llama-uneven"),
    Case("DP4", "HSDP 2x2", HSDP, micro_batch=1),
    Case("DP2", "whole replicas", {"dp_replicate": 2}, replicas="whole"),
    Case("TP2·DP2", "whole replicas", TP2_REPLICATE2, replicas="whole"),
    Case("CP2·DP2", "ring", CP2_DP2, recomputes=True),
    Case("CP2", "allgather", CP2, rotate="allgather", recomputes=True, recomputation="selective"),
    Case("CP2·TP2", "ulysses", CP2_TP2, rotate="ulysses", balance="none"),
    Case("TP2·DP2", "loss chunks", TP2_DP2, micro_batch=2, settings=("train.loss_chunks=4",)),
    Case("TP2·DP2", "each micro-batch", TP2_DP2, micro_batch=2, settings=EACH),
    Case("TP2·DP2", "each micro-batch, two dtypes", TP2_DP2, micro_batch=2, settings=(*EACH, *NARROW)),
    Case("TP2·DP2", "two dtypes", TP2_DP2, micro_batch=2, settings=NARROW),
    Case("TP2", "experts", TP2, model="qwen3-moe", tensor_parallel="auto"),
)
COMPILED = (
    Case("TP2", "sequence parallel, selective", TP2, recomputes=True, recomputation="selective"),
    Case(
        "TP2·DP2",
        "auto, accumulate, recompute",
        TP2_DP2,
        tensor_parallel="auto",
        micro_batch=2,
        recomputes=True,
    ),
    Case("CP2", "ulysses", CP2, rotate="ulysses", balance="none"),
    Case("TP2", "offload", TP2, recomputes=True, recomputation="offload"),
    Case("TP2", "mlp alone, recompute", TP2, recomputes=True),
    Case("TP2", "mlp alone, offload", TP2, recomputes=True, recomputation="offload"),
    Case("TP2", "mlp alone, selective", TP2, recomputes=True, recomputation="selective"),
    Case("TP2", "self_attn alone, recompute", TP2, recomputes=True),
)


def compiled(case: Case, *, workspace: Path, backend: str) -> Graph:
    """The graph of a case whose layers are compiled, or that part of them which its name has."""
    part = f".{case.variant.partition(' alone')[0]}" if " alone" in case.variant else ""
    block = f'compile {{\n  backend = {backend}\n  "model.layers.*{part}" -> region\n}}\n'
    checked = check_source(SourceFile("compiled.plan", plan_text(case) + block), base=workspace)
    assert checked.graph is not None, checked.diagnostics
    return checked.graph


@pytest.mark.parametrize(
    "case",
    slow_except(CASES, "TP2 sequence parallel", "CP2·DP2 ring", name=lambda case: case.name),
    ids=lambda case: case.name,
)
def test_a_first_step_sends_what_is_predicted_and_the_second_is_not_counted(
    case: Case, workspace: Path, tmp_path: Path
) -> None:
    graph = compile_case(case, workspace=workspace)
    for one in run_compared(graph, workspace / case.model, tmp_path):
        assert (one.code, one.message, one.counted) == (None, "", (1,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    slow_except(COMPILED, "TP2 sequence parallel, selective", name=lambda case: case.name),
    ids=lambda case: case.name,
)
def test_compiled_modules_send_what_is_predicted(case: Case, workspace: Path, tmp_path: Path) -> None:
    graph = compiled(case, workspace=workspace, backend="aot_eager")
    for one in run_compared(graph, workspace / case.model, tmp_path):
        assert (one.code, one.message, one.counted) == (None, "", (1,))


@pytest.mark.skipif(unusable_inductor("cpu", os.environ) is not None, reason="inductor can't build")
@pytest.mark.parametrize(
    "case",
    slow_except(COMPILED, "TP2 mlp alone, recompute", name=lambda case: case.name),
    ids=lambda case: case.name,
)
def test_inductors_kernels_send_what_is_predicted(case: Case, workspace: Path, tmp_path: Path) -> None:
    """Inductor replaces collectives by those that reuse a buffer, which have other names."""
    graph = compiled(case, workspace=workspace, backend="inductor")
    for one in run_compared(graph, workspace / case.model, tmp_path):
        assert (one.code, one.message, one.counted) == (None, "", (1,))


def test_one_collective_more_ends_the_run_before_it_saves(workspace: Path, tmp_path: Path) -> None:
    case = replace(CASES[0], settings=("checkpoint.save_every=1 step",))
    graph = compile_case(case, workspace=workspace, saves=True)
    first, second = run_compared(graph, workspace / case.model, tmp_path, fault="one more")
    assert (first.code, first.saved) == (ExitCode.INTERNAL, ())
    assert second.code is ExitCode.INTERNAL
    assert first.message == (
        "step 1 did not send the collectives that its graph predicts: "
        "ranks 0, 1: all_reduce over tp of 12 bytes (0 predicted, 1 sent by forward)"
    )


def test_one_collective_fewer_ends_the_run(workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(CASES[0], workspace=workspace)
    first, _ = run_compared(graph, workspace / CASES[0].model, tmp_path, fault="no norm")
    assert first.code is ExitCode.INTERNAL
    assert first.message == (
        "step 1 did not send the collectives that its graph predicts: "
        "ranks 0, 1: all_reduce over tp of 8 bytes (2 predicted, 1 sent by metrics.reduce)"
    )


@pytest.mark.parametrize("every", slow_except((1, 2), "2"))
def test_a_log_that_no_prediction_has_ends_the_run_when_it_is_due(
    every: int, workspace: Path, tmp_path: Path
) -> None:
    case = replace(CASES[0], settings=(f"train.log_every={every} steps",))
    graph = compile_case(case, workspace=workspace)
    first, _ = run_compared(graph, workspace / case.model, tmp_path, fault="a log")
    assert first.code is ExitCode.INTERNAL
    # One value for memory, six for the phases, and a place for each rank.
    assert first.message == (
        f"step {every} did not send the collectives that its graph predicts: "
        "ranks 0, 1: all_reduce over tp of 72 bytes (0 predicted, 1 sent by log)"
    )


def test_gradients_that_nothing_sums_end_the_run(workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(CASES[0], workspace=workspace)
    first, _ = run_compared(graph, workspace / CASES[0].model, tmp_path, fault="no sync")
    assert first.message == (
        "step 1 did not send the collectives that its graph predicts: "
        "ranks 0, 1: all_reduce over tp of 1_280 bytes (1 predicted, 0 sent)"
    )


@pytest.mark.slow
def test_a_resumed_run_compares_its_own_first_step(workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(CASES[0], workspace=workspace, saves=True)
    for one in run_compared(graph, workspace / CASES[0].model, tmp_path, stop_after=3):
        assert one.saved == ("step-3",)
    first, _ = run_compared(graph, workspace / CASES[0].model, tmp_path, fault="one more", stop_after=6)
    assert first.message.startswith("step 4 did not send")
    assert (first.counted, first.saved) == ((4,), ("step-3",))


def test_a_step_whose_norm_was_measured_twice_is_passed_over(workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(CASES[0], workspace=workspace)
    for one in run_compared(graph, workspace / CASES[0].model, tmp_path, fault="huge gradients", since=2):
        assert (one.code, one.message, one.counted) == (None, "", (1, 2))


def test_a_rank_that_skips_the_check_agrees_with_those_that_do_not(workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(CASES[0], workspace=workspace)
    for one in run_compared(graph, workspace / CASES[0].model, tmp_path, fault="skipped on rank 1"):
        assert (one.code, one.message) == (None, "")
