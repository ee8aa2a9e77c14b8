"""A model class of a plan's own, on meshes against one process that trains the class itself."""

from __future__ import annotations

import hashlib
import json
import re
import runpy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from planc.api import check_plan
from planc.cli.main import main
from planc.extend.reference import Extension
from planc.inventory.files import InventoryError
from planc.inventory.probe.probe import probe
from planc.inventory.schema import Inventory
from planc.runtime.errors import RunError
from planc.runtime.torch.weights.factory import own_class
from planc.source import SourceFile
from tests.models.independent import digests_of
from tests.own_code.by_hand import (
    LEARNING_RATE,
    MAX_NORM,
    compiled,
    require_equal,
    sequences_of,
    train,
    trained,
)

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_model"
LENGTH, STEPS, BATCH = 64, 3, 8
TEXTS = [f"{number} squared is {number * number}. " * 5 for number in range(60)]

PLAN = """extension "gated.py"
model {{
  hf = "gated"
  architecture = gated
  weights = {weights}
  attention = eager
}}
mesh {{
{mesh}
}}
{blocks}
data {{
  source = text("texts/*.txt")
  sequence_length = {length}
  micro_batch = 2
}}
optimizer {{
  kind = adamw(lr = {lr}, weight_decay = 0.01)
  clip_grad_norm = {norm}
  schedule = constant
}}
checkpoint {{
  save_every = 2 steps
  resume = latest
  export "hf" {{
    when = end
  }}
}}
train {{
  steps = {steps}
  tokens_per_step = {tokens}
}}
"""
TP = "tensor_parallel on tp {\n  auto(solve)\n}\n"
FSDP = 'fsdp on dp_shard {\n  "layers.*" -> unit\n}\n'
MESHES = {
    "one": ("  dp_shard = 1", ""),
    "dp_shard 2 x tp 2": ("  dp_shard = 2\n  tp = 2", TP + FSDP),
    "dp_replicate 2": ("  dp_replicate = 2", ""),
}


