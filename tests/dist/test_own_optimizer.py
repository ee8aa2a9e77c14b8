"""An optimizer and a schedule of the plan's own train every mesh as one process by hand, or are refused."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from planc.runtime.torch.extensions.optimizer import try_update
from planc.runtime.torch.extensions.schedule import try_schedule
from planc.runtime.torch.extensions.trials import RefusedError
from tests.dist.pool import RankError, run_ranks
from tests.parity.cases import SAVE_STEP, TP2_DP2, Case, compile_case, make_workspace
from tests.parity.compare import parity
from tests.parity.ranks import Task, train_rank
from tests.parity.reference import train_reference
from tests.slow import slow_except

EXAMPLES = Path(__file__).parents[2] / "examples" / "extensions"
LION = ("optimizer.kind=lion(lr = 1e-3, weight_decay = 0.1)", "optimizer.schedule=restarts(period = 3)")
OWN: dict[str, Any] = {"extensions": ("optimizers.py", "schedules.py"), "settings": LION}
CASES = (
    Case("1", **OWN),
    Case("TP2·DP2", "", TP2_DP2, micro_batch=2, **OWN),
    Case("DP4", "257 rows", {"dp_shard": 4}, model="llama-uneven", **OWN),
    Case("PP2·DP2", "", {"pp": 2, "dp_shard": 2}, micro_batch=2, **OWN),
)
WHOLE = """
from planc.extend import optimizer


@optimizer("normalized")
def normalized(parameter, gradient, state, *, lr):
    parameter.sub_(gradient / gradient.norm(), alpha=lr)
