"""Metrics and callbacks of a plan's own: tried before step 1, then called at their points of each mesh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from planc.extend import KINDS
from planc.extend.declarations import read_declarations
from planc.extend.decorators import POINTS, Stop
from planc.runtime.callbacks import Callback, Metric
from planc.runtime.errors import RunError
from planc.runtime.torch.extensions.trials import RefusedError
from planc.runtime.torch.reporting.reader_trials import Setting, try_callback, try_metric
from tests.own_code.by_hand import compiled, trained
from tests.plans import PLANS

SETTING = Setting(
    outline={"a.weight": ("float32", (6, 4)), "b.weight": ("bfloat16", (300, 300)), "c": ("float32", ())},
    frozen=frozenset({"c"}),
    device=torch.device("cpu"),
    plan="tried",
    mesh=(("dp_shard", 2), ("tp", 2)),
    world_size=4,
    labels=("held_out",),
)


def callback(ranks: str = "all", **methods: Callable[..., Any]) -> Callable[[], Callback]:
    return type("Tried", (Callback,), {"ranks": ranks, **methods})


def metric(function: Callable[..., Any]) -> Callable[[], Metric]:
    return lambda: Metric("tried", function, "mean")


class Reads(Callback):
    """Does all that a callback may do, and keeps what it sees."""

    ranks = "all"
    seen: ClassVar[list[list[str]]] = []

    def __init__(self) -> None:
        self.points: list[str] = []
        self.seen.append(self.points)

    def on_start(self, start: Any) -> None:
        assert start.is_trial and not [*start.directory.iterdir()]
        (start.directory / "notes").write_text("written where nothing is kept")
        self.folder = start.directory
        self.points.append("on_start")

    def on_gradients(self, step: Any) -> None:
        assert step.is_trial and step.gradient("c") is None
        assert step.gradient("b.weight").shape == (300, 300)
        assert not torch.equal(step.gradient("a.weight"), step.parameter("a.weight"))
        self.points.append(f"on_gradients {step.step}")

    def on_step(self, step: Any) -> Stop | None:
        step.parameter("a.weight").clone().zero_()
        self.points.append(f"on_step {step.step}")
        return Stop("the third") if step.step == 3 else None

    def on_evaluation(self, step: Any) -> None:
        assert [one.label for one in step.evaluations] == ["held_out"]
        self.points.append(f"on_evaluation {step.step}")


def test_a_callback_is_tried_at_all_points_that_have_values() -> None:
    made, shown = try_callback(Reads, SETTING)
    steps = [f"{point} {step}" for step in (1, 2, 3) for point in POINTS[1:4]]
    assert Reads.seen == [["on_start", *steps], ["on_start", *steps], []]
    assert isinstance(made, Reads) and not made.points and "writes to nothing that it reads" in shown
    assert not Reads.seen[2]


def test_gradients_of_a_trial_differ_from_step_to_step() -> None:
    norms: list[float] = []

    def norm(step: Any) -> Any:
        norms.append(step.gradient("a.weight").norm().item())
        return step.gradient("a.weight").norm()

    try_metric(metric(norm), SETTING)
    assert norms[:3] == norms[3:] and len({*norms}) == 3


class Counts:
    """Remembers steps in `self`, which a metric may."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, step: Any) -> float:
        self.number += 1
        return float(self.number)


def test_a_metric_may_remember_steps_in_itself_and_starts_with_none() -> None:
    made, _ = try_metric(lambda: Metric("counts", Counts(), "mean"), SETTING)
    assert made.function(None) == 1.0  # type: ignore[arg-type]


CALLS: list[int] = []


def writes(self: Any, step: Any) -> None:
    step.parameter("a.weight").mul_(0.5)


def writes_by_data(self: Any, step: Any) -> None:
    step.gradient("a.weight").data.zero_()


def collective(self: Any, step: Any) -> None:
    dist.all_reduce(torch.ones(1))


def drawn(self: Any, step: Any) -> Stop | None:
    return Stop("by chance") if step.step == int(torch.rand(()).item() < 0.5) + 1 else None


def outside(self: Any, step: Any) -> Stop | None:
    CALLS.append(1)
    return Stop("enough") if len(CALLS) == 5 else None


def half(self: Any, step: Any) -> None:
    torch.set_default_dtype(torch.float64)


