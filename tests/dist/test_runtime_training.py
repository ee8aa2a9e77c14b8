"""Training on a mesh beyond parity: ties, narrow dtypes, the optimizer, and gradients with NaN or inf."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW
from transformers import AutoConfig, AutoModelForCausalLM

from planc.graph.op import Op
from planc.graph.ops import ClipGradients
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.interpreter import Position, run
from planc.runtime.observer import Observer
from planc.runtime.torch.backend import TorchBackend
from planc.runtime.torch.parallel.gradients import clip_factor, norm_of, scale, squared_norm
from planc.runtime.torch.parallel.local_parts import local_of
from planc.runtime.torch.run import Run
from planc.runtime.torch.weights.weights import initialize
from tests.dist.pool import run_ranks
from tests.parity import cases
from tests.parity.cases import TP2_DP2, Case, compile_case
from tests.parity.ranks import Task, local_digests, open_run, train_rank
from tests.parity.reference import open_samples, train_reference
from tests.slow import slow_except

TIED = Case("TP2·DP2", "tied", TP2_DP2, model="llama-tied")
TP2 = Case("TP2", "", {"tp": 2})


class TieWatcher(TorchBackend):
    """Notes after every op from the first step on whether embedding and head still share a parameter."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.shared: list[bool] = []

    def started(self, *, first_step: int) -> None:
        super().started(first_step=first_step)
        self._look()

    def execute(self, op: Op, position: Position) -> None:
        super().execute(op, position)
        if op.name == "optimizer.step":
            self._look()

    def _look(self) -> None:
        model = self.state[nn.Module]
        embedding, head = (model.get_submodule(name).weight for name in ("model.embed_tokens", "lm_head"))
        self.shared.append(embedding is head)


def watch_ties_rank(rank: int, world_size: int, task: Task) -> tuple[list[bool], dict[str, str]]:
    """Whether the tie held at the start and after every step, and digests of the last weights."""
    backend = TieWatcher(open_run(task, Observer()))
    run(task.graph, backend, stop_after=task.stop_after)
    last = local_digests(dict(backend.state[nn.Module].named_parameters(remove_duplicate=False)), prefix="")
    dist.destroy_process_group()
    return backend.shared, last


def test_tied_embeddings_stay_tied_through_training_and_resume(workspace: Path, tmp_path: Path) -> None:
    graph = compile_case(TIED, workspace=workspace, saves=True)
    whole = Task(graph, workspace, tmp_path / "whole", stop_after=5)
    stopped = Task(graph, workspace, tmp_path / "stopped", stop_after=3)
    resumed = replace(stopped, stop_after=5)
    for shared, last in run_ranks(watch_ties_rank, 4, whole, init=False):
        assert shared == [True] * 6
        assert any(key.startswith("lm_head.weight") for key in last)
    shutil.copytree(tmp_path / "whole/checkpoints/step-3", tmp_path / "stopped/checkpoints/step-3")
    for shared, _ in run_ranks(watch_ties_rank, 4, resumed, init=False):
        assert shared == [True] * 3


def test_bfloat16_compute_with_float32_sums_trains_close_to_float32(workspace: Path) -> None:
    settings = ("fsdp.param_dtype=bfloat16", "fsdp.reduce_dtype=float32")
    expected = train_reference("llama", workspace=workspace).losses
    case = Case("DP2", "bf16", {"dp_shard": 2}, settings=settings, weights="pretrained")
    task = Task(compile_case(case, workspace=workspace), workspace, workspace / "run")
    records = run_ranks(train_rank, 2, task, init=False)
    losses = [step.loss for step in records[0].metrics]
    assert losses == pytest.approx(expected, rel=0.02)
    # Narrow arithmetic leaves traces; equal losses would mean that the setting did nothing.
    assert losses != pytest.approx(expected, rel=1e-6)
    assert all(tensor.dtype == torch.float32 for tensor in records[0].final.values())


