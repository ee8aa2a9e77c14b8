"""Which draws a plan may have, and where the rest is reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.graph.ops import AttachDropout, BuildModel
from planc.inventory.codec import dumps, loads
from planc.inventory.files import InventoryError
from planc.inventory.probe.probe import probe
from planc.inventory.schema import Draw, Inventory
from planc.source import SourceFile
from planc.vocab import DropoutDim, Replicate, Shard
from tests.dropout.cases import SIZES, Case
from tests.models.tiny import tiny_config

BATCH, SEQUENCE, TOKENS = DropoutDim
TP = "tensor_parallel on tp {\n  auto\n}\n"
DIVIDED = "tensor_parallel on tp {\n  auto(sequence_parallel = true)\n}\n"


def probed(folder: Path, config: object) -> Inventory:
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return probe(folder / "model")


def check(folder: Path, inventory: Inventory, case: Case) -> Checked:
    """A plan with this inventory of the folder's model."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "inventory.json").write_text(dumps(inventory), encoding="utf-8")
    return check_source(SourceFile("dropout.plan", case.plan(dtype="float32")), base=folder)


def findings(checked: Checked) -> list[str]:
    assert checked.graph is not None or checked.diagnostics
    return [one.primary.text for one in checked.diagnostics if one.code.code == "P724"]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return probed(tmp_path_factory.mktemp("gpt2"), SIZES["gpt2"])


