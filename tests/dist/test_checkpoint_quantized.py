"""Checkpoints of adapters on a base in NF4: resumed on another mesh, and exported as they were trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from planc.cli.main import main
from planc.cli.support.exits import CLEAN
from planc.runtime.checkpoint_format.layout import step_directory
from planc.runtime.checkpoint_format.verify import read_manifest
from tests.dist.test_checkpoint_base import copied, train
from tests.parity.cases import SAVE_STEP, TP2_DP2, Case, make_workspace
from tests.parity.reference import write_weights
from tests.parity.test_qlora_parity import MODEL, QV, rounded

ONE = Case("1", model=MODEL, weights="pretrained", adapter=QV)
TP = replace(ONE, shape="TP2·DP2", mesh=TP2_DP2)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["named", "stored"])
def test_a_quantized_base_is_resumed_and_exported_as_it_was_trained(base: str, tmp_path: Path) -> None:
    """Whether the files of the model have the base, or the checkpoint has its codes."""
    workspace = make_workspace(tmp_path / "workspace", (MODEL,))
    write_weights(workspace / MODEL)
    case = replace(TP, settings=(f"checkpoint.base={base}",))
    before = train(case, workspace=workspace, folder=tmp_path / "first")
    first = step_directory(tmp_path / "first" / "checkpoints", step=SAVE_STEP)
    manifest = read_manifest(first)
    tensors = manifest.tensors if base == "stored" else manifest.base.tensors if manifest.base else {}
    layer = "model.layers.0.mlp.down_proj"
    assert (tensors[f"model.{layer}.weight"].dtype, tensors[f"model.{layer}.weight"].shape) == (
        "uint8",
        (64, 256 // 64 * 36),
    )
    resumed = copied(tmp_path / "first", tmp_path / "second")
    one = replace(ONE, settings=case.settings)
    after = train(one, workspace=workspace, folder=resumed)
    assert after.states[SAVE_STEP] == before.states[SAVE_STEP]
    hf = tmp_path / "hf"
    model = str(workspace / MODEL)
    command = ["checkpoint", "export", str(tmp_path / "first"), "--hf", str(hf), "--model", model]
    assert main(command) == CLEAN
    exported = load_file(hf / "model.safetensors")
    files = load_file(workspace / MODEL / "model.safetensors")
    torch.testing.assert_close(exported[f"{layer}.weight"], rounded(files[f"{layer}.weight"]))
    name = "model.layers.1.self_attn.q_proj"
    down, up = (before.final[f"{name}.{part}.weight"] for part in ("lora_A", "lora_B"))
    torch.testing.assert_close(
        exported[f"{name}.weight"], rounded(files[f"{name}.weight"]) + 2 * up @ down, rtol=1e-5, atol=1e-6
    )
