"""The six examples of a plan's own code in one run: as one process by hand on two ranks times two, and twelve
that are wrong, each refused before step 1."""

from __future__ import annotations

import json
import runpy
import shutil
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from planc.graph.extensions import extensions_of
from planc.verify.compare import worst_gradient, worst_relative
from tests.dist.pool import RankError
from tests.own_code.by_hand import TOLERANCE, ByHand, compiled, sequences_of, train, trained

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "extensions"
FILES = ("counting.py", "losses.py", "optimizers.py", "metrics.py", "callbacks.py")
LENGTH, BATCH = 64, 8
RATE, DECAY = 1e-3, 0.1
LEAST, PATIENCE = 0.1, 2
"""The least fall of the loss that counts, and for how many steps the run waits for it."""


def write(folder: Path, **changes: tuple[str, str]) -> Path:
    """The example's plan with its files in one folder, weights that are drawn here, and changes of files."""
    for name in FILES:
        shutil.copy(EXAMPLES / name, folder)
    shutil.copy(EXAMPLES.parent / "own_data" / "arithmetic.py", folder)
    shutil.copytree(EXAMPLES / "counting", folder / "counting", dirs_exist_ok=True)
    weights = {name: one.detach() for name, one in built().state_dict().items()}
    save_file(weights, folder / "counting" / "model.safetensors")
    plan = (EXAMPLES / "six.plan").read_text().replace("../own_data/", "")
    plan = plan.replace("weights = random", "weights = pretrained")
    changed = f"patience(steps = {PATIENCE}, least = {LEAST})"
    plan = plan.replace("patience(steps = 3, least = 0.1)", changed)
    (folder / "six.plan").write_text(plan)
    for name, (old, new) in changes.items():
        path = folder / ("six.plan" if name == "plan" else f"{name}.py")
        text = path.read_text()
        assert old in text, old
        path.write_text(text.replace(old, new))
    return folder / "six.plan"


def built() -> nn.Module:
    values = json.loads((EXAMPLES / "counting" / "config.json").read_text())
    torch.manual_seed(5)
    model: nn.Module = runpy.run_path(str(EXAMPLES / "counting.py"))["Counting"](SimpleNamespace(**values))
    return model


def focal_by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    logs = log_softmax(logits, -1)[torch.arange(len(labels)), labels]
    return -((1 - logs.exp()) ** 1.5) * logs


