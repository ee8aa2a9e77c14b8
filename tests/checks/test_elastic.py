"""Plans that may run on smaller meshes."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.cli.main import main
from planc.diff.side import Side
from planc.graph.ops import Accumulate
from planc.launchers.job import Endpoint, Nodes, Shrinking, job_of
from planc.launchers.torchrun import torchrun_lines
from planc.source import SourceFile

BASE = Path(__file__).parents[2] / "plans"
ELASTIC = """
model {{ hf = "models/tiny-llama" }}
mesh {{ dp_replicate = {replicas}, dp_shard = 2 }}
fsdp on dp_shard {{
  replicate_on = dp_replicate
  "model.layers.*" -> unit
}}
data {{
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 4
}}
optimizer {{ kind = adamw(lr = 1e-3) }}
train {{
  steps = 20
  tokens_per_step = {tokens}
}}
checkpoint {{ save_every = 5 steps }}
elastic on dp_replicate {{ sizes = {sizes} }}
"""
TOKENS = 4 * 2 * 4 * 256


def check(
    *, replicas: int = 4, tokens: int = TOKENS, sizes: str = "[2, 1]", world_size: int | None = None
) -> Checked:
    text = ELASTIC.format(replicas=replicas, tokens=tokens, sizes=sizes)
    return check_source(SourceFile("elastic.plan", text), base=BASE, world_size=world_size)


@pytest.mark.parametrize(("started", "runs", "accumulation"), [(8, 8, 1), (4, 4, 2), (2, 2, 4)])
def test_a_launch_runs_the_mesh_that_it_fills_with_the_tokens_of_a_step_kept(
    started: int, runs: int, accumulation: int
) -> None:
    graph = check(world_size=started).graph
    assert graph is not None
    assert graph.world_size == runs
    accumulate = Side("x", graph).op(Accumulate)
    assert accumulate is not None and accumulate.times == accumulation


@pytest.mark.parametrize(("started", "runs"), [(7, 4), (6, 4), (3, 2)])
def test_ranks_that_fill_no_mesh_are_left_over(started: int, runs: int) -> None:
    graph = check(world_size=started).graph
    assert graph is not None
    assert graph.world_size == runs


@pytest.mark.parametrize("started", [1, 9])
def test_a_launch_that_no_mesh_is_for_is_refused_with_all_that_would_do(started: int) -> None:
    (finding,) = check(world_size=started).diagnostics
    assert finding.code.code == "P301"
    assert finding.help is not None and finding.help.startswith("start 8 or 4 or 2 ranks")


def test_a_smaller_mesh_that_breaks_a_rule_is_an_error_of_the_plan() -> None:
    checked = check(tokens=3 * 2 * 4 * 256, replicas=3, sizes="[2]")
    (finding,) = checked.diagnostics
    assert finding.code.code == "P701"
    assert "a smaller mesh that `elastic` allows" in finding.notes[-1]
    assert checked.graph is None


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (
            Nodes(4, 2),
            "--nnodes 1:4 --nproc-per-node 2 --shutdown-timeout 600 --max-restarts 3 --rdzv-backend c10d",
        ),
        (Nodes(1, 8), "--standalone --nproc-per-node 8 --shutdown-timeout 600 --max-restarts 3"),
    ],
)
def test_torchrun_may_go_on_with_fewer_nodes(form: Nodes, words: str) -> None:
    endpoint = Endpoint("node0", 29500) if form.num_nodes > 1 else None
    job = job_of("llama", nodes=form, run=("llama.plan",), shrinking=Shrinking(1, 3))
    lines = torchrun_lines(job, endpoint=endpoint)
    assert len(lines) == form.num_nodes
    assert all(words in line for line in lines)


def test_a_difference_in_what_a_run_may_shrink_to_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, sizes in (("old", "[2]"), ("new", "[2, 1]")):
        text = ELASTIC.format(replicas=4, tokens=TOKENS, sizes=sizes)
        text = text.replace("models/tiny-llama", str(BASE / "models" / "tiny-llama"))
        (tmp_path / f"{name}.plan").write_text(text, encoding="utf-8")
    main(["diff", str(tmp_path / "old.plan"), str(tmp_path / "new.plan")])
    assert "dp_replicate may be 2 -> dp_replicate may be 2, 1" in capsys.readouterr().out


@pytest.mark.parametrize("saving", ["save_every = 30 steps", "save_every = 30 steps\n  save_last = false"])
def test_an_elastic_run_that_saves_too_late_is_one_finding(saving: str) -> None:
    text = ELASTIC.format(replicas=4, tokens=TOKENS, sizes="[2]").replace("save_every = 5 steps", saving)
    (finding,) = check_source(SourceFile("elastic.plan", text), base=BASE).diagnostics
    assert finding.code.code == "P311"
    assert finding.help == "set `save_every` to less than 20 steps"
