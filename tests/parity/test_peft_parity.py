"""Adapters against peft in one process: what it trains, and what it loads of an export.

`pip install peft` first: planc does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from planc.verify.compare import worst_gradient, worst_relative
from tests.dist.pool import run_ranks
from tests.parity.cases import TP2_DP2, Case, compile_case, make_workspace
from tests.parity.compare import TOLERANCE
from tests.parity.ranks import Record, Task, train_rank
from tests.parity.reference import train_reference, write_weights
from tests.parity.test_adapter_parity import EXPORTED, EXPORTED_DORA, fill_adapters, values

peft: Any = pytest.importorskip("peft", reason="peft is not installed")
BIASED = '  kind = lora(rank = 4, alpha = 6, dora = true)\n  "**.{*_proj,c_*}" -> adapted\n}\ncheckpoint {\n'
CASES = (
    Case("TP2·DP2", "LoRA", TP2_DP2, adapter=EXPORTED),
    Case("TP2·DP2", "DoRA", TP2_DP2, adapter=EXPORTED_DORA),
    Case("TP2·DP2", "DoRA, biases", TP2_DP2, "starcoder", tensor_parallel="auto", adapter=BIASED),
)


@dataclass(frozen=True)
class WithPeft:
    """Add peft's adapters, which begin with the values that planc's do."""

    config: Any

    def __call__(self, model: nn.Module) -> None:
        peft.inject_adapter_in_model(self.config, model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_" in name:
                    parameter.copy_(values(name.replace(".default", ""), tuple(parameter.shape)))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mesh_trains_what_peft_trains_in_one_process_and_peft_loads_it(case: Case, tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "workspace", (case.model,))
    write_weights(workspace / case.model)
    text = case.adapter if "export" in case.adapter else f'{case.adapter}  export "adapter" {{}}\n'
    graph = compile_case(replace(case, weights="pretrained", adapter=text), workspace=workspace)
    adapters = graph.adapters
    assert adapters is not None
    config = peft.LoraConfig(
        r=adapters.rank,
        lora_alpha=adapters.alpha,
        use_rslora=adapters.rslora,
        use_dora=adapters.dora,
        target_modules=list(adapters.modules),
    )
    reference = train_reference(case.model, workspace=workspace, prepare=WithPeft(config))
    theirs = {name.replace(".default", ""): one for name, one in reference.gradients.items()}
    base: Any = AutoModelForCausalLM.from_pretrained(workspace / case.model)
    tokens = torch.arange(2 * 32).view(2, 32)
    with TemporaryDirectory(prefix="planc-peft-") as name:
        task = Task(graph, workspace, Path(name), fill_adapters)
        records: list[Record] = run_ranks(train_rank, case.world_size, task, init=False)
        loaded = peft.PeftModel.from_pretrained(base, Path(name) / "export" / "adapter").eval()
        with torch.no_grad():
            logits = loaded(tokens).logits
    first = records[0]
    assert worst_relative([step.loss for step in first.metrics], reference.losses) < 1e-6
    assert first.gradients.keys() == theirs.keys()
    worst, error = worst_gradient(first.gradients, theirs)
    assert error < TOLERANCE, f"gradient of {worst}"
    own: Any = AutoModelForCausalLM.from_pretrained(workspace / case.model)
    with torch.no_grad():
        for module in adapters.modules:
            weight = own.get_submodule(module).weight
            down, up = (first.final[f"{module}.lora_{part}.weight"] for part in "AB")
            weight += adapters.scale * up @ down
            if adapters.dora:
                lengths = first.final[f"{module}.lora_magnitude_vector.weight"]
                weight *= (lengths / weight.square().sum(1).sqrt())[:, None]
        assert (own.eval()(tokens).logits - logits).abs().max() < 1e-5