def write(folder: Path, *, mesh: str, weights: str = "pretrained", steps: int = STEPS) -> Path:
    """A plan with the example's class, in a folder of its own."""
    for name in ("gated.py", "gated/config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((EXAMPLE / name).read_bytes())
    save_file(
        {name: one.detach() for name, one in built().state_dict().items()}, folder / "gated/model.safetensors"
    )
    (folder / "texts").mkdir(exist_ok=True)
    for number, text in enumerate(TEXTS):
        (folder / "texts" / f"{number:03}.txt").write_text(text)
    sizes, blocks = MESHES[mesh]
    plan = PLAN.format(
        weights=weights, mesh=sizes, blocks=blocks, length=LENGTH, lr=LEARNING_RATE, norm=MAX_NORM,
        steps=steps, tokens=BATCH * LENGTH,
    )  # fmt: skip
    (folder / "own.plan").write_text(plan)
    return folder / "own.plan"


def built() -> nn.Module:
    """The example's class as its file has it, with weights that no two calls draw differently."""
    values = json.loads((EXAMPLE / "gated" / "config.json").read_text())
    torch.manual_seed(5)
    model: nn.Module = runpy.run_path(str(EXAMPLE / "gated.py"))["Gated"](SimpleNamespace(**values))
    return model


@cache
def expected(steps: int = STEPS) -> Any:
    return train(built(), sequences_of(TEXTS, length=LENGTH), steps=steps, batch=BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_own_class_trains_as_one_process(
    mesh: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = compiled(write(tmp_path, mesh=mesh))
    records = trained(graph, base=tmp_path, folder=tmp_path / "run")
    require_equal(records, expected())
    exported = load_file(tmp_path / "run" / "export" / "hf" / "model.safetensors")
    # As the module itself loads it.
    assert built().load_state_dict(exported, strict=True)
    for name, one in expected().final.items():
        assert torch.allclose(exported[name].float(), one, rtol=2e-2, atol=1e-2), name
    commands_use_its_checkpoint(tmp_path / "run", exported, capsys)


def commands_use_its_checkpoint(
    run: Path, exported: dict[str, torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    """An export afterwards is that of the run, with leave alone; no text comes from it."""
    command = ["checkpoint", "export", str(run), "--hf", str(run / "again")]
    for unasked in (command, ["eval", str(run), "--data", str(run.parent / "texts" / "001.txt")]):
        assert main(unasked) == 2
        assert "read gated.py, then add `--run-extensions`" in capsys.readouterr().err
    assert main(["sample", str(run), "1 squared"]) == 2
    assert "`gated`, of gated.py: `generate` belongs to transformers' classes" in capsys.readouterr().err
    assert main([*command, "--run-extensions"]) == 0
    again = load_file(run / "again" / "model.safetensors")
    assert again.keys() == exported.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in exported.items())


@pytest.mark.slow
def test_own_class_resumes_on_another_mesh(tmp_path: Path) -> None:
    whole, short = tmp_path / "whole", tmp_path / "short"
    whole.mkdir(), short.mkdir()
    steps = 4
    graph = compiled(write(whole, mesh="one", steps=steps))
    full = trained(graph, base=whole, folder=whole / "run")
    first = compiled(write(short, mesh="dp_shard 2 x tp 2", steps=steps))
    trained(first, base=short, folder=short / "run", stop_after=2)
    second = compiled(write(short, mesh="one", steps=steps))
    resumed = trained(second, base=short, folder=short / "run")
    assert resumed[0].first_step == 3
    for name, one in full[0].final.items():
        assert torch.allclose(resumed[0].final[name], one, rtol=1e-3, atol=2e-5), name


@pytest.mark.slow
def test_random_weights_are_those_of_reset_parameters_on_every_mesh(tmp_path: Path) -> None:
    found = []
    for mesh in ("one", "dp_replicate 2"):
        folder = tmp_path / mesh
        folder.mkdir()
        records = trained(
            compiled(write(folder, mesh=mesh, weights="random", steps=1)), base=folder, folder=folder / "run"
        )
        found.append({**records[0].initial, **records[0].buffers})
    assert found[0] == found[1]
    # The rotation's frequencies are the constructor's own.
    assert digests_of(built())["layers.0.attention.frequencies"] == found[0]["layers.0.attention.frequencies"]


def problems(path: Path, *settings: str) -> dict[str, tuple[str, str]]:
    """What a check finds: each code with its label and its help."""
    sources = [SourceFile(f"--set {one}", one) for one in settings]
    checked = check_plan(path, settings=sources, runs_extensions=True)
    return {one.code.code: (one.primary.text, one.help or "") for one in checked.diagnostics}


def test_context_parallelism_with_own_attention_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, mesh="one")
    text = path.read_text().replace("  dp_shard = 1", "  cp = 2")
    path.write_text(text.replace("data {", "context_parallel on cp {\n}\ndata {"))
    found = problems(path)
    assert "cp = 2 gives each rank a part of the tokens" in found["P609"][0]


def test_stages_of_a_class_that_was_never_compared_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, mesh="one")
    path.write_text(path.read_text().replace("  dp_shard = 1\n}", "  pp = 2\n}\npipeline on pp {\n}"))
    assert "has not been compared" in problems(path)["P320"][0]


def test_own_attention_must_be_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, mesh="one")
    path.write_text(path.read_text().replace("attention = eager", "attention = sdpa"))
    text, help = problems(path)["P708"]
    assert "attention" in text and "in its own code" in text and "attention = eager" in help


BAD = {
    "later tokens": ("is_causal=True", "is_causal=False", "is not causal"),
    "loose tensor": (
        'self.register_buffer("frequencies", frequencies, persistent=False)',
        "self.frequencies = frequencies",
        "neither a parameter nor a buffer",
    ),
    "mixing outside": (
        "return self.head(self.norm(hidden))",
        "return self.head(self.norm(hidden + hidden.cumsum(1)))",
        "itself lets tokens see others",
    ),
    "no list of layers": (
        "self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))",
        "self.one, self.two = Layer(config), Layer(config)\n        self.layers = [self.one, self.two]",
        "no list of layers",
    ),
    "fixed sizes": (
        "nn.Linear(config.intermediate_size",
        "nn.Linear(160",
        "can't be built and run with small sizes",
    ),
    "other inputs": ("input_ids, position_ids", "input_ids, positions", "must take `input_ids`"),
    "own error": ("self.embed = ", "1 / 0\n        self.embed = ", "ZeroDivisionError"),
    "a branch on values": (
        "hidden = self.embed(input_ids)",
        "hidden = self.embed(input_ids if input_ids.sum() > 0 else input_ids)",
        "depends on the values of tensors",
    ),
    "a dict": (
        "return self.head(self.norm(hidden))",
        'return {"logits": self.head(self.norm(hidden))}',
        "returns a dict, and must return logits",
    ),
    "too few tokens": (
        "return self.head(self.norm(hidden))",
        "return self.head(self.norm(hidden))[:, :-1]",
        "and must return logits",
    ),
    "not a module": ("class Gated(nn.Module)", "class Gated", "is not a class of torch.nn.Module"),
}


@pytest.mark.parametrize("name", BAD)
def test_class_that_planc_cannot_divide_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path, mesh="one")
    old, new, reason = BAD[name]
    text = (tmp_path / "gated.py").read_text()
    assert old in text
    (tmp_path / "gated.py").write_text(text.replace(old, new))
    with pytest.raises((InventoryError, RunError), match=reason):
        probed(tmp_path)


