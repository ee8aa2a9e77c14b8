"""Adapters of routed experts against peft in one process: what it trains, and what it loads of an export.

`pip install peft` first: planc does not need it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from planc.verify.compare import worst_gradient, worst_relative
from tests.dist.pool import run_ranks
from tests.parity.cases import Case, compile_case, make_workspace
from tests.parity.compare import TOLERANCE
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import train_reference, write_weights
from tests.parity.test_adapter_parity import fill_adapters, values

peft: Any = pytest.importorskip("peft", reason="peft is not installed")
RANK = 4
ADAPTED = f"""\
  kind = lora(rank = {RANK}, alpha = 6)
  "**.self_attn.q_proj" -> adapted
  "**.mlp.experts" -> adapted
}}
checkpoint {{
  export "adapter" {{}}
  export "hf" {{ merged = true }}
"""
CASES = (
    Case("DP2", "experts", {"dp_shard": 2}, "qwen3-moe", adapter=ADAPTED),
    Case("1", "experts", model="qwen3-moe", adapter=ADAPTED),
)


def in_peft(name: str, weight: Tensor) -> tuple[str, Tensor]:
    """peft's name and shape of an adapter's weight: it wraps experts for their first stack, then again."""
    match = re.fullmatch(r"(.*)\.(gate_up_proj|down_proj)_(lora_[AB])", name)
    if match is None:
        return name, weight
    wrapper = ".base_layer" * (match[2] == "gate_up_proj")
    shaped = weight.flatten(0, 1) if match[3] == "lora_A" else weight.permute(1, 2, 0).flatten(1)
    return f"{match[1]}{wrapper}.{match[3]}.weight", shaped


@dataclass(frozen=True)
class WithPeft:
    """Add peft's adapters, which begin with the values that planc's do."""

    config: Any
    started: dict[str, Tensor]

    def __call__(self, model: nn.Module) -> None:
        peft.inject_adapter_in_model(self.config, model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_" in name:
                    parameter.copy_(self.started[name.replace(".default", "")])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mesh_trains_experts_as_peft_in_one_process_and_peft_loads_them(case: Case, tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "workspace", (case.model,))
    write_weights(workspace / case.model)
    graph = compile_case(replace(case, weights="pretrained"), workspace=workspace)
    adapters = graph.adapters
    assert adapters is not None and len(adapters.stacked) == 2 * len(adapters.experts) > 0
    with TemporaryDirectory(prefix="planc-peft-") as name:
        folder = Path(name)
        task = Task(graph, workspace, folder, fill_adapters)
        records: list[Record] = run_ranks(train_rank, case.world_size, task, init=False)
        base: Any = AutoModelForCausalLM.from_pretrained(workspace / case.model)
        loaded = peft.PeftModel.from_pretrained(base, folder / "export" / "adapter").eval()
        merged = AutoModelForCausalLM.from_pretrained(folder / "export" / "hf").eval()
        untrained = AutoModelForCausalLM.from_pretrained(workspace / case.model).eval()
        tokens = torch.arange(2 * 32).view(2, 32)
        with torch.no_grad():
            logits, of_merged, before = (one(tokens).logits for one in (loaded, merged, untrained))
    assert (logits - before).abs().max() > 1e-3
    assert (logits - of_merged).abs().max() < 1e-5
    own = records[0].gradients
    started = dict(in_peft(name, values(name, tuple(one.shape))) for name, one in own.items())
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=6,
        target_modules=["q_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )
    reference = train_reference(case.model, workspace=workspace, prepare=WithPeft(config, started))
    assert worst_relative([step.loss for step in records[0].metrics], reference.losses) < 1e-6
    theirs = {name.replace(".default", ""): one for name, one in reference.gradients.items()}
    ours = dict(in_peft(name, one) for name, one in own.items())
    assert ours.keys() == theirs.keys()
    worst, error = worst_gradient(ours, theirs)
    assert error < TOLERANCE, f"gradient of {worst}"