"""


class Lion(torch.optim.Optimizer):
    """By the paper's algorithm 2, on whole tensors."""

    def __init__(self, groups: list[dict[str, object]]) -> None:
        super().__init__(groups, {"lr": 1e-3, "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                m = self.state[weight].get("m", torch.zeros_like(weight))
                update = torch.sign(0.9 * m + 0.1 * weight.grad)
                weight -= group["lr"] * (update + group["weight_decay"] * weight)
                self.state[weight]["m"] = 0.99 * m + 0.01 * weight.grad


def by_hand(step: int) -> float:
    return (1 + math.cos(math.pi * ((step - 1) % 3) / 3)) / 2


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_workspace(tmp_path_factory.mktemp("own-optimizer") / "workspace", ("llama", "llama-uneven"))
    for name in OWN["extensions"]:
        shutil.copy(EXAMPLES / name, made)
    (made / "whole.py").write_text(WHOLE)
    return made


@pytest.mark.parametrize(
    "case", slow_except(CASES, "TP2·DP2", name=lambda case: case.name), ids=lambda case: case.name
)
def test_a_mesh_trains_by_lion_as_one_process_by_hand(case: Case, workspace: Path) -> None:
    reference = train_reference(case.model, workspace=workspace, update=Lion, factor=by_hand)
    assert parity(case, workspace=workspace, reference=reference).problems == ()


@pytest.mark.slow
def test_its_state_is_saved_and_a_run_resumes_by_it_on_another_mesh(workspace: Path, tmp_path: Path) -> None:
    case = CASES[1]
    graph = compile_case(case, workspace=workspace, saves=True)
    whole = run_ranks(train_rank, 4, Task(graph, workspace, tmp_path / "whole"), init=False)[0]
    cut = Task(graph, workspace, tmp_path / "cut", stop_after=SAVE_STEP)
    run_ranks(train_rank, 4, cut, init=False)
    alone = compile_case(replace(case, shape="1", mesh={}), workspace=workspace, saves=True)
    resumed = run_ranks(train_rank, 1, Task(alone, workspace, tmp_path / "cut"), init=False)[0]
    assert resumed.first_step == SAVE_STEP + 1
    assert any(name.endswith(".momentum") for name in whole.states[SAVE_STEP])
    losses = [step.loss for step in whole.metrics][SAVE_STEP:]
    assert [step.loss for step in resumed.metrics] == pytest.approx(losses, rel=1e-5)


def test_an_optimizer_of_whole_tensors_is_refused_where_they_are_sharded(workspace: Path) -> None:
    settings = ("optimizer.kind=normalized(lr = 1e-3)",)
    case = Case("DP2", "", {"dp_shard": 2}, extensions=("whole.py",), settings=settings)
    task = Task(compile_case(case, workspace=workspace), workspace, workspace / "run", stop_after=1)
    with pytest.raises(RankError, match=r"looks at whole tensors, and ranks hold parts of `model\."):
        run_ranks(train_rank, 2, task, init=False)


def test_an_optimizer_of_whole_tensors_trains_where_none_is_sharded(workspace: Path) -> None:
    settings = ("optimizer.kind=normalized(lr = 1e-3)",)
    case = Case("1", extensions=("whole.py",), settings=settings)
    task = Task(compile_case(case, workspace=workspace), workspace, workspace / "alone", stop_after=2)
    assert len(run_ranks(train_rank, 1, task, init=False)[0].metrics) == 2


def drawn(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
    parameter.sub_(gradient * torch.rand_like(gradient), alpha=lr)


def returned(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> Tensor:
    return parameter - lr * gradient


def replaced(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
    state["momentum"] = 0.9 * state["momentum"] + gradient
    parameter.sub_(state["momentum"], alpha=lr)


def undeclared(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
    state["square"] = gradient**2
    parameter.sub_(gradient, alpha=lr)


def divided(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
    parameter.sub_(gradient / state["momentum"], alpha=lr)


def remembered() -> Callable[..., None]:
    momentum: dict[Tensor, Tensor] = {}

    def update(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
        kept = momentum.setdefault(parameter, torch.zeros_like(parameter))
        parameter.sub_(kept.mul_(0.9).add_(gradient), alpha=lr)

    return update


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (remembered(), "remembers something by the tensor that it is given"),
        (drawn, "gives another update for the same gradients"),
        (returned, "leaves the parameter as it was"),
        (replaced, "replaces a tensor of `state`"),
        (undeclared, "or adds one"),
        (divided, "makes weights NaN or inf"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_optimizer_is_refused_with_the_reason(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        try_update(function, {}, ("momentum",))


def lion_like(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
    parameter.sub_(state["momentum"].mul_(0.9).add_(gradient).sign(), alpha=lr)


def plain(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
    parameter.sub_(gradient, alpha=lr)


def adam_like(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
    square = state["momentum"].lerp_(gradient.square(), 0.01)
    parameter.sub_(gradient / (square.sqrt() + 1e-8), alpha=lr)


def held_if_small(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
    parameter.sub_(gradient * (gradient.norm() / 0.1).clamp(max=1), alpha=lr)


def held_if_large(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
    parameter.sub_(gradient * (100 / gradient.norm()).clamp(max=1), alpha=lr)


def of_vectors(parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], *, lr: float) -> None:
    parameter.sub_(gradient / gradient.norm() if gradient.ndim == 1 else gradient, alpha=lr)


@pytest.mark.parametrize("function", [lion_like, plain, adam_like])
def test_an_update_of_each_element_is_shown_to_be_one(function: Callable[..., Any]) -> None:
    (_, is_elementwise), _ = try_update(function, {}, ("momentum",))
    assert is_elementwise


@pytest.mark.parametrize("function", [held_if_small, held_if_large, of_vectors])
def test_an_update_that_looks_at_whole_tensors_at_times_is_found(function: Callable[..., Any]) -> None:
    (_, is_elementwise), _ = try_update(function, {}, ("momentum",))
    assert not is_elementwise


def counted() -> Callable[[int], float]:
    calls: list[int] = []

    def factor(step: int) -> float:
        calls.append(step)
        return len(calls) / 1000

    return factor


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (counted(), "gives another factor for the same step"),
        (lambda step: 1 - step, "returns -1 at step 2"),
        (lambda step: None, "returns NoneType at step 1"),
        (lambda step: math.nan if step == 7 else 1.0, "returns nan at step 7"),
    ],
)
def test_a_wrong_schedule_is_refused_with_the_reason(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        try_schedule(function, {}, num_steps=10)


def test_a_schedule_is_asked_for_the_steps_of_the_run_only() -> None:
    def factor(step: int, *, num_steps: int) -> float:
        assert 1 <= step <= num_steps
        return 1 - step / num_steps

    (schedule, factors), shown = try_schedule(factor, {}, num_steps=4)
    assert factors == (0.75, 0.5, 0.25, 0.0)
    assert schedule.factor(5) == 0.0, "the rate that is set as the last step ends"
    assert shown[1] == "0 to 0.75 times the peak learning rate"