class Lion(torch.optim.Optimizer):
    """By the paper's algorithm 2, on whole tensors."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            m = self.state[weight].get("m", torch.zeros_like(weight))
            weight -= RATE * (torch.sign(0.9 * m + 0.1 * weight.grad) + DECAY * weight)
            self.state[weight]["m"] = 0.99 * m + 0.01 * weight.grad


@cache
def expected() -> ByHand:
    documents = runpy.run_path(str(EXAMPLES.parent / "own_data" / "arithmetic.py"))["Sums"]
    texts = [documents(number=400, digits=2)[index] for index in range(400)]
    sequences = sequences_of(texts, length=LENGTH)
    return train(built(), sequences, steps=8, batch=BATCH, value=focal_by_hand, update=Lion)


def last_step(losses: list[float]) -> int:
    """The step after which the callback ends the run."""
    best, best_step = float("inf"), 0
    for step, loss in enumerate(losses, start=1):
        if loss < best - LEAST:
            best, best_step = loss, step
        if step == best_step + PATIENCE:
            return step
    raise AssertionError("the run is too short for the callback")


def cosines(each: list[dict[str, Tensor]]) -> list[float]:
    flat = [gradients["head.weight"].flatten().double() for gradients in each]
    return [0.0, *(float(one @ other / one.norm() / other.norm()) for one, other in pairwise(flat))]


@pytest.mark.slow
def test_six_pieces_train_as_one_process_by_hand(tmp_path: Path) -> None:
    graph = compiled(write(tmp_path))
    assert dict(graph.mesh)["dp_shard"] == dict(graph.mesh)["tp"] == 2
    records, by_hand = trained(graph, base=tmp_path, folder=tmp_path / "run"), expected()
    steps = last_step(by_hand.losses)
    metrics = records[0].metrics
    assert [step.step for step in metrics] == [*range(1, steps + 1)]
    assert worst_relative([step.loss for step in metrics], by_hand.losses[:steps]) < TOLERANCE
    assert worst_relative([step.grad_norm for step in metrics], by_hand.norms[:steps]) < 1e-4
    name, distance = worst_gradient(records[0].gradients, by_hand.gradients)
    assert distance < TOLERANCE, name
    assert records[0].gradients.keys() == by_hand.gradients.keys()
    logged = [step.custom["grad_cosine"] for step in metrics]
    assert logged == pytest.approx(cosines(by_hand.each)[:steps], abs=1e-4)
    assert [step.early_stop is not None for step in metrics] == [False] * (steps - 1) + [True]
    assert (metrics[-1].early_stop or "").startswith("patience: no loss below ")
    assert (tmp_path / "run" / "checkpoints" / f"step-{steps}").is_dir()
    notes = "\n".join(records[0].notes)
    for kind in ("loss", "optimizer", "metric", "callback"):
        assert f"the {kind} `" in notes


@pytest.mark.slow
def test_a_run_that_a_callback_ended_stays_ended_until_its_callbacks_change(tmp_path: Path) -> None:
    one = {"plan": ("  dp_shard = 2\n  tp = 2", "  dp_shard = 1")}
    path = write(tmp_path, **one)
    path.write_text(path.read_text().replace("tensor_parallel on tp {\n  auto(solve)\n}\n", ""))
    path.write_text(path.read_text().replace('fsdp on dp_shard {\n  "layers.*" -> unit\n}\n', ""))
    graph, run = compiled(path), tmp_path / "run"
    steps = len(trained(graph, base=tmp_path, folder=run)[0].metrics)
    again = trained(graph, base=tmp_path, folder=run)[0]
    assert (again.first_step, again.metrics) == (steps + 1, [])
    other = compiled(path, f"train.callbacks=[patience(steps = 4, least = {LEAST})]")
    assert len(trained(other, base=tmp_path, folder=run, stop_after=steps + 1)[0].metrics) == 1


def test_six_pieces_take_at_most_forty_lines_each() -> None:
    for name in (*(EXAMPLES / name for name in FILES), EXAMPLES.parent / "own_data" / "arithmetic.py"):
        assert len(Path(name).read_text().splitlines()) <= 40, name


_FOCAL = "return (1 - (-values).exp()) ** gamma * values"
_SIGN = ".sign_()"
_TEXT = 'return f"{one} + {other} = {one + other}"'
_COSINE = "before, self.last = self.last, step.gradient(self.parameter).flatten()"
_JUDGED = "        if step.loss < self.best - self.least:"


def _first(line: str) -> tuple[str, str, str]:
    """A change of the callback: a line before its others."""
    return "callbacks", _JUDGED, f"        {line}\n{_JUDGED}"


WRONG: dict[str, tuple[tuple[str, str, str], str]] = {
    "a loss by the order of tokens": (
        ("losses", _FOCAL, "return values * torch.linspace(1, 2, len(values))"),
        "depending on the order of tokens",
    ),
    "a loss that takes the mean": (("losses", _FOCAL, "return values.mean()"), "one value for all tokens"),
    "a source that draws": (
        ("arithmetic", "random = Random(index)", "random = Random()"),
        "`sums` is not deterministic",
    ),
    "a source by the process": (
        ("arithmetic", _TEXT, 'return f"{hash(str(index))} + {one}"'),
        "different in another process",
    ),
    "an optimizer of whole tensors": (
        ("optimizers", _SIGN, ".div(gradient.norm() + 1e-6)"),
        "looks at whole tensors, and ranks hold parts of",
    ),
    "an optimizer that draws": (
        ("optimizers", _SIGN, ".mul_(gradient.new_empty(()).uniform_())"),
        "another update for the same gradients",
    ),
    "a model that sees later tokens": (("counting", ".tril()", ""), "is not causal"),
    "a metric that draws": (
        ("metrics", _COSINE, "return step.gradient(self.parameter).new_empty(()).uniform_()"),
        "gives other numbers for the same steps",
    ),
    "a metric of an unknown parameter": (
        ("plan", '"head.weight"', '"tail.weight"'),
        "the model has no parameter tail.weight",
    ),
    "a callback that writes": (_first("step.parameter('head.weight').zero_()"), "wrote to head.weight"),
    "a callback on rank 0 that gathers": (_first("step.parameter('head.weight')"), "gathered over all ranks"),
    "a callback on rank 0 with a collective": (
        _first("import torch; torch.distributed.barrier()"),
        "calls a collective, c10d::barrier at .*callbacks.py:15 in on_step",
    ),
    "a callback that sets PyTorch up": (
        _first("import torch; torch.set_grad_enabled(False)"),
        "changes PyTorch's settings",
    ),
    "a callback that fails": (_first("step.looss"), "raised AttributeError at .*callbacks.py:15 in on_step"),
}
ON_ALL = ('("patience")', '("patience", ranks="all")')


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one == "a callback that writes" else pytest.mark.slow) for one in WRONG],
)
def test_wrong_code_is_refused_before_step_1(name: str, tmp_path: Path) -> None:
    (file, old, new), reason = WRONG[name]
    path = write(tmp_path, **{file: (old, new)})
    if name == "a callback that writes":
        code = tmp_path / "callbacks.py"
        code.write_text(code.read_text().replace(*ON_ALL))
    # A model is refused where it is read.
    with pytest.raises((RankError, AssertionError), match=reason):
        trained(compiled(path), base=tmp_path, folder=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_the_example_has_one_of_each_kind() -> None:
    graph = compiled(EXAMPLES / "six.plan")
    kinds = [extension.kind for _, extension in extensions_of(graph)]
    assert sorted(kinds) == ["callback", "data_source", "loss", "metric", "model", "optimizer"]
