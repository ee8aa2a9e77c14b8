"""Adapters where planc would have to guess."""

from __future__ import annotations

import re

import pytest

from planc.api import Checked, check_source
from planc.source import SourceFile
from tests.plans import PLANS

PLAN = """\
model {
  hf = "models/tiny-phi3"
}

mesh {
  tp = 2
}

adapter {
  kind = lora(rank = 2, alpha = 4)
  "model.layers.*.mlp.gate_up_proj" -> adapted
}

tensor_parallel on tp {
  "model.layers.*.mlp.gate_up_proj" -> packed_colwise
  "model.layers.*.mlp.down_proj" -> rowwise
}

data {
  source = text("data/*.txt")
  sequence_length = 64
  micro_batch = 2
}

optimizer {
  kind = adamw(lr = 1e-3)
}

train {
  steps = 2
}
"""


def test_an_adapter_of_a_packed_layer_is_not_sharded() -> None:
    """No run with one was compared with one process."""
    for text, expected in ((PLAN, ["P771"]), (PLAN.replace("tp = 2", "dp_replicate = 2"), [])):
        text = text if expected else text[: text.index("tensor_parallel")] + text[text.index("data {") :]
        found = check_source(SourceFile("adapted.plan", text), base=PLANS)
        assert [one.code.code for one in found.diagnostics] == expected


def test_a_module_without_linear_layers_inside_has_no_adapter() -> None:
    text = PLAN[: PLAN.index("tensor_parallel")] + PLAN[PLAN.index("data {") :]
    text = text.replace("tp = 2", "dp_replicate = 2").replace("mlp.gate_up_proj", "input_layernorm")
    [found] = check_source(SourceFile("adapted.plan", text), base=PLANS).diagnostics
    assert (found.code.code, found.help) == ("P770", "name the linear layers of the model")


def test_an_adapters_own_layers_are_not_among_those_to_name() -> None:
    text = PLAN[: PLAN.index("tensor_parallel")] + PLAN[PLAN.index("data {") :]
    text = text.replace("tp = 2", "dp_replicate = 2").replace("model.layers.*.mlp.gate_up_proj", "**")
    found = next(one for one in check_source(SourceFile("a.plan", text), base=PLANS).diagnostics)
    assert found.code.code == "P770" and found.help is not None
    assert "proj" in found.help and "lora_" not in found.help


def test_averages_are_exported_of_a_plan_that_keeps_them() -> None:
    whole = PLAN[: PLAN.index("adapter {")] + PLAN[PLAN.index("data {") :]
    whole = whole.replace("tp = 2", "dp_replicate = 2")
    kept = "train {\n  ema_decay = 0.999"
    for export, train, expected in (
        ('export "hf" { weights = ema }', "train {", ["P772"]),
        ('export "hf" { weights = ema }', kept, []),
        ('export "hf" {}', kept, []),
    ):
        text = whole.replace("train {", f"checkpoint {{\n  {export}\n}}\n\n{train}")
        found = check_source(SourceFile("averaged.plan", text), base=PLANS)
        assert [one.code.code for one in found.diagnostics] == expected


def test_what_peft_has_no_place_for_is_not_exported_as_adapters() -> None:
    whole = PLAN[: PLAN.index("tensor_parallel")] + PLAN[PLAN.index("data {") :]
    whole = whole.replace("tp = 2", "dp_replicate = 2")
    whole = whole.replace("train {", 'checkpoint {\n  export "adapter"\n}\n\ntrain {')
    for trained, expected in (
        ("model.norm", None),
        ("model.layers.*.mlp.down_proj", None),
        ("model.layers.*.mlp.gate_up_proj", "it is in a module with adapters"),
    ):
        text = f'{whole}\nfreeze {{\n  "{trained}" -> trained\n}}\n'
        found = check_source(SourceFile("apart.plan", text), base=PLANS).diagnostics
        assert [one.code.code for one in found] == (["P772"] if expected else []), trained
        assert expected is None or expected in found[0].primary.text


QUANTIZED = f"""\
model {{
  hf = "models/tiny-gemma2"
}}

adapter {{
  kind = lora(rank = 2, alpha = 4)
  base = nf4
  "model.layers.*.self_attn.{{q,v}}_proj" -> adapted
}}

{PLAN[PLAN.index("data {") :]}"""
ROWWISE = """
mesh {
  tp = 2
}

tensor_parallel on tp {
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise
  "model.layers.*.self_attn.o_proj" -> rowwise
}
"""


def test_a_base_in_4_bits_has_whole_blocks() -> None:
    trained = 'freeze {\n  "model.layers.*" -> trained\n}\n'
    for text, expected in (
        (QUANTIZED, []),
        (QUANTIZED + ROWWISE, ["tp = 2 gives a rank 32 inputs of `model.layers.*.self_attn.o_proj`"]),
        (QUANTIZED.replace("tiny-gemma2", "tiny-llama"), ["`model.layers.*.mlp.down_proj` has 352 inputs"]),
        (QUANTIZED.replace("tiny-gemma2", "tiny-qwen3-moe"), ["stacks the weights of experts"]),
        (QUANTIZED + trained, ["no linear layer is frozen"]),
    ):
        found = check_source(SourceFile("quantized.plan", text), base=PLANS).diagnostics
        faults = [str(one) for one in found if one.code.code == "P774"]
        assert len(faults) == len(expected), list(map(str, found))
        assert all(part in fault for part, fault in zip(sorted(expected), sorted(faults), strict=True)), (
            faults
        )


