"""Experts with a capacity drop the same tokens on every mesh, as a loop over tokens does in one process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planc.api import check_plan
from planc.graph.ops import CapExperts
from planc.source import SourceFile
from tests.dist.test_expert_parallel import (
    BLOCKS,
    CONTEXT,
    LENGTH,
    MESHES,
    PLAN,
    RECOMPUTED,
    assert_equal,
    batches_of,
    by_transformers,
    folder_of,
    graph_of,
    trained,
)
from tests.plans import write_plan

CAPPED = ("  size = 1\n", "  size = 1\n  capacity = 0.75\n")
OVER_TP = "tensor_parallel on tp {\n  auto(sequence_parallel = true)\n}\n\nexpert_parallel on dp_shard, tp {"
EACH = {"qwen3_moe": 3, "deepseek_v3": 3, "gpt_oss": 3, "mixtral": 3}
"""0.75 x 16 tokens x 2 of 8 experts."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("capacity")


class Dropping:
    """Experts of one process that count the tokens of each sequence by hand."""

    def __init__(self, most: int) -> None:
        self.most, self.dropped = most, Counter[str]()

    def attach(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if name.endswith(".experts"):
                self._replace(name, module)

    def _replace(self, name: str, module: Any) -> None:
        inner = module.forward

        def forward(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
            outputs = torch.zeros_like(tokens)
            seen: Counter[tuple[int, int]] = Counter()
            for token in range(len(tokens)):
                for choice, expert in enumerate(chosen[token].tolist()):
                    seen[token // LENGTH, expert] += 1
                    if seen[token // LENGTH, expert] > self.most:
                        self.dropped[name] += 1
                        continue
                    # Its own sum of one expert's output, of one token.
                    row, one = slice(token, token + 1), slice(choice, choice + 1)
                    output = inner(tokens[row], chosen[row, one], torch.ones_like(weights[row, one]))
                    outputs = outputs.index_add(0, torch.tensor([token]), output * weights[row, one])
            return outputs

        module.forward = forward


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("qwen3_moe", "ep 2 of 4"),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                ("qwen3_moe", "one"),
                ("qwen3_moe", "ep 1 of 4"),
                ("qwen3_moe", "ep 2"),
                ("qwen3_moe", "ep 4"),
                ("qwen3_moe", "ep 2, replicas"),
                ("qwen3_moe", "ep 2, pp"),
                ("qwen3_moe", "ep 2, tp"),
                ("qwen3_moe", "ep 2, tp of sequences"),
                ("deepseek_v3", "ep 2 of 4"),
                ("gpt_oss", "ep 2"),
                ("mixtral", "ep 2"),
            )
        ),
    ],
)
def test_experts_take_the_first_tokens_of_each_sequence(
    name: str, mesh: str, root: Path, tmp_path: Path
) -> None:
    """Losses, norms, every gradient, and the numbers in metrics, with other routes in each step."""
    folder = folder_of(root, name)
    graph = graph_of(folder, mesh, edits=(CAPPED, ("  micro_batch = 1\n", "  micro_batch = 2\n")))
    assert graph.capacity is not None
    records = trained(graph, folder, tmp_path)
    dropping = Dropping(EACH[name])
    expected = by_transformers(graph, folder, batches_of(records), prepare=dropping.attach)
    assert_equal(records, expected, exact=1e-6 if "tp" in mesh and name != "qwen3_moe" else 1e-12)
    dropped: Counter[str] = Counter()
    for one in records[0].metrics:
        dropped.update(one.expert_dropped)
    assert min(dropped.values()) > 0
    assert dropped == dropping.dropped


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputed_layers_drop_the_same_tokens(mode: str, root: Path, tmp_path: Path) -> None:
    folder = folder_of(root, "qwen3_moe")
    graph = graph_of(folder, "ep 2", edits=(CAPPED, ("data", RECOMPUTED.format(mode))))
    records = trained(graph, folder, tmp_path)
    dropping = Dropping(EACH["qwen3_moe"])
    assert_equal(records, by_transformers(graph, folder, batches_of(records), prepare=dropping.attach))


@pytest.mark.parametrize(
    ("edit", "settings"),
    [
        (("fsdp on dp_shard {", f"{CONTEXT}fsdp on dp_shard, cp {{"), ("mesh.cp=2",)),
        (BLOCKS["over cp"][-1], ("mesh.cp=2",)),
        (("expert_parallel on dp_shard {", OVER_TP), ("mesh.tp=2",)),
        (("  micro_batch = 1\n", "  micro_batch = 1\n  packing = isolate\n"), ()),
        (BLOCKS["compiled"][0], ()),
    ],
    ids=["cp", "over cp", "over tp", "isolated documents", "compiled"],
)
def test_a_sequence_must_be_counted_whole(
    edit: tuple[str, str], settings: tuple[str, ...], root: Path
) -> None:
    folder = folder_of(root, "qwen3_moe")
    edits = (CAPPED, edit, ("  attention = eager\n", ""))
    sources = [SourceFile(f"--set[{one}]", one) for one in (*MESHES["ep 2"], *settings)]
    found = check_plan(write_plan(folder, text=PLAN, edits=edits), settings=sources)
    assert "P623" in {one.code.code for one in found.diagnostics}


def test_only_experts_have_a_capacity(root: Path) -> None:
    """On one rank each, too."""
    edits = (CAPPED, ("  auto\n", '  "model.layers.*.mlp.gate" -> dispatch\n'))
    found = check_plan(write_plan(folder_of(root, "qwen3_moe"), text=PLAN, edits=edits))
    assert "P620" in {one.code.code for one in found.diagnostics}


def test_capacities_round_up() -> None:
    """As exact products: 1.1 x 50 is 55, and in float64 more than that."""
    op = CapExperts(modules=("experts",), capacity=1.1)
    assert op.num_rows(length=150, per_token=1, num_experts=3) == 55
    assert op.num_rows(length=16, per_token=2, num_experts=8) == 5
    assert op.num_rows(length=2, per_token=1, num_experts=64) == 1
    assert op.num_rows(length=4, per_token=4, num_experts=4) == 4
