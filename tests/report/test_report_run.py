"""What a page takes from a run directory: also from one that is damaged, cut short, or of many ranks."""

from __future__ import annotations

import json
from pathlib import Path

from planc.report.run import read_run
from tests.report.conftest import Write
from tests.report.reading import read


def test_memory_by_rank_is_of_the_ranks_own_logs(run_folder: Path, write: Write) -> None:
    (run_folder / "logs").mkdir()
    for rank in (0, 1, 10):
        lines = [{"event": "started"}] + [
            {"event": "step", "memory_bytes": 2**20 * (rank + step)} for step in (7, 9, 8)
        ]
        text = "\n".join(map(json.dumps, lines)) + '\n{"event": "step", "memory_bytes": 99999999999'
        (run_folder / "logs" / f"rank-{rank}.jsonl").write_text(text)
    table = read(write("report", str(run_folder))).table("Peak memory by rank")
    assert table.rows == [["rank 0", "9.00 MiB"], ["rank 1", "10.00 MiB"], ["rank 10", "19.00 MiB"]]
    assert table.bars == [[9 * 2**20], [10 * 2**20], [19 * 2**20]]


def test_a_run_without_rank_logs_says_how_to_get_them(run_folder: Path, write: Write) -> None:
    assert "logging { per_rank = true }" in read(write("report", str(run_folder))).text


def test_damaged_lines_are_counted(run_folder: Path, write: Write) -> None:
    with (run_folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 61\n{"step": 62, "loss": 0.1, "grad_norm": "NaN"}\n{"step": 63, "lo')
    found = read(write("report", str(run_folder)))
    assert "metrics.jsonl has 1 line that can't be read" in found.text
    loss, grad_norm, *_ = found.curves
    assert loss["data"][0][-1] == 62
    assert grad_norm["data"][1][-1] is None
    assert grad_norm["data"][0][-1] == 62


def test_lines_with_other_values_than_numbers_are_damaged(run_folder: Path) -> None:
    with (run_folder / "metrics.jsonl").open("a") as file:
        for extra in (
            '"grad_norm": []',
            '"evaluations": 5',
            '"tokens_per_second": "Infinity"',
            '"memory_bytes": "x"',
        ):
            file.write(f'{{"step": 61, "loss": 1.0, {extra}}}\n')
    found = read_run(run_folder)
    assert found.num_damaged == 4
    assert found.logged["loss"][-1][0] == 60


def test_the_load_of_experts_has_a_picture(run_folder: Path, write: Write) -> None:
    """In equal shares of each layer: 25 of 4 experts' 100 tokens, 40 of 3 experts' 120."""
    with (run_folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 61, "loss": 1.0, "expert_load": {"a": [50, 0, 25, 25], "b": [40, 40, 40]}}\n')
        file.write('{"step": 62, "loss": 1.0, "expert_load": {"a": [25, 25, 25, 25], "b": [120, 60, 60]}}\n')
        file.write('{"step": 63, "loss": 1.0, "expert_load": [1]}\n')
    found = read_run(run_folder)
    assert found.experts == {"most used": ((61, 2.0), (62, 1.5)), "least used": ((61, 0.0), (62, 0.75))}
    assert found.num_damaged == 1
    assert "Load of experts" in read(write("report", str(run_folder))).text


def test_of_many_ranks_those_with_the_most_memory_are_drawn(run_folder: Path, write: Write) -> None:
    (run_folder / "logs").mkdir()
    for rank in range(100):
        line = {"event": "step", "memory_bytes": 2**20 * (rank * 37 % 100 + 1)}
        (run_folder / "logs" / f"rank-{rank}.jsonl").write_text(json.dumps(line) + "\n")
    table = read(write("report", str(run_folder))).table("Peak memory by rank")
    assert table.caption.endswith("; the 36 ranks with less omitted")
    assert [row[0] for row in table.rows] == [f"rank {rank}" for rank in range(100) if rank * 37 % 100 >= 36]


def test_a_run_that_has_not_begun_has_a_page(run_folder: Path, write: Write) -> None:
    (run_folder / "metrics.jsonl").unlink()
    (run_folder / "status.json").unlink()
    text = read(write("report", str(run_folder))).text
    assert "metrics.jsonl has no steps yet." in text
    assert "status.json is missing or invalid." in text


def test_a_step_without_labels_has_no_loss(run_folder: Path) -> None:
    with (run_folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 61, "loss": 0.0, "grad_norm": 0.0, "labels": 0}\n')
    found = read_run(run_folder)
    assert found.logged["loss"][-1][0] == 60
    assert found.logged["grad_norm"][-1] == (61, 0.0)


def test_a_run_whose_model_is_gone_shows_what_its_plan_holds(run_folder: Path, write: Write) -> None:
    plan = json.loads((run_folder / "plan.json").read_text())
    (run_folder / "plan.json").write_text(json.dumps({**plan, "base": "nowhere"}))
    found = read(write("report", str(run_folder)))
    assert "the model is not here" in found.text
    assert {"h2: Training", "h2: Mesh", "h2: Schedule"} <= set(found.outline)
    assert "h2: Memory" not in found.outline


def test_a_mixture_has_its_sources_as_curves_and_with_their_last_values(
    run_folder: Path, write: Write
) -> None:
    rare = ({"loss": None, "labels": 0, "tokens": 0, "epoch": 0.0}, {"loss": 4.5, "labels": 7, "tokens": 64})
    with (run_folder / "metrics.jsonl").open("a") as file:
        for step, (web, seldom) in enumerate(zip((3.25, 3.0), rare, strict=True), start=61):
            web_line = {"label": "web", "loss": web, "labels": 90, "tokens": 1_024, "epoch": step / 100}
            sources = [web_line, {"label": "<b>rare", **seldom}]
            file.write(json.dumps({"step": step, "loss": web, "sources": sources}) + "\n")
    page = read(write("report", str(run_folder)))
    assert page.table("Sources, with their last logged values").rows[1:] == [
        ["web", "3 at step 62", "90", "1_024", "0.62"],
        ["<b>rare", "4.5 at step 62", "7", "64", "0.00"],
    ]
    assert page.table("Loss by source").rows[1:] == [["61", "3.25"], ["62", "3", "4.5"]]
