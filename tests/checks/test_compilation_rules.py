"""What may be compiled, and what may be offloaded."""

from __future__ import annotations

import pytest
from variants import Check

PLAN = """\
model {
  hf = "models/tiny-llama"
}
mesh {
  tp = 1
  cp = 1
  dp_shard = 1
}
fsdp on dp_shard, cp {
  "model.layers.*" -> unit
}
tensor_parallel on tp {
  auto
}
context_parallel on cp {
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}
compile {
  "REGION" -> ACTION
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 4
}
optimizer {
  kind = adamw(lr = 1e-3)
}
train {
  steps = 10
}
"""


def plan(*, region: str = "model.layers.*", action: str = "region") -> str:
    return PLAN.replace("REGION", region).replace("ACTION", action)


def codes(check: Check, text: str, *settings: str) -> list[str]:
    return [one.code.code for one in check(text, settings=settings).diagnostics]


@pytest.mark.parametrize("settings", [("mesh.tp=2",), ("mesh.tp=2", "mesh.dp_shard=2"), ("mesh.dp_shard=2",)])
def test_layers_may_be_compiled_and_sharded(settings: tuple[str, ...], check: Check) -> None:
    assert codes(check, plan(), *settings) == []


@pytest.mark.parametrize(
    ("region", "settings", "expected"),
    [
        ("model.layers.*", (), ["P806"]),
        ("model.layers.*", ("compile.fullgraph=false",), []),
        ("model.layers.*", ("context_parallel.rotate=allgather",), []),
        ("model.layers.*.mlp", (), []),
    ],
)
def test_a_ring_is_in_no_whole_graph(
    region: str, settings: tuple[str, ...], expected: list[str], check: Check
) -> None:
    found = codes(check, plan(region=region), "mesh.cp=2", *settings)
    assert [code for code in found if code.startswith("P80")] == expected


@pytest.mark.parametrize(
    ("region", "expected"), [("model", ["P808"]), ("model.layers.*", []), ("model.layers.*.mlp", [])]
)
def test_a_region_holds_no_unit(region: str, expected: list[str], check: Check) -> None:
    found = codes(check, plan(region=region), "mesh.dp_shard=2")
    assert [code for code in found if code.startswith("P80")] == expected


@pytest.mark.parametrize(("backend", "expected"), [("gloo", ["P522"]), ("auto", []), ("nccl", [])])
def test_offloading_on_processors_is_warned_of(backend: str, expected: list[str], check: Check) -> None:
    settings = ("mesh.dp_shard=2", "fsdp.cpu_offload=true", f"mesh.backend={backend}")
    assert [one for one in codes(check, plan(), *settings) if one == "P522"] == expected


def test_a_block_without_rules_is_warned_of(check: Check) -> None:
    empty = plan().replace('  "model.layers.*" -> region\n', "  backend = eager\n")
    found = check(empty + "activation_checkpoint {\n}\n", settings=()).diagnostics
    assert {one.code.code for one in found} == {"P812"}
    assert {one.help for one in found} == {
        'add `"model.layers.*" -> region`, or remove the block',
        'add `"model.layers.*" -> full`, or remove the block',
    }


def test_a_block_that_says_what_is_left_as_it_is_says_something(check: Check) -> None:
    assert codes(check, plan(action="none")) == []
