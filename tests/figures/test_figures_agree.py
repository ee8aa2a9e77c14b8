"""Two views that print one figure print one number: of every plan that ships, in text and in JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planc.api import check_plan
from planc.cli.main import main
from planc.figures import needs
from planc.figures import plan as of_plan
from planc.figures.figure import Figure
from planc.graph.graph import Graph
from planc.plan.facts import facts
from planc.vocab import MeshDim
from tests.figures.views import Known, Recorder, View
from tests.plans import PLANS, TINY, canonical_plans, write_plan

QUICK = (
    *("quickstart", "launch-one-process", "launch-cp2-tp2", "launch-dp4", "launch-pp2-dp2"),
    *("gemma-3-1b", "llama-3.1-8b-64-gpus", "mixtral-8x7b-experts"),
)
CASES = [
    pytest.param(path, marks=() if path.stem in QUICK else pytest.mark.slow, id=path.stem)
    for path in canonical_plans()
]
PIPELINES = [case for case in CASES if "\npipeline on pp" in case.values[0].read_text(encoding="utf-8")]


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    """One for all tests, for it shows each plan once."""
    with pytest.MonkeyPatch.context() as patch:
        yield Recorder(patch)


def graph_of(path: Path) -> Graph:
    graph = check_plan(path).graph
    assert graph is not None
    return graph


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("path", CASES)
def test_all_views_of_a_plan_agree(path: Path, recorder: Recorder) -> None:
    found, views = recorder.known(path, of_graph=graph_of)
    assert found.disagreements == []
    assert {view.command: view.unregistered() for view in views if view.unregistered()} == {}
    assert len(found.values) > 15


@pytest.mark.parametrize("path", CASES)
def test_parts_add_up(path: Path, recorder: Recorder) -> None:
    """The peak is the sum of its parts, and so are collectives and bytes of theirs."""
    found, _ = recorder.known(path, of_graph=graph_of)
    for name in ("peak_memory", "collectives_per_step", "sent_bytes_per_step"):
        parts = [value for other, (value, _) in found.values.items() if other.startswith(f"{name}.")]
        assert sum(int(str(part)) for part in parts) == found.expected(name), name


COMPILE = """\
compile {
  backend = aot_eager
  "model.layers.*" -> region
}
"""
PAIRS = [
    *[("quickstart", "launch-tp4"), ("launch-dp4", "launch-fsdp4"), ("quickstart", "launch-cp2-tp2")],
    *[("llama-3.1-8b-64-gpus", "llama-3.1-8b-128-gpus"), ("mixtral-8x7b", "qwen3-30b-a3b")],
]


def bytes_of(figures: dict[str, object], prefix: str) -> int:
    return sum(int(str(value)) for name, value in figures.items() if name.startswith(prefix))


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_difference_has_the_figures_of_both_plans(old: str, new: str, recorder: Recorder) -> None:
    paths = [PLANS / f"{name}.plan" for name in (old, new)]
    sides = [recorder.known(path, of_graph=graph_of)[0] for path in paths]
    view = recorder.command("diff", *map(str, paths))
    strangers = [
        (figure.name, figure.value)
        for figure, _ in view.figures
        if figure.value not in [side.expected(figure.name) for side in sides]
    ]
    assert strangers == []
    assert view.unregistered() == []


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_the_parts_of_a_difference_add_up_to_the_peaks(old: str, new: str, recorder: Recorder) -> None:
    view = recorder.command("diff", *(str(PLANS / f"{name}.plan") for name in (old, new)))
    before, after = halves(view, "peak_memory.")
    (peak_before,), (peak_after,) = (one.values() for one in halves(view, "peak_memory", exactly=True))
    assert sum(before.values()) == peak_before
    assert sum(after.values()) == peak_after


def halves(view: View, name: str, *, exactly: bool = False) -> tuple[dict[str, int], dict[str, int]]:
    """A difference's figures of the old plan and of the new one: it writes each pair in this order."""
    sides: tuple[dict[str, int], dict[str, int]] = {}, {}
    count: dict[str, int] = {}
    for figure, _ in view.figures:
        if figure.name == name if exactly else figure.name.startswith(name):
            place = count.get(figure.name, 0)
            count[figure.name] = place + 1
            sides[place % 2][figure.name] = figure.count
    return sides