def plain_adamw(workspace: Path) -> dict[str, torch.Tensor]:
    """The weights after all steps of transformers with torch's fused AdamW: no clipping, no schedule."""
    config = AutoConfig.from_pretrained(workspace / "llama", local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    initialize(model, seed=cases.SEED)
    named = dict(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named.items() if "norm" in name], "weight_decay": 0.0},
        {"params": [p for name, p in named.items() if "norm" not in name]},
    ]
    options = {"lr": cases.LEARNING_RATE, "betas": cases.BETAS, "weight_decay": cases.WEIGHT_DECAY}
    optimizer = AdamW(groups, fused=True, **options)
    data = open_samples(config.vocab_size, workspace=workspace)
    for step in range(cases.NUM_STEPS):
        ids = data.order.sample_ids(step * cases.GLOBAL_BATCH, count=cases.GLOBAL_BATCH)
        samples = [data.dataset[int(i)] for i in ids]
        inputs, labels = (
            torch.stack([torch.from_numpy(part) for part in parts]) for parts in zip(*samples, strict=True)
        )
        loss = cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), labels.flatten(), reduction="sum")
        (loss / labels.numel()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def plain_adamw_rank(rank: int, world_size: int, workspace: Path) -> dict[str, torch.Tensor]:
    return plain_adamw(workspace)


def test_one_process_is_plain_adamw_bit_for_bit(workspace: Path) -> None:
    settings = ("optimizer.clip_grad_norm=none", "optimizer.schedule=constant()")
    case = Case("1", settings=settings)
    task = Task(compile_case(case, workspace=workspace), workspace, workspace / "run")
    trained = run_ranks(train_rank, 1, task, init=False)[0].final
    expected = run_ranks(plain_adamw_rank, 1, workspace)[0]
    assert [name for name in expected if not torch.equal(trained[name], expected[name])] == []


class Poisoned(TorchBackend):
    """Puts a value into one gradient of the last rank before the second step's clipping."""

    def __init__(self, run: Run, *, value: float) -> None:
        super().__init__(run)
        self.value = value
        self.before: dict[str, str] = {}

    def execute(self, op: Op, position: Position) -> None:
        if isinstance(op, ClipGradients) and position.step == 2:
            self.before = local_digests(dict(self.state[nn.Module].named_parameters()), prefix="")
            if dist.get_rank() == dist.get_world_size() - 1:
                gradient = self.state[nn.Module].get_parameter("model.layers.1.mlp.up_proj.weight").grad
                assert gradient is not None
                local_of(gradient)[0, 0] = self.value
        super().execute(op, position)


def poison_rank(rank: int, world_size: int, task: Task, value: float) -> tuple[ExitCode, str, bool]:
    """(exit code, message, whether all weights are as before the step) of a run that must stop."""
    backend = Poisoned(open_run(task, Observer()), value=value)
    try:
        run(task.graph, backend)
    except RunError as error:
        after = local_digests(dict(backend.state[nn.Module].named_parameters()), prefix="")
        dist.destroy_process_group()
        return error.code, error.message, after == backend.before
    raise AssertionError("the run continued")


@pytest.mark.parametrize("value", slow_except((math.nan, math.inf), "nan"))
def test_a_gradient_that_is_no_number_on_one_rank_stops_all_before_any_weight_changes(
    value: float, workspace: Path
) -> None:
    task = Task(compile_case(TP2, workspace=workspace), workspace, workspace / "run")
    for code, message, is_unchanged in run_ranks(poison_rank, 2, task, value, init=False):
        assert code is ExitCode.NUMERICS
        assert "at step 2" in message
        assert is_unchanged


def norm_of_all(gradients: list[torch.Tensor], *, dtype: torch.dtype = torch.float32) -> float:
    return norm_of(squared_norm(gradients, device=torch.device("cpu"), dtype=dtype).item())


def test_the_gradient_norm_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=generator) for shape in ((64, 32), (32,), (5, 7, 3))]
    assert norm_of_all(gradients) == pytest.approx(nn.utils.get_total_norm(gradients).item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_norm_of_many_elements_is_exact(dtype: torch.dtype) -> None:
    """In float32 one norm of as many elements is off by 1e-4."""
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(3_000_001, generator=generator).to(dtype), torch.empty(0, dtype=dtype)]
    expected = gradients[0].double().square().sum().sqrt().item()
    assert norm_of_all(gradients) == pytest.approx(expected, rel=1e-6)


