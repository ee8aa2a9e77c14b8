"""Models with attention sinks or a soft cap train on every mesh as their own code does in one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers.integrations import moe

from planc.verify.pool import run_ranks
from planc.verify.ranks import Record, Task, train_rank
from tests.dist.pool import start_server
from tests.models.architectures import architectures
from tests.models.independent import gradients_of, loaded, tokens_of, write_corpus
from tests.models.judge import prepare
from tests.models.plans import CORPUS, Variant, plan_text
from tests.models.test_shared_heads import graph_of
from tests.models.tiny import SEQUENCE_LENGTH
from tests.slow import slow_except

LIMITS = {
    "gpt_oss": 1e-9,
    "granite_swa": 1e-6,
    "granitemoe_swa": 1e-6,
    "mimo_v2_flash": 1e-6,
    "gemma2": 1e-6,
    "vaultgemma": 1e-6,
}
"""Relative, of the loss and of each gradient. Some code computes its softmax or its routers in float32."""
CAPPED: dict[str, dict[str, object]] = {
    model: {"attn_logit_softcapping": 0.02} for model in ("gemma2", "vaultgemma")
}
"""A cap that is as large as the scores of random weights."""
FLOOR = 1e-6
"""Of all gradients together."""
_SOLVED = "tensor_parallel on tp {\n  auto(solve)\n}\n"
MESHES = {
    "one": {},
    "tp 2": {"tp": 2},
    "allgather, tp 2": {"tp": 2, "cp": 2},
    "ulysses, tp 2": {"tp": 2, "cp": 2},
    "ring": {"cp": 2},
    "dp_shard 2, allgather, tp 2": {"dp_shard": 2, "tp": 2, "cp": 2},
}
CASES = tuple(
    (model, mesh)
    for model in LIMITS
    for mesh in MESHES
    if model != "mimo_v2_flash" or mesh in ("one", "tp 2", "ulysses, tp 2")
)
"""The values of mimo are not as wide as its keys: Ulysses alone takes them."""
QUICK = "gpt_oss: allgather, tp 2", "granite_swa: ring", "gemma2: allgather, tp 2"


def name(case: object) -> str:
    return ": ".join(case) if isinstance(case, tuple) else str(case)


def prepared(model: str, mesh: str, folder: Path) -> str:
    """A plan for the model, whose sinks are as large as its scores."""
    sizes = MESHES[mesh]
    inventory = prepare(model, architectures()[model], changes=CAPPED.get(model, {}), folder=folder)
    path = folder / model / "model.safetensors"
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(5)
    for fqn, tensor in tensors.items():
        if fqn.endswith("sinks"):
            tensors[fqn] = 2 * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, path, metadata={"format": "pt"})
    rotate = next((one for one in ("allgather", "ulysses", "ring") if one in mesh), "")
    on = [one for one in ("dp_shard", "cp") if one in sizes]
    column = "cp" if "cp" in sizes else "one"
    text = plan_text(column, inventory, model=model, variant=Variant(rotate=rotate))
    text = text.replace("dtype = float32", "dtype = float64").replace(
        "fsdp on cp", f"fsdp on {', '.join(on)}"
    )
    if sizes.get("dp_shard"):
        text = text.replace("micro_batch = 4", "micro_batch = 2")
    lines = "".join(f"  {dim} = {size}\n" for dim, size in sizes.items())
    blocks = _SOLVED if "tp" in sizes else ""
    return re.sub(r"mesh \{.*?\}\n", f"mesh {{\n{lines}}}\n{blocks}", text, count=1, flags=re.DOTALL)


def trained(rank: int, world_size: int, task: Task) -> Record:
    """A step of planc. Kernels of grouped products take no float64."""
    with patch.object(moe, "_can_use_grouped_mm", lambda *_: False):
        return train_rank(rank, world_size, task)


def expected(
    rank: int, world_size: int, folder: Path, corpus: Path
) -> tuple[float, dict[str, Tensor], float]:
    """The first loss and its gradients without planc, and the loss without caps."""
    tokens = tokens_of(corpus, sequence_length=SEQUENCE_LENGTH)
    model: Any = loaded(folder, dtype="float64")
    assert model.config._attn_implementation == "eager"
    model.config._experts_implementation = "eager"

    def loss_of() -> Tensor:
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    loss = loss_of()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = gradients_of(model)
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    return loss.item(), gradients, loss_of().item()


def beyond(found: dict[str, Tensor], wanted: dict[str, Tensor], *, limit: float) -> dict[str, float]:
    """The errors of gradients that are larger."""
    assert found.keys() == wanted.keys()
    floor = FLOOR * torch.stack([one.norm() for one in wanted.values()]).norm()
    errors = {fqn: float((found[fqn] - one).norm() / max(one.norm(), floor)) for fqn, one in wanted.items()}
    return {fqn: error for fqn, error in errors.items() if not error < limit}


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_except(CASES, *QUICK, name=name), ids=name)
def test_sinks_and_caps_train_as_in_one_process(case: tuple[str, str], tmp_path: Path) -> None:
    model, mesh = case
    start_server()
    write_corpus(tmp_path / CORPUS, sequence_length=SEQUENCE_LENGTH)
    graph = graph_of(prepared(model, mesh, tmp_path), tmp_path)
    arguments = tmp_path / model, tmp_path / CORPUS
    ((loss, gradients, uncapped),) = run_ranks(
        expected, 1, *arguments, timeout_seconds=100.0, init=False, quiet=True
    )
    of_sinks = [one for fqn, one in gradients.items() if fqn.endswith("sinks")]
    if model in CAPPED:
        assert abs(uncapped - loss) / loss > 100 * LIMITS[model]
    else:
        assert of_sinks and min(float(one.norm()) for one in of_sinks) > 0
    task = Task(graph, tmp_path, tmp_path / "run", stop_after=1)
    record, *_ = run_ranks(trained, graph.world_size, task, timeout_seconds=100.0, init=False, quiet=True)
    assert abs(record.metrics[0].loss - loss) / loss < LIMITS[model]
    assert beyond(record.gradients, gradients, limit=LIMITS[model]) == {}