def test_an_error_of_the_class_has_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, mesh="one")
    code = tmp_path / "gated.py"
    code.write_text(code.read_text().replace("return self.head(", "return self.heed("))
    line = code.read_text()[: code.read_text().index("self.heed(")].count("\n") + 1
    text, help = problems(path)["P216"]
    assert f"`gated` does not run: gated.py:{line}: AttributeError" in text
    assert help.startswith("correct gated.py")


@pytest.mark.slow
def test_the_example_is_rehearsed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(EXAMPLE / "own_model.plan"), "--deep", "--run-extensions"]) == 0
    assert "rehearsed" in capsys.readouterr().out


def probed(folder: Path) -> Inventory:
    """What the process that probes the class finds, in this one."""
    digest = hashlib.sha256((folder / "gated.py").read_bytes()).hexdigest()
    own = Extension(kind="model", entry="gated", file="gated.py", digest=digest, arguments=())
    return probe(folder / "gated", own=own_class(own, base=folder, is_allowed=True))


MIXING = {
    "attention by another name": ("GatedAttention", "Mixer", ("layers.*.attention",)),
    "a shift of tokens before the mlp": (
        "hidden + self.down(silu(self.up(self.norm_mlp(hidden))))",
        "hidden + self.down(silu(self.up(self.norm_mlp(hidden.roll(1, 1)))))",
        ("layers.*.attention", "layers.*"),
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_code_in_which_tokens_see_others_is_found_by_what_it_does(name: str, tmp_path: Path) -> None:
    write(tmp_path, mesh="one")
    old, new, modules = MIXING[name]
    text = (tmp_path / "gated.py").read_text()
    assert old in text
    text = text.replace(old, new)
    # What comes before the first token is none.
    text = text.replace("hidden.roll(1, 1)", "nn.functional.pad(hidden, (0, 0, 1, 0))[:, :-1]")
    (tmp_path / "gated.py").write_text(text)
    found = {re.sub(r"[0-9]", "*", fqn) for fqn in probed(tmp_path).own_attentions}
    assert found == {*modules}


def test_heads_that_share_keys_and_the_gate_are_divided_by_heads(tmp_path: Path) -> None:
    write(tmp_path, mesh="one")
    heads = [(one.num_heads, one.num_kv_heads) for one in probed(tmp_path).own_heads]
    assert heads == [(4, 2), (4, 2)]


def test_class_is_not_run_unasked(tmp_path: Path) -> None:
    path = write(tmp_path, mesh="one")
    with (tmp_path / "gated.py").open("a") as file:
        file.write(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    checked = check_plan(path)
    (problem,) = checked.diagnostics
    assert problem.code.code == "P216" and "--run-extensions" in (problem.help or "")
    assert not (tmp_path / "ran").exists()