WRONG_CALLBACKS: dict[str, tuple[Callable[[], Callback], str]] = {
    "writes": (
        callback(on_step=writes),
        r"wrote to a.weight, which it was given to read, in writes at .*:\d+ \(a",
    ),
    "writes by data": (callback(on_gradients=writes_by_data), "wrote to the gradient of a.weight"),
    "a tensor on rank 0": (callback("zero", on_step=writes), 'set `ranks = "all"`'),
    "a collective": (
        callback("zero", on_step=collective),
        r"calls a collective, c10d::allreduce_ at .*test_own_readers.py:\d+ in collective",
    ),
    "a gradient after the step": (callback(on_step=writes_by_data), "the optimizer uses them up"),
    "by chance": (callback(on_step=drawn), "asks to stop at other steps"),
    "kept outside": (callback(on_step=outside), "asks to stop at other steps"),
    "settings": (callback(on_step=half), "changes PyTorch's settings"),
    "an answer": (callback(on_step=lambda self, step: True), "on_step returned True"),
    "a missing name": (
        callback(on_step=lambda self, step: step.parameter("d")),
        r"raised KeyError at .*test_own_readers.py:\d+ in <lambda> .*no parameter d",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def group() -> Any:
    """A process group, as every run has one, so that a collective is called."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", WRONG_CALLBACKS)
def test_a_wrong_callback_is_refused_with_the_reason(name: str) -> None:
    make, reason = WRONG_CALLBACKS[name]
    with pytest.raises((RunError, RefusedError), match=reason):
        try_callback(make, SETTING)
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda step: torch.rand(()), "gives other numbers for the same steps"),
        (lambda step: CALLS.append(1) or len(CALLS), "gives other numbers for the same steps"),
        (lambda step: step.gradient("b.weight"), "returned Tensor"),
        (lambda step: step.gradient("a.weight").zero_().sum(), "wrote to the gradient of a.weight"),
        (lambda step: 1 / 0, r"raised ZeroDivisionError at .*test_own_readers.py:\d+ in <lambda>"),
    ],
    ids=["drawn", "kept outside", "a tensor", "writes", "raises"],
)
def test_a_wrong_metric_is_refused_with_the_reason(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises((RunError, RefusedError), match=reason):
        try_metric(metric(function), SETTING)


CODE = """\
from planc.extend import callback, metric


@callback("stops", ranks="all")
class Stops:
    def __init__(self, *, steps: int = 3): ...
    def on_step(self, step): ...
    def on_end(self, end): ...


@metric("norm", reduce="max")
def norm(step, *, parameter: str): ...
"""
FAULTS = [
    ('ranks="all"', 'ranks="some"', "one of its words", '`ranks = "zero"` and `ranks = "all"`'),
    ("on_step", "on_stop", "`on_stop` would never be called", "`on_gradients`, `on_step`"),
    ("on_step(self, step)", "on_step(self)", "`on_step` must take `self` and one", "the methods are"),
    ("on_end(self, end)", "on_end(self, end, loss)", "`on_end` must take `self` and one", "the methods are"),
    ("    def on_step(self, step): ...\n    def on_end(self, end): ...\n", "", "defines none", "on_start"),
    ("class Stops:", "def stops(step): ...\nclass Stops:", "a callback is a class", "the methods are"),
    ("(self, *, steps", "(self, steps", "takes nothing by position", "write `def __init__(self, *, ...)`"),
    ("norm(step, *, parameter", "norm(*, parameter", "takes `step` by position", "write `def norm(step, *"),
]


def test_points_and_ranks_are_read_from_the_syntax() -> None:
    (stops, norm), problems = read_declarations(CODE, kinds=KINDS)
    assert not problems
    assert (stops.methods, stops.options) == (("on_step", "on_end"), (("ranks", ("all",)),))
    assert (norm.methods, norm.options) == ((), (("reduce", ("max",)),))


@pytest.mark.parametrize(("old", "new", "text", "help"), FAULTS)
def test_wrong_declarations_are_refused_in_place(old: str, new: str, text: str, help: str) -> None:
    assert old in CODE
    _, (problem,) = read_declarations(CODE.replace(old, new), kinds=KINDS)
    assert text in problem.text and help in problem.help


READING = """\
from planc.extend import Stop, callback, metric


@metric("head_norm")
def head_norm(step):
    return step.gradient("lm_head.weight").norm()


@callback("twice", ranks="all")
class Twice:
    def on_step(self, step):
        return Stop("enough") if step.step == 2 and step.parameter("lm_head.weight").numel() else None
"""
PLAN = """\
extension "reading.py"
model { hf = "models/tiny-llama" }
mesh { dp_shard = 1 }
data { source = python_stdlib(), sequence_length = 64, micro_batch = 1 }
optimizer { kind = adamw(lr = 4e-3) }
train { steps = 4, tokens_per_step = 256, metrics = [head_norm], callbacks = [twice] }
"""
MESHES = {
    "one rank": (),
    "pp 2": ("mesh.pp=2",),
    "pp 2, tp 2": ("mesh.pp=2", "mesh.tp=2"),
    "dp_replicate 2": ("mesh.dp_replicate=2",),
}
TP, PP = "tensor_parallel on tp { auto }\n", "pipeline on pp { schedule = one_f_one_b }\n"


@pytest.mark.slow
def test_every_mesh_reads_the_same_tensors_and_stops_after_the_same_step(tmp_path: Path) -> None:
    """The head lies on the last stage alone, and over tp in parts."""
    (tmp_path / "models").symlink_to(PLANS / "models")
    (tmp_path / "reading.py").write_text(READING)
    norms = {}
    for name, settings in MESHES.items():
        path = tmp_path / f"{name}.plan"
        path.write_text(PLAN + TP * ("tp" in name) + PP * ("pp" in name))
        records = trained(compiled(path, *settings), base=tmp_path, folder=tmp_path / name)
        norms[name] = [step.custom["head_norm"] for step in records[0].metrics]
        assert records[0].metrics[-1].early_stop == "twice: enough"
    assert len(norms["one rank"]) == 2
    assert norms == {name: pytest.approx(norms["one rank"], rel=1e-5) for name in MESHES}