def test_the_norm_of_gradients_in_one_memory_counts_each_element_once() -> None:
    """Neighbours in any order, with a gap that belongs to none, a transposed one, and an empty one."""
    memory = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    first, second, gap, third, fourth = memory.split([9_000, 3_000, 7, 5_993, 2_000])
    gap.fill_(1e3)
    gradients = [third.view(13, -1), second, fourth.view(40, 50).t(), first, memory[:0], torch.ones(3)]
    expected = sum(one.double().square().sum().item() for one in gradients)
    assert norm_of_all(gradients) == pytest.approx(math.sqrt(expected), rel=1e-6)


def test_a_norm_in_one_pass_is_that_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device one pass sums the squares of all gradients. Here it does so one tensor after the other."""
    shapes = ((64, 32), (32,), (0,), (5, 7, 3))
    gradients = [torch.full(shape, 0.5 + index, dtype=torch.float32) for index, shape in enumerate(shapes)]
    expected = math.sqrt(sum(one.double().square().sum().item() for one in gradients))
    monkeypatch.setattr("planc.runtime.torch.parallel.gradients.sums_in_blocks", lambda device: True)
    assert norm_of_all(gradients) == pytest.approx(expected, rel=1e-6)
    wide = [one.double() for one in gradients]
    assert norm_of_all(wide) == pytest.approx(expected, rel=1e-12)


def test_a_norm_of_large_float32_gradients_does_not_overflow_in_float64() -> None:
    gradients = [torch.full((10,), 1e30)]
    assert norm_of_all(gradients) == math.inf
    assert norm_of_all(gradients, dtype=torch.float64) == pytest.approx(1e30 * math.sqrt(10), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gradients_are_scaled_as_by_a_number_of_full_precision(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(1_001, generator=generator, dtype=torch.float64).to(dtype)
    number = 0.123456789012345
    expected = (gradient.float() * number).to(dtype) if gradient.itemsize == 2 else gradient * number
    scale([gradient], factor=number)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize(
    ("norm", "factor"),
    [(0.5, 1.0), (1.0, 1.0), (3.7, 1.0 / (3.7 + 1e-6)), (1e30, 1e-30), (math.inf, 1.0), (math.nan, 1.0)],
)
def test_only_gradients_above_the_limit_are_clipped(norm: float, factor: float) -> None:
    assert clip_factor(norm, max_norm=1.0) == pytest.approx(factor, rel=1e-15)
    assert clip_factor(norm, max_norm=None) == 1.0


def replaced_by_a_run(rank: int, world_size: int, task: Task) -> list[str]:
    """What a run on this rank replaces of PyTorch, in classes and modules that all models share."""
    shared = (nn.Module, nn.Linear, nn.Embedding, nn.functional, torch.Tensor)
    before = [dict(vars(one)) for one in shared]
    train_rank(rank, world_size, task)
    return [
        f"{one.__name__}.{name}"
        for one, known in zip(shared, before, strict=True)
        for name, value in known.items()
        if vars(one).get(name) is not value
    ]


def test_a_run_replaces_nothing_of_pytorch(workspace: Path, tmp_path: Path) -> None:
    task = Task(compile_case(TP2, workspace=workspace), workspace, tmp_path, stop_after=1)
    assert run_ranks(replaced_by_a_run, TP2.world_size, task, init=False) == [[], []]