@pytest.fixture(scope="module")
def opt(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    return probed(tmp_path_factory.mktemp("opt"), SIZES["opt"])


def draws(inventory: Inventory, fqn: str) -> tuple[Draw, ...]:
    module = inventory.get(fqn)
    assert module is not None
    return module.draws


def test_a_probe_finds_who_drops_what(gpt2: Inventory) -> None:
    layer = "transformer.h.1"
    assert draws(gpt2, "transformer.drop") == (
        Draw(0.3, (BATCH, SEQUENCE, 32), ("transformer.wte", "transformer.wpe")),
    )
    assert draws(gpt2, f"{layer}.attn") == (
        Draw(0.25, (BATCH, 4, SEQUENCE, SEQUENCE), (f"{layer}.attn.c_attn",)),
    )
    for name in ("attn.resid_dropout", "mlp.dropout"):
        (found,) = draws(gpt2, f"{layer}.{name}")
        assert (found.probability, found.dims) == (0.2, (BATCH, SEQUENCE, 32))
    assert (gpt2.random_weights, gpt2.random_others) == (("attn_pdrop",), ())


def test_a_probe_numbers_what_a_modules_own_code_drops(opt: Inventory) -> None:
    """OPT flattens its tokens for the second one."""
    found = draws(opt, "model.decoder.layers.1")
    assert [one.probability for one in found] == [0.2, 0.2]
    assert found[0].dims == (BATCH, SEQUENCE, 32)
    assert found[1].sources == ("model.decoder.layers.1.fc2",)


def test_draws_are_read_as_they_were_written(opt: Inventory) -> None:
    assert loads(dumps(opt)) == opt
    wrong = dumps(opt).replace('"draws":[[0.25,', '"draws":[[1.25,', 1)
    with pytest.raises(InventoryError, match="not a probability"):
        loads(wrong)


def test_the_graph_states_probabilities_and_layouts(gpt2: Inventory, tmp_path: Path) -> None:
    graph = check(tmp_path, gpt2, Case("tp", {"tp": 2}, TP)).graph
    assert graph is not None
    ops = {op.modules[0]: op for op in graph.setup if isinstance(op, AttachDropout)}
    (weights,) = ops["transformer.h.0.attn"].draws
    assert (weights.probability, weights.layout) == (0.25, Shard(1))
    (hidden,) = ops["transformer.h.0.mlp.dropout"].draws
    assert (hidden.probability, hidden.layout) == (0.2, Replicate())
    assert ops["transformer.h.0.mlp.dropout"].modules[1] == "transformer.h.1.mlp.dropout"
    assert {op.seed for op in ops.values()} == {7}


def test_shards_of_the_sequence_are_stated(gpt2: Inventory, tmp_path: Path) -> None:
    graph = check(tmp_path, gpt2, Case("sp", {"tp": 2}, DIVIDED)).graph
    assert graph is not None
    layouts = {op.modules[0]: op.draws[0].layout for op in graph.setup if isinstance(op, AttachDropout)}
    assert layouts["transformer.h.0.mlp.dropout"] == Shard(1)
    assert layouts["transformer.h.0.attn"] == Shard(1)


def test_without_dropout_nothing_is_attached(gpt2: Inventory, tmp_path: Path) -> None:
    case = Case("one")
    text = case.plan(dtype="float32").replace("model {", "model {\n  dropout = false")
    check(tmp_path, gpt2, case)
    graph = check_source(SourceFile("dropout.plan", text), base=tmp_path).graph
    assert graph is not None
    assert not [op for op in graph.setup if isinstance(op, AttachDropout)]
    (build,) = (op for op in graph.setup if isinstance(op, BuildModel))
    assert {"resid_pdrop", "embd_pdrop", "attn_pdrop"} <= set(build.zeroed)


def test_fused_attention_drops_no_weights(gpt2: Inventory, tmp_path: Path) -> None:
    (text,) = findings(check(tmp_path, gpt2, Case("fused", attention="sdpa")))
    assert "`attn_pdrop` of its config.json is not 0, and fused attention has no weights" in text


def test_layer_drop_is_refused(tmp_path: Path) -> None:
    found = probed(tmp_path, SIZES["opt"] | {"layerdrop": 0.1})
    assert found.random_others == ("layerdrop",)
    (text,) = findings(check(tmp_path, found, Case("layer drop", model="opt")))
    assert text == "`layerdrop` of its config.json is not 0, and planc repeats dropout only"


def test_jitter_is_refused(tmp_path: Path) -> None:
    config = dict(tiny_config("mixtral", "MixtralForCausalLM")) | {"router_jitter_noise": 0.1}
    found = probed(tmp_path, config)
    assert found.random_others == ("router_jitter_noise",)
    (text,) = findings(check(tmp_path, found, Case("jitter")))
    assert text.startswith("`router_jitter_noise` of its config.json is not 0")


def test_a_tensor_of_unknown_dimensions_is_refused(gpt2: Inventory, tmp_path: Path) -> None:
    changed = _with_draw(gpt2, "transformer.drop", Draw(0.3))
    (text,) = findings(check(tmp_path, changed, Case("unknown")))
    assert text.startswith("dropout in `transformer.drop` can't be repeated on other meshes")


def test_a_tensor_of_unknown_layout_is_refused_over_tp_only(gpt2: Inventory, tmp_path: Path) -> None:
    """A rank's features of heads that the tensor has as a dimension of their own."""
    name = "transformer.h.0.attn.resid_dropout"
    draw = Draw(0.2, (BATCH, SEQUENCE, 4, 8), ("transformer.h.0.attn.c_attn",))
    changed = _with_draw(gpt2, name, draw)
    assert findings(check(tmp_path, changed, Case("one"))) == []
    checked = check(tmp_path, changed, Case("tp", {"tp": 2}, TP))
    (text,) = findings(checked)
    assert text.endswith("its tensor's layout over tp is unknown")
    (finding,) = (one for one in checked.diagnostics if one.code.code == "P724")
    assert finding.primary.span.line == case_line("tensor_parallel", Case("tp", {"tp": 2}, TP))


def case_line(word: str, case: Case) -> int:
    lines = case.plan(dtype="float32").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.startswith(word))


def _with_draw(inventory: Inventory, fqn: str, draw: Draw) -> Inventory:
    modules = tuple(
        replace(module, draws=(draw,)) if module.fqn == fqn else module for module in inventory.modules
    )
    return replace(inventory, modules=modules)
