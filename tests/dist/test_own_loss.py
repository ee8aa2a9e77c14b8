"""A loss of the plan's own trains on every mesh as in one process by hand, or is refused before step 1."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from planc.extend.reference import Extension
from planc.runtime.errors import RunError
from planc.runtime.torch.extensions.loss import try_loss
from planc.runtime.torch.extensions.trials import RefusedError, with_place
from planc.source import Span
from tests.dist.pool import RankError, run_ranks
from tests.parity.cases import ALL_8, TP2_DP2, Case, compile_case, make_workspace
from tests.parity.compare import parity
from tests.parity.ranks import Task, train_rank
from tests.parity.reference import Training, train_reference
from tests.slow import slow_except

EXAMPLE = Path(__file__).parents[2] / "examples" / "extensions" / "losses.py"
FOCAL = ("train.loss=focal(gamma = 1.5)",)
OWN = {"extensions": ("losses.py",), "settings": FOCAL}
CASES = (
    Case("1", **OWN),
    Case("TP2·DP2", "", TP2_DP2, micro_batch=2, **OWN),
    Case("TP2", "257 rows", {"tp": 2}, model="llama-uneven", **OWN),
    Case("TP2·DP2", "chunks", TP2_DP2, **{**OWN, "settings": (*FOCAL, "train.loss_chunks=4")}),
    Case("CP2·DP2", "", {"dp_shard": 2, "cp": 2}, **OWN),
    Case("PP2·DP2", "", {"pp": 2, "dp_shard": 2}, micro_batch=2, **OWN),
    Case("DP2·CP2·TP2", "", ALL_8, **OWN),
    Case("TP2·DP2", "compiled", TP2_DP2, is_compiled=True, **OWN),
)


def focal_by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    logs = log_softmax(logits, -1)[torch.arange(len(labels)), labels]
    return -((1 - logs.exp()) ** 1.5) * logs


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_workspace(tmp_path_factory.mktemp("own-loss") / "workspace", ("llama", "llama-uneven"))
    shutil.copy(EXAMPLE, made)
    return made


@pytest.fixture(scope="module")
def reference(workspace: Path) -> Callable[[str], Training]:
    return lambda model: train_reference(model, workspace=workspace, value=focal_by_hand)


@pytest.mark.parametrize(
    "case",
    slow_except(CASES, "TP2 257 rows", name=lambda case: case.name),
    ids=lambda case: case.name,
)
def test_a_mesh_trains_by_the_loss_as_one_process_by_hand(
    case: Case, workspace: Path, reference: Callable[[str], Training]
) -> None:
    assert parity(case, workspace=workspace, reference=reference(case.model)).problems == ()


@pytest.mark.slow
def test_a_loss_that_reads_ids_is_the_same_over_cp_and_in_chunks(workspace: Path) -> None:
    settings = ("train.loss=weighted(newline = 3, after_space = 0.5)", "train.loss_chunks=2")
    case = Case("CP2·DP2", "", {"dp_shard": 2, "cp": 2}, extensions=("losses.py",), settings=settings)
    alone = replace(case, mesh={}, settings=settings[:1])
    own, other = (_losses(one, workspace) for one in (case, alone))
    assert own == pytest.approx(other, rel=1e-6)
    assert own != pytest.approx(_losses(replace(alone, settings=()), workspace), rel=1e-3)


def _losses(case: Case, workspace: Path) -> list[float]:
    if not case.settings:
        case = replace(case, extensions=())
    task = Task(compile_case(case, workspace=workspace), workspace, workspace / "run", stop_after=2)
    return [step.loss for step in run_ranks(train_rank, case.world_size, task, init=False)[0].metrics]


def test_a_file_that_changed_since_it_was_compiled_is_not_run(workspace: Path, tmp_path: Path) -> None:
    case = Case("TP2", "", {"tp": 2}, **OWN)
    copy = Path(shutil.copytree(workspace, tmp_path / "workspace"))
    graph = compile_case(case, workspace=copy)
    (copy / "losses.py").write_text(EXAMPLE.read_text() + "\n# changed\n")
    with pytest.raises(RankError, match=r"losses.py has changed since the plan was compiled"):
        run_ranks(train_rank, 2, Task(graph, copy, copy / "run"), init=False)


def mean_in_it(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels)


def by_the_batch(logits: Tensor, labels: Tensor) -> Tensor:
    values = cross_entropy(logits, labels, reduction="none")
    return values * values.detach() / values.detach().mean()


def by_place(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, reduction="none") * torch.linspace(1, 2, len(labels))


def smoothed_over_neighbors(logits: Tensor, labels: Tensor) -> Tensor:
    values = cross_entropy(logits, labels, reduction="none")
    return values + 0.01 * values.roll(1)


def drawn(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, reduction="none") * torch.rand(len(labels))


def annealed() -> Callable[..., Tensor]:
    calls: list[int] = []

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        calls.append(1)
        return cross_entropy(logits, labels, reduction="none") * len(calls)

    return loss


def hard(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(-1) != labels).to(logits.dtype)


def in_place(logits: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        logits.clamp_(-1, 1)
    return cross_entropy(logits, labels, reduction="none")


def of_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    of_label = (100 * logits).softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -of_label.log()


def learned() -> Callable[..., Tensor]:
    scale = torch.nn.Parameter(torch.ones(()))

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits * scale, labels, reduction="none")

    return loss


WRONG: list[tuple[Callable[..., Any], str]] = [
    (mean_in_it, "returns one value for all tokens"),
    (by_the_batch, "depending on which tokens it sees together"),
    (by_place, "depending on the order of tokens"),
    (smoothed_over_neighbors, "depending on the order of tokens"),
    (drawn, "gives other values for the same tokens"),
    (annealed(), "gives other values for the same tokens"),
    (hard, "returns values that have no gradient"),
    (learned(), "has a parameter of its own, which no optimizer would train"),
    (in_place, "changes the tensors that it is given"),
    (of_probabilities, "has a NaN or inf value"),
]


@pytest.mark.parametrize(("function", "reason"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_a_wrong_loss_is_refused_with_the_reason(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        try_loss(function, {}, vocab_size=257, dtype=torch.float32, device=torch.device("cpu"))


def test_a_table_without_the_last_label_fails_in_the_trial() -> None:
    weights = torch.ones(256)

    def weighted(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, reduction="none") * weights[labels]

    with pytest.raises(IndexError, match="256 is out of bounds"):
        try_loss(weighted, {}, vocab_size=257, dtype=torch.float32, device=torch.device("cpu"))


def test_a_fault_in_a_step_names_the_file_the_line_and_what_the_plan_calls() -> None:
    def raises(logits: Tensor, labels: Tensor) -> Tensor:
        raise KeyError("weights")

    extension = Extension(entry="late", kind="loss", file=Path(__file__).name, digest="0" * 64, arguments=())
    span = Span("x.plan", 1, 1, 1, 6)
    with pytest.raises(RunError, match=r"the loss `late` of \S+\.py fails: \S+\.py:\d+: KeyError") as caught:
        with_place(raises, extension, span=span)(torch.ones(1), torch.ones(1))
    assert caught.value.span == span


def test_a_lack_of_memory_in_own_code_is_still_one() -> None:
    def raises() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        with_place(
            raises,
            Extension(entry="late", kind="loss", file="x.py", digest="0" * 64, arguments=()),
            span=None,
        )()
