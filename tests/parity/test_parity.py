"""Launch shapes against one process; the whole table is slow, and `make parity` prints it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.parity.cases import (
    ALL_8,
    CASES,
    CP2_DP2,
    TP2_DP2,
    TP2_REPLICATE2,
    Case,
)
from tests.parity.compare import Row, parity
from tests.parity.reference import Training, train_reference
from tests.parity.resume import pairs, resume_rows

References = Callable[[str], Training]

QUICK = (
    Case("1"),
    Case("TP2·DP2", "dp_replicate", TP2_REPLICATE2),
    Case("TP2·DP2", "whole replicas", TP2_REPLICATE2, micro_batch=2, replicas="whole"),
    Case("TP2·DP2", "qwen3 q/k norms", TP2_DP2, model="qwen3"),
    Case("CP2·DP2", "ulysses", CP2_DP2, rotate="ulysses", balance="none", micro_batch=2),
    Case("DP2·CP2·TP2", "ring headtail", ALL_8),
)
TP2 = Case("TP2", "", {"tp": 2})
CP2 = Case("CP2", "", {"cp": 2})
DP2 = Case("DP2", "", {"dp_shard": 2})


@pytest.fixture(scope="module")
def reference(workspace: Path) -> References:
    return cache(lambda model: train_reference(model, workspace=workspace))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_a_mesh_trains_as_one_process(case: Case, workspace: Path, reference: References) -> None:
    row = parity(case, workspace=workspace, reference=reference(case.model))
    assert row.problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_mesh_trains_as_one_process(case: Case, workspace: Path, reference: References) -> None:
    row = parity(case, workspace=workspace, reference=reference(case.model))
    assert row.problems == ()


def with_fault(fault: str, case: Case, *, workspace: Path, reference: References) -> Row:
    return parity(case, workspace=workspace, reference=reference(case.model), fault=fault)


def test_a_norm_whose_gradient_is_not_reduced_fails_though_its_first_losses_agree(
    workspace: Path, reference: References
) -> None:
    row = with_fault("norm_gradients_not_reduced", TP2, workspace=workspace, reference=reference)
    assert row.loss_error < 1e-4
    assert row.gradient_error > 0.1
    assert "layernorm" in row.worst_parameter
    assert any("has a different gradient" in problem for problem in row.problems)


def test_labels_shifted_after_sharding_fail(workspace: Path, reference: References) -> None:
    row = with_fault("labels_shifted_after_sharding", CP2, workspace=workspace, reference=reference)
    assert any(problem.startswith("loss differs") for problem in row.problems)


def test_replicas_that_drift_fail_though_loss_and_gradients_agree(
    workspace: Path, reference: References
) -> None:
    row = with_fault("replicas_drift", TP2, workspace=workspace, reference=reference)
    assert row.problems == ("rank 1 has a different final model.norm.weight []",)


def test_a_run_resumes_bit_for_bit_on_its_mesh_and_closely_on_another(
    workspace: Path, reference: References
) -> None:
    rows = resume_rows(TP2, (TP2, DP2), workspace=workspace, reference=reference("llama"))
    assert [row.problems for row in rows] == [(), ()]
    assert rows[0].same_bits


@pytest.mark.slow
@pytest.mark.parametrize(("saver", "loaders"), pairs(), ids=lambda value: getattr(value, "name", ""))
def test_every_mesh_resumes_on_itself_and_on_every_other(
    saver: Case, loaders: tuple[Case, ...], workspace: Path, reference: References
) -> None:
    rows = resume_rows(saver, loaders, workspace=workspace, reference=reference(saver.model))
    assert [row.problems for row in rows] == [()] * len(loaders)