SMALL = """\
model {
  hf = "models/tiny-llama"
  dtype = bfloat16
}
adapter {
  kind = lora(rank = 2, alpha = 4)
  "model.layers.*.self_attn.q_proj" -> adapted
}
data {
  source = python_stdlib()
  sequence_length = 64
  micro_batch = 2
}
optimizer {
  kind = adamw(lr = 1e-4)
}
train {
  steps = 2
}
"""
UNITS = 'fsdp on dp_shard {\n  param_dtype = bfloat16\n  "model.layers.*" -> unit\n}\n'


def checked(text: str) -> Checked:
    return check_source(SourceFile("small.plan", text), base=PLANS)


def codes(text: str) -> list[str]:
    return [one.code.code for one in checked(text).diagnostics]


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("lr = 1e-4", "lr = 2e-4", None),
        ("lr = 1e-4", "lr = 5e-6", "P714"),
        ("alpha = 4", "alpha = 4, dora = true", "P714"),
        ("data {", 'freeze {\n  "model.norm" -> trained\n}\ndata {', "P714"),
    ],
    ids=["A moves", "A would not move", "lengths would not move", "a norm would not move"],
)
def test_updates_of_adapters_are_held_against_their_own_size(
    before: str, after: str, code: str | None
) -> None:
    """Frozen norms lose nothing to rounding. A of 256 inputs starts within 1/16; bfloat16 has 8 bits."""
    text = SMALL.replace(before, after)
    assert codes(text) == ([code] if code is not None else [])


def test_adapters_in_float32_are_cast_and_what_the_help_says_is_sound() -> None:
    text = SMALL.replace("lr = 1e-4", "lr = 5e-6")
    [found] = checked(text).diagnostics
    assert found.help is not None and found.help.startswith("write `dtype = float32` in `adapter`")
    text = text.replace("alpha = 4)\n", "alpha = 4)\n  dtype = float32\n")
    [found] = checked(text).diagnostics
    assert found.code.code == "P778" and found.help is not None
    block = re.search("add `(.*)`", found.help)
    assert block is not None
    assert codes(text + block.group(1)) == []


def test_what_is_trained_beside_adapters_in_a_unit_has_their_dtype() -> None:
    apart = SMALL.replace("alpha = 4)\n", "alpha = 4)\n  dtype = float32\n") + UNITS
    assert codes(apart) == []
    trained = 'freeze {\n  "model.layers.0.mlp.up_proj" -> trained\n}\n'
    assert "P736" in codes(apart + trained)


EXPERTS = f"""\
model {{
  hf = "models/tiny-qwen3-moe"
}}

adapter {{
  kind = lora(rank = 4, alpha = 4)
  "model.layers.*.mlp.experts" -> adapted
}}

{PLAN[PLAN.index("data {") :]}"""
COMPILED = 'compile {\n  "model.layers.*" -> region\n}\n'


def faults(text: str) -> list[str]:
    found = check_source(SourceFile("experts.plan", text), base=PLANS).diagnostics
    return [f"{one.code.code} {one.primary.text}" for one in found if one.code.code in ("P770", "P771")]


def test_experts_have_adapters_with_limits_of_their_own() -> None:
    name = "`model.layers.*.mlp.experts`"
    narrow = "\n  dtype = bfloat16\n}\n\nadapter"
    for text, expected in (
        (EXPERTS, []),
        (
            EXPERTS.replace("alpha = 4", "alpha = 4, dropout = 0.1"),
            [f"P771 rows of {name} have no place in a"],
        ),
        (EXPERTS.replace("alpha = 4", "alpha = 4, dora = true"), [f"P771 {name} has no trained lengths"]),
        (EXPERTS.replace("\n}\n\nadapter", narrow), ["P771 grouped products"]),
        (EXPERTS.replace("\n}\n\nadapter", narrow).replace("rank = 4", "rank = 8"), []),
        (EXPERTS + COMPILED, ["P771 `model.layers.*` is compiled, with adapted experts inside"]),
        (EXPERTS.replace("mlp.experts", "mlp"), ["P770 `model.layers.*.mlp` is a Qwen3MoeSparseMoeBlock"]),
    ):
        found = faults(text)
        assert len(found) == len(expected), (text, found)
        assert all(one.startswith(start) for one, start in zip(found, expected, strict=True)), found


def test_a_help_names_experts_inside_of_a_block() -> None:
    text = EXPERTS.replace("mlp.experts", "mlp")
    [found] = check_source(SourceFile("experts.plan", text), base=PLANS).diagnostics
    assert found.help is not None and "model.layers.*.mlp.experts" in found.help


def test_a_weight_that_both_ends_of_a_pipeline_have_may_be_frozen() -> None:
    """Its copy in the last stage is frozen too, and no optimizer has a state of it."""
    text = SMALL.replace("tiny-llama", "tiny-llama-tied") + "mesh {\n  pp = 2\n}\npipeline on pp {}\n"
    found = checked(text)
    assert found.ok and found.draft is not None, found.diagnostics
    last = found.draft.graph.frozen
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(last)
    assert found.draft.estimate.memory.peak.num_bytes > 0
