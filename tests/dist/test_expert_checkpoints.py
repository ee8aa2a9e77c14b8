"""Checkpoints and exports of experts on different ranks: whole, whatever ranks had them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from planc.cli.main import main
from planc.verify.ranks import Digests
from tests.dist.test_expert_parallel import MODELS, batches_of, by_transformers, folder_of, graph_of, trained

SAVED_STEP = 2
SAVING = (("train {", "checkpoint {\n  save_every = 2 steps\n}\n\ntrain {"),)
EXPORTING = (("train {", 'checkpoint {\n  save_last = false\n  export "hf" { when = end }\n}\n\ntrain {'),)
OVER_OTHERS = (
    *("ep 4, over cp", "ep 2, over cp", "ep 2, over a part of cp", "ep 4, over more than cp"),
    *("ep 4, over tp", "ep 2, over tp", "ep 2, over tp alone", "ep 4, over cp and tp"),
)
SIZES = ("ep 1 of 4", "ep 2 of 4", "ep 4")
Saved = Callable[[str], tuple[Path, Digests]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experts")


@pytest.fixture(scope="module")
def saved(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The run directory of a mesh, with one checkpoint, and the digests of what it holds."""

    @cache
    def run(mesh: str) -> tuple[Path, Digests]:
        folder, run_folder = folder_of(root, "qwen3_moe"), tmp_path_factory.mktemp("saved")
        records = trained(graph_of(folder, mesh, edits=SAVING), folder, run_folder, stop_after=SAVED_STEP)
        return run_folder, records[0].states[SAVED_STEP]

    return run


def resumed(root: Path, mesh: str, run_folder: Path) -> Digests:
    """The digests of what a mesh restores from a checkpoint, and trains on."""
    folder = folder_of(root, "qwen3_moe")
    record = trained(graph_of(folder, mesh, edits=SAVING), folder, run_folder)[0]
    assert record.first_step == SAVED_STEP + 1
    return record.states[SAVED_STEP]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ep 2 of 4", "ep 4"),
        *(
            pytest.param(before, after, marks=pytest.mark.slow)
            for before in (*SIZES, "one", "ep 2 of 4, tp", "ep 2, pp")
            for after in (*SIZES, "one", "ep 2, tp", "ep 2, cp")
            if (before, after) != ("ep 2 of 4", "ep 4")
        ),
        *(pytest.param("ep 2 of 4", after, marks=pytest.mark.slow) for after in OVER_OTHERS),
        *(pytest.param(before, "ep 4", marks=pytest.mark.slow) for before in OVER_OTHERS),
    ],
)
def test_a_checkpoint_of_experts_loads_bitwise_on_another_mesh(
    before: str, after: str, saved: Saved, root: Path, tmp_path: Path
) -> None:
    """The weights and the optimizer's moments."""
    run_folder, digests = saved(before)
    shutil.copytree(run_folder, tmp_path, dirs_exist_ok=True)
    assert resumed(root, after, tmp_path) == digests and len(digests) >= 100


@pytest.mark.slow
def test_a_checkpoint_of_experts_survives_plain_dcp_bitwise(saved: Saved, root: Path, tmp_path: Path) -> None:
    run_folder, digests = saved("ep 2 of 4")
    shutil.copytree(run_folder, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    assert main(["checkpoint", "convert", str(checkpoints / "step-2"), "--dcp", str(tmp_path / "dcp")]) == 0
    shutil.rmtree(checkpoints)
    back = ["--planc", str(checkpoints), "--unpickle"]
    assert main(["checkpoint", "convert", str(tmp_path / "dcp"), *back]) == 0
    assert resumed(root, "ep 4", tmp_path / "run") == digests


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_an_export_of_experts_has_the_logits_of_one_process(name: str, root: Path, tmp_path: Path) -> None:
    """Loaded by transformers, bitwise what the ranks trained, and within rounding what one process did."""
    folder = folder_of(root, name)
    graph = graph_of(folder, "ep 2 of 4", edits=EXPORTING)
    records = trained(graph, folder, tmp_path)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export/hf", dtype=torch.float64)
    for key, weight in exported.named_parameters():
        assert torch.equal(weight, records[0].final[key]), key
    alone = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model")).double()
    expected = by_transformers(graph, folder, batches_of(records)).final
    # Buffers are of the model that both began with.
    alone.load_state_dict({**exported.state_dict(), **expected})
    found, wanted = _logits(exported.float()), _logits(alone.float())
    assert (found - wanted).norm() < 1e-5 * wanted.norm()


def _logits(model: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.eval()(torch.arange(64).reshape(2, 32)).logits
    return logits
