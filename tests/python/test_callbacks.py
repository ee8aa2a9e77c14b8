"""Callbacks and metrics of a program, on one rank: when they are called, what they get, what they may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import planc
from planc.runtime.checkpoint_format.layout import committed_steps
from planc.runtime.trackers.tracker import values_of

SGD = ["optimizer.kind=sgd(lr = 0.5)"]
WEIGHT = "model.layers.0.self_attn.q_proj.weight"


def run(plan: Path, *callbacks: planc.Callback, **options: Any) -> planc.RunResult:
    return planc.run(plan, run_dir=plan.parent / "run", callbacks=callbacks, quiet=True, **options)


class Recorder(planc.Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def on_start(self, start: planc.Start) -> None:
        self.seen.append(
            ("start", start.first_step, start.num_steps, start.plan, start.rank, start.world_size)
        )

    def on_gradients(self, step: planc.StepView) -> None:
        self.seen.append(("gradients", step.step))

    def on_step(self, step: planc.StepView) -> None:
        self.seen.append(("step", step.step, step.figures))

    def on_log(self, metrics: planc.StepMetrics) -> None:
        self.seen.append(("log", metrics.step, metrics.loss))

    def on_save(self, checkpoint: Path) -> None:
        self.seen.append(("save", checkpoint.name))

    def on_end(self, end: planc.End) -> None:
        self.seen.append(("end", end.step, end.num_steps))


def test_every_point_comes_in_the_order_of_a_step(plan: Path) -> None:
    recorder = Recorder()
    result = run(plan, recorder, overrides=["train.steps=2"])
    points = [entry[:2] for entry in recorder.seen]
    steps = [(point, step) for step in (1, 2) for point in ("gradients", "step", "log")]
    assert points == [("start", 1), *steps, ("save", "step-2"), ("end", 2)]
    logged = [(entry[1], entry[2]) for entry in recorder.seen if entry[0] == "log"]
    assert logged == list(result.losses)
    assert [(entry[1], entry[2].loss) for entry in recorder.seen if entry[0] == "step"] == logged


def test_a_run_that_is_read_is_the_run_that_is_not(plan: Path, tmp_path: Path) -> None:
    class Reads(planc.Callback):
        def on_gradients(self, step: planc.StepView) -> None:
            torch.rand(3)
            for name in step.parameter_names:
                step.gradient(name)
                step.parameter(name)

    read = run(plan, Reads(), overrides=["train.steps=3"])
    alone = planc.run(plan, run_dir=tmp_path / "alone", overrides=["train.steps=3"], quiet=True)
    assert read.losses == alone.losses
    files = [one.directory / "checkpoints" / "step-3" for one in (read, alone)]
    tensors = [sorted(folder.glob("*.safetensors")) for folder in files]
    assert [path.read_bytes() for path in tensors[0]] == [path.read_bytes() for path in tensors[1]] != []


def test_gradients_are_what_sgd_subtracts(plan: Path) -> None:
    class Compares(planc.Callback):
        def on_gradients(self, step: planc.StepView) -> None:
            self.before, self.gradient = step.parameter(WEIGHT), step.gradient(WEIGHT)

        def on_step(self, step: planc.StepView) -> None:
            after = step.parameter(WEIGHT)
            torch.testing.assert_close(after, self.before - 0.5 * self.gradient)
            assert not torch.equal(after, self.before)
            self.after = after

    compares = Compares()
    settings = [*SGD, "train.steps=2", "optimizer.clip_grad_norm=none", "optimizer.schedule=constant"]
    result = run(plan, compares, overrides=settings)
    assert result.checkpoint is not None
    tensors = [load_file(path).items() for path in result.checkpoint.glob("*.safetensors")]
    saved = [one for items in tensors for name, one in items if name.startswith(f"model.{WEIGHT}")]
    assert len(saved) == 1 and torch.equal(saved[0], compares.after)


@pytest.mark.parametrize("point", ["on_gradients", "on_step", "on_log", "on_save"])
def test_a_callback_ends_the_run_after_its_step_and_everything_is_saved(plan: Path, point: str) -> None:
    def ask(self: planc.Callback, value: object) -> planc.Stop | None:
        step = getattr(value, "step", 2)
        return planc.Stop("enough") if step == 2 else None

    asks = type("Asks", (planc.Callback,), {point: ask})()
    every = ["checkpoint.save_every=2 steps"] if point == "on_save" else []
    result = run(plan, asks, overrides=every)
    assert (result.state, result.code, result.last_step) == ("stopped", 0, 2)
    assert committed_steps(result.directory / "checkpoints") == (2,)
    assert [step for step, _ in result.losses] == [1, 2]


def test_what_a_callback_raises_names_it_its_step_and_its_rank(plan: Path) -> None:
    class Breaks(planc.Callback):
        def on_step(self, step: planc.StepView) -> None:
            if step.step == 3:
                raise LookupError("no such thing")

    line = Breaks.on_step.__code__.co_firstlineno + 2
    with pytest.raises(planc.RunError) as caught:
        run(plan, Breaks())
    assert caught.value.message == (
        f"callback Breaks raised LookupError at {__file__}:{line} in on_step (step 3, rank 0): no such thing"
    )
    assert caught.value.code is planc.ExitCode.INPUT and isinstance(caught.value.__cause__, LookupError)
    status = json.loads((plan.parent / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["error"]) == ("failed", 2, caught.value.message)


@pytest.mark.parametrize("what", ["parameter", "gradient"])
def test_a_callback_that_writes_is_refused_in_the_first_step(plan: Path, what: str) -> None:
    class Writes(planc.Callback):
        def on_gradients(self, step: planc.StepView) -> None:
            getattr(step, what)(WEIGHT).mul_(0)

    with pytest.raises(
        planc.RunError, match=rf"Writes wrote to (the gradient of )?{WEIGHT}, .* \(step 1, rank 0\)"
    ):
        run(plan, Writes())
    assert not (plan.parent / "run" / "metrics.jsonl").exists()


def test_gradients_are_gone_after_the_optimizers_step(plan: Path) -> None:
    class Late(planc.Callback):
        def on_step(self, step: planc.StepView) -> None:
            step.gradient(WEIGHT)

    with pytest.raises(planc.RunError, match="only on_gradients and metrics have gradients"):
        run(plan, Late())


def test_metrics_join_the_lines_of_logged_steps_and_trackers(plan: Path) -> None:
    calls: list[int] = []

    @planc.metric(reduce="mean")
    def weight_norm(step: planc.StepView) -> float:
        calls.append(step.step)
        norm: float = step.parameter(WEIGHT).norm()  # a tensor of one element serves, too
        return norm

    logged: list[planc.StepMetrics] = []

    class Keeps(planc.Callback):
        def on_log(self, metrics: planc.StepMetrics) -> None:
            logged.append(metrics)

    result = run(plan, Keeps(), metrics=[weight_norm], overrides=["train.log_every=3 steps"])
    lines = result.metrics
    assert calls == [line["step"] for line in lines] == [3, 6]
    assert [line["custom"]["weight_norm"] for line in lines] == [one.custom["weight_norm"] for one in logged]
    assert len({line["custom"]["weight_norm"] for line in lines}) == 2
    assert values_of(logged[0])["custom/weight_norm"] == lines[0]["custom"]["weight_norm"]


def test_a_metric_that_is_nan_is_left_out_and_said_once(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = planc.Metric("nothing", lambda step: float("nan"), "max")
    result = planc.run(plan, run_dir=plan.parent / "run", metrics=[nothing], overrides=["train.steps=2"])
    assert all("custom" not in line for line in result.metrics)
    assert capsys.readouterr().out.count("metric nothing is nan, and left out") == 1


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda step: step.parameter(WEIGHT), "metric own returned Tensor"),
        (lambda step: True, "metric own returned bool"),
        (lambda step: 1 / 0, r"metric own raised ZeroDivisionError at .* in <lambda> \(step 1, rank 0\)"),
        (lambda step: step.parameter("x"), "the model has no parameter x"),
    ],
)
def test_a_wrong_metric_is_refused_before_a_weight_changes(plan: Path, function: Any, text: str) -> None:
    with pytest.raises(planc.RunError, match=text):
        run(plan, metrics=[planc.Metric("own", function)])
    assert not (plan.parent / "run" / "metrics.jsonl").exists()


class Misspelled(planc.Callback):
    def on_stepp(self, step: planc.StepView) -> None: ...


class Somewhere(planc.Callback):
    ranks = "some"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"callbacks": [Recorder]}, "not the class Recorder"),
        ({"callbacks": [print]}, "must be an instance of a subclass of planc.Callback"),
        ({"callbacks": [Misspelled()]}, "Misspelled.on_stepp would never be called: did you mean on_step"),
        ({"callbacks": [Somewhere()]}, "must be `zero` or `all`, not 'some'"),
        ({"metrics": [values_of]}, r"write @planc.metric\(reduce=...\) above the function"),
        ({"metrics": [planc.Metric("a/b", float)]}, "must be a word"),
        ({"metrics": [planc.Metric("a", float, "min")]}, "reduce must be `mean`, `sum` or `max`, not 'min'"),
        ({"metrics": [planc.Metric("a", float), planc.Metric("a", float)]}, "two metrics have the name a"),
    ],
)
def test_a_reader_that_could_not_work_is_refused_before_the_run(
    plan: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        planc.run(plan, **options)


def test_a_callback_may_return_nothing_else(plan: Path) -> None:
    class Answers(planc.Callback):
        def on_step(self, step: planc.StepView) -> bool:  # type: ignore[override]
            return True

    with pytest.raises(planc.RunError, match=r"on_step returned True \(step 1, rank 0\)"):
        run(plan, Answers())
