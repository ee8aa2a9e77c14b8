"""Faults of layouts and gradients by class, on several architectures: found, at the lines of both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from planc.api import Checked, check_source
from planc.diagnostics import Diagnostic, Severity
from planc.inventory.codec import dumps, loads
from planc.inventory.schema import Inventory
from planc.source import SourceFile
from tests.catalogue.declared import HERE as CATALOGUE
from tests.checks.divided import (
    DOWN,
    EMBEDDING,
    GATES,
    HEAD,
    HEAD_NORMS,
    HEADS,
    NORM,
    NORMS,
    OUT,
    PLAN,
    TOKENS_DOWN,
    TOKENS_OUT,
    UP,
)
from tests.plans import PLANS

BLOCK = "tensor_parallel on tp {"

SEQUENCE = (EMBEDDING, NORMS, GATES, HEADS, TOKENS_OUT, UP, TOKENS_DOWN, NORM, HEAD)
ONE_NORM = NORMS.replace("{input,post_attention}", "input")
"""Attention and MLP side by side, behind one norm."""
DENSE = TOKENS_OUT.replace("o_proj", "dense")
FC1, FC2 = UP.replace("{gate,up}_proj", "fc1"), TOKENS_DOWN.replace("down_proj", "fc2")
LAST_NORM = NORM.replace("norm", "final_layernorm")
PLAIN = (HEADS, OUT, UP, DOWN)
QKV = '"gpt_neox.layers.*.attention.query_key_value" -> colwise'
NEOX_OUT = '"gpt_neox.layers.*.attention.dense" -> rowwise'
LOOP_UP = '"model.{L,H}_module.layers.*.mlp.{gate,up}_proj" -> colwise'
LOOP_DOWN = '"model.{L,H}_module.layers.*.mlp.down_proj" -> rowwise'

MIX_IN = '"backbone.layers.*.mixer.in_proj" -> colwise_gather_output'
MIX_OUT = '"backbone.layers.*.mixer.out_proj" -> rowwise_split_input'
FLAT_UP = '"model.decoder.layers.*.fc1" -> colwise'
FLAT_DOWN = '"model.decoder.layers.*.fc2" -> rowwise'

GOOD = {
    "llama": ("tiny-llama", SEQUENCE),
    "llama, whole sequences": ("tiny-llama", PLAIN),
    "qwen3": ("qwen3-8b", (*SEQUENCE, HEAD_NORMS)),
    "qwen2": ("tiny-qwen2", SEQUENCE),
    "phi": ("tiny-phi", (EMBEDDING, ONE_NORM, GATES, HEADS, DENSE, FC1, FC2, LAST_NORM, HEAD)),
    "cohere": ("tiny-cohere", (EMBEDDING, ONE_NORM, GATES, HEADS, TOKENS_OUT, UP, TOKENS_DOWN, NORM, HEAD)),
    "nanochat": ("tiny-nanochat", (EMBEDDING, GATES, HEADS, TOKENS_OUT, FC1, FC2, HEAD)),
    "neox": ("tiny-neox", (QKV, NEOX_OUT)),
    "mixtral": ("tiny-mixtral", (HEADS, OUT)),
    "diffllama": ("tiny-diffllama", (UP, DOWN)),
    "hrm": ("tiny-hrm", (LOOP_UP, LOOP_DOWN)),
    "mamba": ("tiny-mamba", (MIX_IN, MIX_OUT)),
    "joined": ("joined", (HEADS, OUT)),
    "opt": ("tiny-opt", (FLAT_UP, FLAT_DOWN)),
}
"""Right plans by architecture: norms on heads, biases, parallel blocks, norms without weights, fused heads,
experts, parameters of an attention's own, layers that feed themselves, a recurrence, joined outputs,
flattened tokens."""

WHOLE_EMBEDDING = '"model.embed_tokens" -> embedding_rowwise'
FIRST_LAYER = '"model.layers.0" -> prepare_input(input = Replicate(), desired = Shard(1))'


@dataclass(frozen=True, slots=True)
class Fault:
    """A right plan with some rules replaced, `""` for none; the code, and the lines that it must name."""

    of: str
    edits: dict[str, str]
    code: str
    at: str
    also: tuple[str, ...] = ()
    note: str = ""


def changed(rule: str, old: str, new: str) -> str:
    assert old in rule
    return rule.replace(old, new)


WHOLE_OUT = changed(TOKENS_OUT, "Shard(1)", "Replicate()")
WHOLE_FC2 = changed(FC2, "Shard(1)", "Replicate()")
ODD_GATE = changed(GATES, "input = Shard(1)", "input = Shard(-1)")
BY_BATCH = changed(NORM, "sequence_parallel", "sequence_parallel(sequence_dim = 0)")
LOOSE_HEAD = '"lm_head" -> colwise(input = Shard(1))'
HEAD_BY_TOKENS = changed(HEAD, "output = Shard(-1)", "output = Shard(1)")
WHOLE_EMBEDDING = changed(EMBEDDING, "output = Shard(1)", "output = Replicate()")
BY_COLUMNS = '"model.embed_tokens" -> embedding_colwise(output = Shard(1))'
TWO_HEADS = changed(HEADS, "{q,k,v}", "{q,k}")
SPLIT_TOKENS = changed(QKV, "colwise", "colwise(output = Shard(1))")
JOINED_TOKENS = changed(NEOX_OUT, "rowwise", "rowwise(input = Shard(1))")
SPLIT_FEATURES = changed(
    EMBEDDING, "embedding_rowwise(output = Shard(1))", "embedding_colwise(output = Shard(-1))"
)
GATHERED = changed(HEADS, "colwise", "colwise_gather_output")
SPLIT_OUT = changed(TOKENS_OUT, "rowwise", "rowwise_split_input")
SPLIT_BATCH = changed(HEADS, "colwise", "colwise(output = Shard(0))")
JOINED_BATCH = changed(OUT, "rowwise", "rowwise(input = Shard(0))")
SPLIT_MIX = changed(MIX_IN, "colwise_gather_output", "colwise(output = Shard(1))")
JOINED_MIX = changed(MIX_OUT, "rowwise_split_input", "rowwise(input = Shard(1))")
BATCH_HEADS = changed(HEADS, "colwise", "colwise(input = Shard(0))")
BATCH_OUT = changed(OUT, "rowwise", "rowwise(output = Shard(0))")
BATCH_AROUND = '"model.layers.*.self_attn" -> prepare_input_output(desired = Shard(0))'
FLAT_FC1 = changed(FLAT_UP, "colwise", "colwise(output = Shard(1))")
FLAT_FC2 = changed(FLAT_DOWN, "rowwise", "rowwise(input = Shard(1))")
ROWS = '"model.decoder.embed_positions" -> embedding_rowwise'
FAR = changed(UP, "colwise", "colwise(output = Shard(3))")
ONE_LOOP = changed(LOOP_DOWN, "{L,H}", "L")
OTHER_LOOP = changed(LOOP_DOWN, "{L,H}", "H").replace("rowwise", "rowwise(output = Shard(1))")
LAYERS, LAST = "model.layers.{0..2}.mlp.down_proj", "model.layers.3.mlp.down_proj"
ODD_LAST = f'"{LAST}" -> rowwise'
SUMMED_NORM = '"model.norm" -> sequence_parallel'

FAULTS = {
    "unlike values added": Fault("llama", {TOKENS_OUT: WHOLE_OUT}, "P415", WHOLE_OUT, (EMBEDDING, NORMS)),
    "unlike values added in a parallel block": Fault(
        "phi", {FC2: WHOLE_FC2}, "P415", WHOLE_FC2, (EMBEDDING, ONE_NORM)
    ),
    "unlike values added in the last layer alone": Fault(
        "llama",
        {TOKENS_DOWN: f'"{LAYERS}" -> rowwise(output = Shard(1))\n  {ODD_LAST}'},
        "P415",
        ODD_LAST,
        (NORM,),
    ),
    "unlike values added in a loop": Fault(
        "hrm", {LOOP_DOWN: f"{ONE_LOOP}\n  {OTHER_LOOP}"}, "P415", OTHER_LOOP
    ),
    "a part of the features used as all": Fault("cohere", {TOKENS_DOWN: ""}, "P406", UP),
    "a part of the features used as all, with biases": Fault("phi", {FC2: ""}, "P406", FC1),
    "all features used as a part": Fault("phi", {FC1: ""}, "P407", FC2),
    "a norm left out": Fault("llama", {NORMS: ""}, "P408", BLOCK, (EMBEDDING,)),
    "the last norm left out": Fault("phi", {LAST_NORM: ""}, "P408", BLOCK, (EMBEDDING,)),
    "a norm kept whole": Fault(
        "cohere", {ONE_NORM: changed(ONE_NORM, "sequence_parallel", "replicate")}, "P408", "replicate"
    ),
    "norms on heads left out": Fault("qwen3", {HEAD_NORMS: ""}, "P414", BLOCK, (HEADS,)),
    "a router on a part of the tokens": Fault(
        "mixtral",
        {
            OUT: "\n  ".join(
                (TOKENS_OUT, EMBEDDING, NORMS, changed(GATES, "{self_attn,mlp}", "self_attn"), NORM, HEAD)
            )
        },
        "P415",
        BLOCK,
        (NORMS,),
        "nothing would sum",
    ),
    "a head on a part of the tokens": Fault("nanochat", {HEAD: ""}, "P415", BLOCK, (), "nothing would sum"),
    "a parameter of the attention's own among heads": Fault(
        "diffllama", {UP: f"{UP}\n  {HEADS}\n  {OUT}"}, "P480", HEADS
    ),
    "a gradient summed again": Fault(
        "llama, whole sequences",
        {UP: f"{UP}\n  {SUMMED_NORM}"},
        "P415",
        SUMMED_NORM,
        (),
        "tp would sum it again",
    ),
    "a gradient of whole heads summed again": Fault(
        "qwen3",
        {HEADS: GATHERED, TOKENS_OUT: SPLIT_OUT},
        "P415",
        HEAD_NORMS,
        (GATHERED,),
        "tp would sum it again",
    ),
    "logits divided by tokens": Fault("llama", {HEAD: HEAD_BY_TOKENS}, "P410", HEAD_BY_TOKENS),
    "heads divided in part": Fault("qwen2", {HEADS: TWO_HEADS}, "P411", TWO_HEADS, (TOKENS_OUT,)),
    "the features gathered in place of the tokens": Fault(
        "llama", {GATES: ODD_GATE}, "P415", ODD_GATE, (NORMS,)
    ),
    "a norm along the batch": Fault("llama", {NORM: BY_BATCH}, "P415", BY_BATCH, ()),
    "tokens declared divided that come whole": Fault(
        "llama, whole sequences", {UP: f"{UP}\n  {LOOSE_HEAD}"}, "P415", LOOSE_HEAD
    ),
    "an embedding that leaves all tokens": Fault(
        "phi", {EMBEDDING: WHOLE_EMBEDDING}, "P415", ONE_NORM, (WHOLE_EMBEDDING,), "tp would sum it again"
    ),
    "a tied embedding by columns": Fault("qwen2", {EMBEDDING: BY_COLUMNS}, "P416", HEAD, (BY_COLUMNS,)),
    "a stream that is whole before the layers and not behind them": Fault(
        "llama", {EMBEDDING: f"{WHOLE_EMBEDDING}\n  {FIRST_LAYER}"}, "P484", NORM, (FIRST_LAYER,)
    ),
    "attention on a part of the tokens": Fault(
        "neox", {QKV: SPLIT_TOKENS, NEOX_OUT: JOINED_TOKENS}, "P481", SPLIT_TOKENS, (JOINED_TOKENS,)
    ),
    "attention on a part of the batch": Fault(
        "llama, whole sequences", {HEADS: SPLIT_BATCH, OUT: JOINED_BATCH}, "P481", SPLIT_BATCH
    ),
    "heads of the whole batch in an attention of a part": Fault(
        "llama, whole sequences",
        {HEADS: f"{BATCH_AROUND}\n  {BATCH_HEADS}", OUT: BATCH_OUT},
        "P460",
        BATCH_HEADS,
        (),
        "takes its size from its own input",
    ),
    "tokens that have no dimension of their own": Fault(
        "opt", {FLAT_UP: FLAT_FC1, FLAT_DOWN: FLAT_FC2}, "P435", FLAT_FC1, (FLAT_FC2,)
    ),
    "rows of positions that their code counts": Fault(
        "opt", {FLAT_UP: f"{ROWS}\n  {FLAT_UP}"}, "P436", ROWS, (), "by the numbers that enter"
    ),
    "a recurrence on a part of the tokens": Fault(
        "mamba", {MIX_IN: SPLIT_MIX, MIX_OUT: JOINED_MIX}, "P481", SPLIT_MIX, (JOINED_MIX,)
    ),
    "outputs joined that are parts": Fault("joined", {OUT: f"{OUT}\n  {UP}\n  {DOWN}"}, "P482", UP, (DOWN,)),
    "norms without weights on a part of the features": Fault(
        "nanochat",
        {
            EMBEDDING: SPLIT_FEATURES,
            GATES: ODD_GATE,
            TOKENS_OUT: changed(TOKENS_OUT, "Shard(1)", "Shard(-1)"),
            FC2: changed(FC2, "Shard(1)", "Shard(-1)"),
            HEAD: '"lm_head" -> rowwise',
        },
        "P482",
        SPLIT_FEATURES,
    ),
    "a dimension that is none": Fault("llama, whole sequences", {UP: FAR}, "P483", FAR),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "models").mkdir()
    for model in (*(PLANS / "models").iterdir(), *(CATALOGUE / "models").iterdir()):
        (folder / "models" / model.name).symlink_to(model)
    (folder / "models" / "joined").mkdir()
    (folder / "models" / "joined" / "inventory.json").write_text(dumps(joined()))
    tiny = loads((PLANS / "models" / "tiny-llama" / "inventory.json").read_bytes())
    (folder / "models" / "read").mkdir()
    read = replace(tiny, read_by_layers=("model.layers.1.mlp.down_proj",))
    (folder / "models" / "read" / "inventory.json").write_text(dumps(read))
    (folder / "models" / "tied-norms").mkdir()
    qwen = loads((PLANS / "models" / "qwen3-8b" / "inventory.json").read_bytes())
    tied = replace(qwen, ties=(("model.layers.0.self_attn.q_norm.weight", "model.norm.weight"),))
    (folder / "models" / "tied-norms" / "inventory.json").write_text(dumps(tied))
    return folder


def joined() -> Inventory:
    """tiny-llama with an MLP that joins what its two first layers give, instead of multiplying it."""
    tiny = loads((PLANS / "models" / "tiny-llama" / "inventory.json").read_bytes())
    modules = []
    for module in tiny.modules:
        if module.fqn.endswith("down_proj"):
            (weight,) = module.parameters
            wide = replace(weight, shape=(weight.shape[0], 2 * weight.shape[1]))
            module = replace(module, parameters=(wide,))
        modules.append(module)
    return replace(tiny, modules=tuple(modules))


def plan(of: str, edits: dict[str, str]) -> str:
    model, rules = GOOD[of]
    assert edits.keys() <= set(rules)
    lines = (edits.get(rule, rule) for rule in rules)
    return PLAN.format(model=model, tp=2, rules="".join(f"  {line}\n" for line in lines if line))


def checked(text: str, base: Path) -> Checked:
    return check_source(SourceFile("x.plan", text), base=base)


def errors(found: Checked) -> list[Diagnostic]:
    return [one for one in found.diagnostics if one.severity is Severity.ERROR]


@pytest.mark.parametrize("of", GOOD)
def test_the_plan_without_a_fault_is_accepted(of: str, base: Path) -> None:
    assert errors(checked(plan(of, {}), base)) == []


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_found_once_at_the_lines_of_both_sides(fault: Fault, base: Path) -> None:
    text = plan(fault.of, fault.edits)
    (found,) = errors(checked(text, base))
    lines = text.splitlines()
    named = [lines[label.span.line - 1].strip() for label in (found.primary, *found.secondary)]
    assert found.code.code == fault.code
    assert fault.at in named[0]
    assert set(fault.also) <= set(named[1:])
    assert any(fault.note in note for note in (*found.notes, ""))


def test_a_loop_that_agrees_is_walked_to_its_end(base: Path) -> None:
    found = checked(plan("hrm", {LOOP_UP: LOOP_UP.replace("colwise", "colwise_gather_output")}), base)
    assert [one.code.code for one in errors(found)] == ["P407"]


def test_what_layers_read_of_a_module_is_not_used_on_part_of_the_tokens(base: Path) -> None:
    whole = plan("llama, whole sequences", {}).replace("tiny-llama", "read")
    assert errors(checked(whole, base)) == []
    (found,) = errors(checked(plan("llama", {}).replace("tiny-llama", "read"), base))
    assert found.code.code == "P480"
    assert found.notes[0] == "code of the layers reads `weight` of `model.layers.1.mlp.down_proj`"


def test_a_parameter_has_one_sum_of_gradients_under_all_its_names(base: Path) -> None:
    rules = "".join(f"  {line}\n" for line in (*PLAIN, HEAD_NORMS))
    assert errors(checked(PLAN.format(model="qwen3-8b", tp=2, rules=rules), base)) == []
    (found,) = errors(checked(PLAN.format(model="tied-norms", tp=2, rules=rules), base))
    assert found.code.code == "P416"
    summed = "Replicate(), its gradient summed over tp"
    assert found.primary.text == f"`model.layers.0.self_attn.q_norm.weight` gets {summed}"
    assert "`model.norm` has no rule, so it is replicated" in found.notes
