"""A loss in chunks of tokens is the loss of all of them, with its gradients and without its logits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from planc.api import check_source
from planc.diagnostics import Severity
from planc.graph.ops import Accumulate, ComputeLoss
from planc.inventory.load import load_inventory
from planc.runtime.torch.training.loss_chunks import losses_in_chunks
from planc.source import SourceFile
from planc.vocab import LogitsFunction, LogitsStep
from tests.dist.largest_tensor import LargestTensor
from tests.inventories import save_inventory
from tests.parity.cases import MODELS, TP2_DP2, TP2_REPLICATE2, Case, make_workspace, plan_text
from tests.parity.compare import parity
from tests.parity.reference import Training, train_reference
from tests.slow import slow_except

CHUNKS = ("train.loss_chunks=4",)
CASES = (
    Case("1", settings=CHUNKS),
    Case("1", "tied", model="llama-tied", settings=CHUNKS),
    Case("TP2", "257 rows", {"tp": 2}, model="llama-uneven", settings=CHUNKS),
    Case("TP2·DP2", "", TP2_DP2, micro_batch=2, settings=CHUNKS),
    Case("TP2·DP2", "tied", TP2_DP2, model="llama-tied", settings=CHUNKS),
    Case("DP4", "recompute", {"dp_shard": 4}, recomputes=True, settings=CHUNKS),
    Case("CP2·DP2", "", {"dp_shard": 2, "cp": 2}, settings=CHUNKS),
    Case("TP2·DP2", "whole replicas", TP2_REPLICATE2, micro_batch=2, replicas="whole", settings=CHUNKS),
)
OTHERS: dict[str, dict[str, Any]] = {
    "llama-long": {"max_position_embeddings": 2_048},
    "granite": {"model_type": "granite", "logits_scaling": 8.0},
    "cohere": {"model_type": "cohere", "logit_scale": 0.25, "use_qk_norm": False},
    "gemma2": {
        "model_type": "gemma2",
        "final_logit_softcapping": 2.0,
        "attn_logit_softcapping": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 4096,
    },
}
ARCHITECTURES = {"granite": "Granite", "cohere": "Cohere", "gemma2": "Gemma2", "llama-long": "Llama"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_workspace(tmp_path_factory.mktemp("chunks") / "workspace")
    for name, changes in OTHERS.items():
        config = {**MODELS["llama"], "architectures": [f"{ARCHITECTURES[name]}ForCausalLM"], **changes}
        (made / name).mkdir()
        (made / name / "config.json").write_text(json.dumps(config))
        save_inventory(made / name)
    return made


@pytest.fixture(scope="module")
def reference(workspace: Path) -> Callable[[str], Training]:
    return cache(lambda model: train_reference(model, workspace=workspace))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", slow_except(CASES, "TP2·DP2", name=lambda case: case.name), ids=lambda case: case.name
)
def test_a_mesh_trains_as_one_process_without_chunks(
    case: Case, workspace: Path, reference: Callable[[str], Training]
) -> None:
    assert parity(case, workspace=workspace, reference=reference(case.model)).problems == ()


@pytest.mark.parametrize("model", slow_except(OTHERS, "gemma2"))
def test_what_a_model_makes_of_its_heads_output_is_in_every_chunk(
    model: str, workspace: Path, reference: Callable[[str], Training]
) -> None:
    case = Case("1", model=model, settings=CHUNKS)
    assert parity(case, workspace=workspace, reference=reference(model)).problems == ()


def test_functions_of_logits_are_found(workspace: Path) -> None:
    names = (name for name in OTHERS if name != "llama-long")
    found = {name: load_inventory(workspace / name, cache_dir=workspace).inventory.logits for name in names}
    assert found == {
        "granite": (LogitsStep(LogitsFunction.DIVIDE, 8.0),),
        "cohere": (LogitsStep(LogitsFunction.MULTIPLY, 0.25),),
        "gemma2": (
            LogitsStep(LogitsFunction.DIVIDE, 2.0),
            LogitsStep(LogitsFunction.TANH),
            LogitsStep(LogitsFunction.MULTIPLY, 2.0),
        ),
    }


def chunks_of(chunks: str, *settings: str, workspace: Path, more: str = "", **case: Any) -> int | None:
    """The chunks in the graph of a plan with `more` blocks; None if it is refused as P726 alone."""
    texts = [f"train.loss_chunks={chunks}", *settings]
    checked = check_source(
        SourceFile("x.plan", plan_text(Case("1", **case)) + more),
        base=workspace,
        settings=[SourceFile(f"--set[{number}]", text) for number, text in enumerate(texts)],
    )
    if checked.graph is None:
        assert {one.code.code for one in checked.diagnostics if one.severity is Severity.ERROR} == {"P726"}
        return None
    loop = next(op for op in checked.graph.step if isinstance(op, Accumulate))
    return next(op.chunks for op in loop.body if isinstance(op, ComputeLoss))


@pytest.mark.parametrize(
    ("chunks", "length", "expected"),
    [
        *(("1", 64, 1), ("512", 64, 512), ("3", 64, None), ("1024", 64, None)),
        *(("auto", 64, 1), ("auto", 256, 2), ("auto", 1024, 4)),
    ],
)
def test_a_graph_has_as_many_chunks_as_are_written_or_serve(
    chunks: str, length: int, expected: int | None, workspace: Path
) -> None:
    sizes = (f"data.sequence_length={length}", f"train.tokens_per_step={8 * length}")
    assert chunks_of(chunks, *sizes, workspace=workspace, model="llama-long") == expected


@pytest.mark.parametrize(
    "more",
    [
        'activation_checkpoint {\n  "lm_head" -> full\n}\n',
        'compile {\n  "lm_head" -> region\n}\n',
        'tensor_parallel on tp {\n  "lm_head" -> colwise(output = Replicate())\n}\n',
    ],
)
def test_what_needs_all_logits_is_refused(more: str, workspace: Path) -> None:
    sizes = ("mesh.tp=2",) if "tp" in more else ()
    assert chunks_of("4", *sizes, workspace=workspace, more=more) is None
    assert chunks_of("auto", *sizes, workspace=workspace, more=more) == 1


def test_the_help_for_the_models_own_rules_is_right(workspace: Path) -> None:
    text = plan_text(Case("TP2", mesh={"tp": 2}, tensor_parallel="auto", settings=CHUNKS))
    chunks = [SourceFile("--set", "train.loss_chunks=4")]
    (found,) = check_source(SourceFile("x.plan", text), base=workspace, settings=chunks).diagnostics
    assert found.code.code == "P726" and found.help is not None
    rule = found.help.removeprefix("write `").removesuffix("`")
    mended = SourceFile("x.plan", text.replace("  auto\n", f"  auto\n  {rule}\n"))
    assert check_source(mended, base=workspace, settings=chunks).graph is not None


class Tail(nn.Module):
    """A model that is only its head."""

    def __init__(self, width: int, vocabulary: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.lm_head = nn.Linear(width, vocabulary, dtype=dtype)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)

    def forward(self, hidden: Tensor) -> Any:
        output = type("Output", (), {})()
        output.logits = self.lm_head(hidden)
        return output


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, labels)


def gradients(model: Tail, hidden: Tensor, labels: Tensor, *, chunks: int) -> list[Tensor]:
    """Of the hidden states and of every parameter."""
    inputs = hidden.to(model.lm_head.weight.dtype).requires_grad_()
    if chunks == 1:
        loss = mean_loss(model(inputs).logits.flatten(0, 1), labels.flatten())
    else:
        op = ComputeLoss(vocab_over=(), chunks=chunks, head="lm_head")
        with losses_in_chunks(
            model,
            op,
            labels=labels,
            loss_of=lambda total: total(lambda logits, part: mean_loss(logits, part) / chunks),
            context=contextlib.nullcontext,
        ):
            loss = model(inputs).logits
    loss.backward()
    return [one.grad.double() for one in (inputs, *model.parameters()) if one.grad is not None]


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]


def test_gradients_in_bfloat16_are_rounded_once_more_however_many_chunks_they_have() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(4, 64, 32, generator=generator)
    labels = torch.randint(0, 500, (4, 64), generator=generator)
    exact = gradients(Tail(32, 500, dtype=torch.float64), hidden.bfloat16(), labels, chunks=1)
    whole = errors(gradients(Tail(32, 500, dtype=torch.bfloat16), hidden, labels, chunks=1), exact)
    parts = errors(gradients(Tail(32, 500, dtype=torch.bfloat16), hidden, labels, chunks=16), exact)
    assert len(parts) == 3
    assert all(part < 1.5 * all_at_once for part, all_at_once in zip(parts, whole, strict=True))


@pytest.mark.parametrize(("chunks", "share"), [(1, 1), (8, 8)])
def test_no_more_logits_exist_than_those_of_a_chunk(chunks: int, share: int) -> None:
    model = Tail(8, 4_000, dtype=torch.float32)
    hidden, labels = torch.randn(2, 1_000, 8), torch.zeros(2, 1_000, dtype=torch.long)
    with LargestTensor() as largest:
        gradients(model, hidden, labels, chunks=chunks)
    assert largest.num_elements == 2_000 * 4_000 // share


def test_a_loss_without_gradients_computes_none() -> None:
    model, labels = Tail(8, 40, dtype=torch.float32), torch.zeros(2, 16, dtype=torch.long)
    hidden = torch.randn(2, 16, 8)
    op = ComputeLoss(vocab_over=(), chunks=4, head="lm_head")
    records: list[bool] = []

    def part_loss(logits: Tensor, part: Tensor) -> Tensor:
        records.append(logits.requires_grad)
        return mean_loss(logits, part) / 4

    with (
        torch.no_grad(),
        losses_in_chunks(
            model,
            op,
            labels=labels,
            loss_of=lambda total: total(part_loss),
            context=contextlib.nullcontext,
        ),
    ):
        loss = model(hidden).logits
    assert records == [False] * 4 and not loss.requires_grad
    assert loss.item() == pytest.approx(
        mean_loss(model(hidden).logits.flatten(0, 1), labels.flatten()).item()
    )
    assert "forward" not in vars(model) and "forward" not in vars(model.lm_head)
