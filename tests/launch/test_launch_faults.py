"""One rank lacks memory, batches or a collective: it says so, the others name it, and all end in time."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.launch.faulty import run_faulty
from tests.parity.cases import Case, make_workspace, plan_text
from tests.patience import unhurried

TIMEOUT_SECONDS = unhurried(4)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("faults") / "workspace", ("llama",))
    path = folder / "two.plan"
    text = plan_text(Case("DP2", "", {"dp_shard": 2}), saves=False)
    path.write_text(text.replace("mesh {", f"mesh {{\n  timeout = {TIMEOUT_SECONDS} s", 1), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_rank_without_memory_ends_with_a_code_of_its_own_and_names_the_allocation(
    plan: Path, tmp_path: Path
) -> None:
    rank_0, rank_1 = run_faulty(plan, tmp_path, fault="starve 1 2 forward")
    assert rank_1.code == 8
    wanted = "out of memory in op `forward` (step 2, rank 1 (dp_shard 1)): could not allocate 268435456 bytes"
    assert wanted in rank_1.stderr
    assert "help: lower data.micro_batch" in rank_1.stderr
    assert rank_0.code == 6
    assert "rank 1 (" in rank_0.stderr
    assert (
        "failed: out of memory: could not allocate 268435456 bytes, in op `forward` at step 2"
        in rank_0.stderr
    )
    assert json.loads((tmp_path / "status.json").read_text())["exit_code"] == 6


@pytest.mark.slow
def test_a_batch_that_cannot_be_read_is_named_with_its_sequences(plan: Path, tmp_path: Path) -> None:
    rank_0, rank_1 = run_faulty(plan, tmp_path, fault="garble 1 2 batch.next")
    assert (rank_0.code, rank_1.code) == (6, 4)
    said = r"cannot read the batch of step \d on rank 1 \(sequences ([\d, ]+)\): TypeError"
    found = re.search(said, rank_1.stderr)
    assert found is not None, rank_1.stderr
    assert len(found[1].split(",")) == 4
    assert f"failed: {found[0]}" in rank_0.stderr


@pytest.mark.slow
def test_a_rank_that_skips_a_collective_is_told_with_where_both_stand(plan: Path, tmp_path: Path) -> None:
    outcomes = run_faulty(plan, tmp_path, fault="skip 1 2 grads.clip")
    assert [outcome.code for outcome in outcomes] == [6, 6]
    places = [re.search(r"in op `([a-z.]+)` \(step (\d), ", outcome.stderr) for outcome in outcomes]
    told = [re.search(r"help: rank [01] .*, in op `([a-z.]+)` at step (\d)", one.stderr) for one in outcomes]
    stood = [one.groups() if one else None for one in places]
    assert stood == [("grads.clip", "2"), ("metrics.reduce", "2")]
    assert [one.groups() if one else None for one in told] == stood[::-1]


@pytest.mark.slow
def test_a_rank_whose_collective_has_another_size_ends_the_other_which_is_named(
    plan: Path, tmp_path: Path
) -> None:
    # gloo ends a process that gets more than it asked for, and asks nobody.
    rank_0, rank_1 = run_faulty(plan, tmp_path, fault="skip 1 2 metrics.reduce")
    assert rank_0.code == -6
    assert rank_1.code == 6
    assert "in op `metrics.reduce` at step 2" in rank_1.stderr