def test_units_that_stay_gathered_are_a_line_of_their_own(tmp_path: Path, recorder: Recorder) -> None:
    """`reshard_after_forward = false` makes the peak larger by gathered parameters, and says so."""
    edit = ("-> unit", "-> unit(reshard_after_forward = false)")
    paths = [
        write_plan(tmp_path, name=f"{number}.plan", text=TINY, edits=edits)
        for number, edits in enumerate(([], [edit]))
    ]
    view = recorder.command("diff", *map(str, paths))
    before, after = halves(view, "peak_memory.")
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    (was,), (now,) = (one.values() for one in halves(view, "peak_memory", exactly=True))
    assert "peak_memory.gathered parameters" in grown
    assert sum(grown.values()) == now - was > 0
    assert "gathered parameters" in view.text


def test_what_the_estimate_does_not_model_is_said_wherever_the_peak_is(
    tmp_path: Path, recorder: Recorder
) -> None:
    one = ("tp = 2", "tp = 1")
    text = TINY.replace("tensor_parallel on tp {\n  auto\n}\n\n", "")
    plain = write_plan(tmp_path, name="plain.plan", text=text, edits=[one])
    compiled = write_plan(tmp_path, name="compiled.plan", text=f"{text}\n{COMPILE}", edits=[one])
    for command in (("check",), ("estimate",), ("show", "--memory")):
        name, *options = command
        assert "compile is not modeled" in recorder.command(name, str(compiled), *options).text
        assert "not modeled" not in recorder.command(name, str(plain), *options).text
    assert "compile is not modeled" in recorder.command("diff", str(plain), str(compiled)).text


TIGHT = """
hardware {
  gpu = device(memory = 1 MiB)
}
"""
EXPECTING = """
expect {
  peak_memory < 1 MiB
}
"""


@pytest.mark.parametrize(
    ("block", "finding"),
    [
        (TIGHT, "{peak} of 1.00 MiB"),
        (TIGHT, ": {part}"),
        (EXPECTING, "peak_memory is {peak} ("),
    ],
)
def test_a_finding_has_the_figures_of_the_estimate(
    block: str, finding: str, tmp_path: Path, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    """P810 on a plan that does not fit, and P702 on an expectation that is broken."""
    plain = write_plan(tmp_path, name="plain.plan", text=TINY)
    figures = [figure for figure, _ in recorder.command("estimate", str(plain)).figures]
    (peak,) = {figure.text for figure in figures if figure.name == "peak_memory"}
    part = max(filter(is_part, figures), key=lambda figure: figure.count)
    assert main(["check", str(write_plan(tmp_path, name="tight.plan", text=TINY + block))]) == 1
    expected = finding.format(peak=peak, part=f"{part.name.partition('.')[2]} {part.text}")
    assert expected in " ".join(capsys.readouterr().out.split())


def is_part(figure: Figure) -> bool:
    return figure.name.startswith("peak_memory.")


@pytest.mark.parametrize("path", CASES)
def test_an_expectation_holds_a_plan_to_the_figures_that_are_shown(path: Path, recorder: Recorder) -> None:
    checked = check_plan(path)
    assert checked.plan is not None and checked.inventory is not None and checked.graph is not None
    found, _ = recorder.known(path, of_graph=graph_of)
    derived = facts(checked.plan, checked.inventory)
    names = ("world_size", "tokens_per_step", "gradient_accumulation", "total_tokens", "parameters")
    shown = {name: found.values[name][0] for name in names if name in found.values}
    assert shown == {name: derived[name] for name in names if name in derived}


@pytest.mark.parametrize("path", PIPELINES)
def test_a_figure_of_a_pipeline_is_that_of_the_pp_rank_with_the_most(path: Path, recorder: Recorder) -> None:
    found, _ = recorder.known(path, of_graph=graph_of)
    for name in ("parameters_per_rank", "peak_memory", "sent_bytes_per_step"):
        ranks = range(graph_of(path).size(MeshDim.PP))
        own = [int(str(found.expected(f"pp_rank_{rank}.{name}"))) for rank in ranks]
        assert found.expected(name) == max(own) > min(own), name


def test_an_unregistered_number_would_be_found() -> None:
    """The test of all views can fail: a number that no figure wrote, with a unit, or with commas."""
    figure = of_plan.parameters(1234)
    for text in ("47 modules divided over tp", "12.5 GiB", "8 fsdp units", "1,234 parameters"):
        assert View("x", text, ((figure, figure.text),)).unregistered()
    assert View("x", "1_234 parameters over 8 ranks", ((figure, figure.text),)).unregistered() == []


def test_a_figure_of_two_values_would_be_found() -> None:
    found = Known()
    for number in (30, 47):
        figure = of_plan.num_sharded_modules(number)
        found.add(View(f"view {number}", "", ((figure, figure.text),)))
    assert found.disagreements == ["modules_over_tp is 30 in view 30, and 47 in view 47"]


def test_a_rehearsal_counts_what_the_estimate_counts() -> None:
    assert needs.counted_collectives(3).name == "collectives_per_step"
