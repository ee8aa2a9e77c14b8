"""Helps lead somewhere: taken literally, finding after finding, they end in a plan without findings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from applied import applied
from by_code import codes

from planc.api import Checked, check_source
from planc.source import SourceFile
from tests.catalogue.declared import HERE as CATALOGUE
from tests.checks.divided import (
    ATTENTION,
    DOWN,
    EMBEDDING,
    GATES,
    HEAD,
    HEAD_NORMS,
    HEADS,
    MLP,
    NORM,
    NORMS,
    OUT,
    PLAN,
    TOKENS_DOWN,
    TOKENS_OUT,
    UP,
)
from tests.plans import PLANS

PLAIN = {"heads": HEADS, "out": OUT, "up": UP, "down": DOWN}
SEQUENCE = {
    "embedding": EMBEDDING,
    "norms": NORMS,
    "gates": GATES,
    "heads": HEADS,
    "out": TOKENS_OUT,
    "up": UP,
    "down": TOKENS_DOWN,
    "norm": NORM,
    "head": HEAD,
}
ON_HEADS = {**PLAIN, "head norms": HEAD_NORMS}
MIXED = {name: SEQUENCE[name] for name in ("embedding", "norms", "gates", "heads", "out", "norm", "head")}
WHOLE_GATES = '"{}" -> prepare_input(input = Replicate(), desired = Replicate())'
LATENT = f'{ATTENTION}.{{q_b_proj,kv_b_proj}}" -> colwise'


@dataclass(frozen=True, slots=True)
class Broken:
    """Rules with some edited, `""` for none; and the codes before every help that is taken."""

    of: Mapping[str, str]
    codes: tuple[str, ...]
    edits: Mapping[str, str] = field(default_factory=dict)
    model: str = "tiny-llama"
    tp: int = 2
    attention: str = "sdpa"


def rule(of: Mapping[str, str], name: str, old: str, new: str) -> dict[str, str]:
    """An edit of one rule."""
    assert old in of[name]
    return {name: of[name].replace(old, new)}


def added(*rules: str) -> dict[str, str]:
    return {f"added {number}": text for number, text in enumerate(rules)}


GATHER = ("colwise", "colwise_gather_output")
FIRST_ROWWISE, LAST_COLWISE = ("colwise", "rowwise"), ("rowwise", "colwise")
ONLY_TOKENS = ("sequence_parallel", "sequence_parallel(sequence_dim = 0)")

BROKEN = {
    "norms of all heads": Broken({"heads": HEADS, "out": OUT}, ("P415",), model="tiny-olmo2"),
    "norms of all heads, with rules": Broken(
        {"heads": HEADS, "out": OUT, "norms": HEAD_NORMS}, ("P415",), model="tiny-olmo2"
    ),
    "norms of all heads on a divided sequence": Broken(
        SEQUENCE,
        ("P415",),
        rule(SEQUENCE, "norms", "{input,post_attention}", "post_{attention,feedforward}"),
        model="tiny-olmo2",
    ),
    "latent keys and values divided": Broken(
        {"heads": LATENT.replace("kv_b_proj", "kv_a_proj_with_mqa,kv_b_proj"), "out": OUT},
        ("P415",),
        model="tiny-deepseek-v3",
    ),
    "latent keys and values beside heads": Broken(
        {"heads": LATENT, "out": OUT}, ("P411",), model="tiny-deepseek-v3"
    ),
    "latent keys and values, one model up": Broken(
        {"heads": LATENT.replace("q_b_proj", "q_proj"), "out": OUT}, ("P411",), model="deepseek-v2-lite"
    ),
    "a gate without a rule": Broken(
        {
            "heads": HEADS.replace("model.layers", "model.{L,H}_module.layers"),
            "out": OUT.replace("model.layers", "model.{L,H}_module.layers"),
        },
        ("P411",),
        model="tiny-hrm",
    ),
    "values without a rule": Broken(PLAIN, ("P411",), rule(PLAIN, "heads", "{q,k,v}", "{q,k}")),
    "a norm of heads in between": Broken(
        {"heads": HEADS.replace("{q,k,v}", "v"), "out": OUT}, ("P411", "P414"), model="qwen3-8b"
    ),
    "heads without a rule": Broken(ON_HEADS, ("P407",), {"heads": ""}, model="qwen3-8b"),
    "heads gathered under norms of parts": Broken(
        ON_HEADS, ("P407",), rule(ON_HEADS, "heads", *GATHER), model="qwen3-8b"
    ),
    "heads gathered, and a norm of parts": Broken(
        ON_HEADS,
        ("P415",),
        rule(ON_HEADS, "heads", *GATHER) | rule(ON_HEADS, "out", "rowwise", "rowwise_split_input"),
        model="qwen3-8b",
    ),
    "norms of heads on tokens": Broken(
        ON_HEADS,
        ("P415",),
        rule(ON_HEADS, "head norms", "replicated_with_grad_allreduce", "sequence_parallel"),
        model="qwen3-8b",
    ),
    "a gate for whole tokens": Broken(
        SEQUENCE, ("P415",), rule(SEQUENCE, "gates", "input = Shard(1)", "input = Replicate()")
    ),
    "a gate that gathers nothing": Broken(
        SEQUENCE, ("P415",), rule(SEQUENCE, "gates", "desired = Replicate()", "desired = Shard(1)")
    ),
    "a gate the wrong way round": Broken(
        SEQUENCE,
        ("P415",),
        rule(
            SEQUENCE,
            "gates",
            "input = Shard(1), desired = Replicate()",
            "input = Replicate(), desired = Shard(1)",
        ),
    ),
    "a gate for features": Broken(
        SEQUENCE, ("P415",), rule(SEQUENCE, "gates", "input = Shard(1)", "input = Shard(-1)")
    ),
    "a gate for attention alone": Broken(
        SEQUENCE, ("P415",), rule(SEQUENCE, "gates", "{self_attn,mlp}", "self_attn")
    ),
    "gates without a divided sequence": Broken(PLAIN, ("P415",), added(SEQUENCE["gates"])),
    "no gates": Broken(SEQUENCE, ("P415",), {"gates": ""}),
    "no gates, and a head for whole tokens": Broken(
        SEQUENCE, ("P415",), {"gates": "", **rule(SEQUENCE, "head", "input = Shard(1), ", "")}
    ),
    "experts on a part of the tokens": Broken(MIXED, ("P415",), model="tiny-mixtral"),
    "experts without a gate": Broken(
        MIXED, ("P415",), rule(MIXED, "gates", "{self_attn,mlp}", "self_attn"), model="tiny-mixtral"
    ),
    "a norm along the batch": Broken(SEQUENCE, ("P415",), rule(SEQUENCE, "norm", *ONLY_TOKENS)),
    "norms along the batch": Broken(SEQUENCE, ("P415",), rule(SEQUENCE, "norms", *ONLY_TOKENS)),
    "a stray norm": Broken(PLAIN, ("P415",), added(SEQUENCE["norm"])),
    "stray norms": Broken(PLAIN, ("P415",), added(SEQUENCE["norms"])),
    "a stray norm for heads": Broken(
        PLAIN, ("P415",), added('"model.norm" -> replicated_with_grad_allreduce')
    ),
    "a norm for heads on tokens": Broken(
        SEQUENCE, ("P415",), {"norm": '"model.norm" -> replicated_with_grad_allreduce'}
    ),
    "an embedding alone": Broken({"embedding": SEQUENCE["embedding"]}, ("P415",), model="tiny-nanochat"),
    "no embedding": Broken(SEQUENCE, ("P415",), {"embedding": ""}),
    "an embedding by features": Broken(
        SEQUENCE, ("P415",), rule(SEQUENCE, "embedding", "Shard(1)", "Shard(-1)")
    ),
    "an embedding by batch": Broken(SEQUENCE, ("P415",), rule(SEQUENCE, "embedding", "Shard(1)", "Shard(0)")),
    "an attention that gathers": Broken(
        SEQUENCE, ("P415",), rule(SEQUENCE, "out", "(output = Shard(1))", "")
    ),
    "one rule for two that gather": Broken(
        SEQUENCE,
        ("P415",),
        {"out": '"model.layers.*.*.{o,down}_proj" -> rowwise', "down": ""},
    ),
    "a head for whole tokens": Broken(SEQUENCE, ("P415",), rule(SEQUENCE, "head", "input = Shard(1), ", "")),
    "a whole head": Broken(SEQUENCE, ("P415",), {"head": '"lm_head" -> replicate'}),
    "a head for a part of the tokens": Broken(PLAIN, ("P415",), added(SEQUENCE["head"])),
    "an MLP without one of its first layers": Broken(
        PLAIN, ("P415",), rule(PLAIN, "up", "{gate,up}", "gate")
    ),
    "an MLP with one of its layers": Broken(
        PLAIN, ("P406",), {"up": UP.replace("{gate,up}", "up"), "down": ""}
    ),
    "an MLP that leaves tokens": Broken(
        PLAIN, ("P415",), rule(PLAIN, "up", "colwise", "colwise(output = Shard(1))")
    ),
    "an MLP the wrong way round": Broken(
        PLAIN, ("P407",), rule(PLAIN, "up", *FIRST_ROWWISE) | rule(PLAIN, "down", *LAST_COLWISE)
    ),
    "an MLP the wrong way round on a divided sequence": Broken(
        SEQUENCE,
        ("P407",),
        {"up": f"{UP.replace('colwise', 'rowwise')}(output = Shard(1))", "down": DOWN.replace("row", "col")},
    ),
    "an attention the wrong way round": Broken(
        PLAIN, ("P407",), rule(PLAIN, "heads", *FIRST_ROWWISE) | rule(PLAIN, "out", *LAST_COLWISE)
    ),
    "a first and a last layer exchanged": Broken(
        PLAIN,
        ("P407",),
        {"up": f'{MLP}.{{down,up}}_proj" -> colwise', "down": f'{MLP}.gate_proj" -> rowwise'},
    ),
    "rowwise throughout": Broken(
        PLAIN, ("P407",), rule(PLAIN, "up", *FIRST_ROWWISE) | rule(PLAIN, "heads", *FIRST_ROWWISE)
    ),
    "colwise throughout": Broken(
        PLAIN, ("P406",), rule(PLAIN, "out", *LAST_COLWISE) | rule(PLAIN, "down", *LAST_COLWISE)
    ),
    "gathered without a split": Broken(PLAIN, ("P407",), rule(PLAIN, "heads", *GATHER)),
    "a rowwise head": Broken(PLAIN, ("P407",), added('"lm_head" -> rowwise')),
    "heads that are fixed": Broken(
        {
            "heads": '"transformer.h.*.attn.qkv_proj" -> colwise',
            "out": '"transformer.h.*.attn.out_proj" -> rowwise',
        },
        ("P418",),
        model="tiny-codegen",
        attention="eager",
    ),
    "a fused attention": Broken(
        {"heads": f'{ATTENTION}.qkv_proj" -> colwise', "out": OUT}, ("P417",), model="tiny-phi3"
    ),
    "a fused attention in other parts": Broken(
        {"heads": f'{ATTENTION}.qkv_proj" -> packed_colwise', "out": OUT}, ("P431",), model="tiny-phi3"
    ),
    "a fused MLP": Broken(
        {"up": f'{MLP}.gate_up_proj" -> colwise', "down": DOWN}, ("P417",), model="tiny-phi3"
    ),
    "an attention with parameters of its own": Broken(
        {"heads": HEADS, "out": OUT}, ("P480",), model="tiny-diffllama"
    ),
    "a recurrence": Broken(
        {"in": '"backbone.layers.*.mixer.in_proj" -> colwise'}, ("P406",), model="tiny-mamba"
    ),
    "one key and value head": Broken(PLAIN, ("P402",), model="gemma-2b"),
    "one key and value head, by auto": Broken({"auto": "auto"}, ("P402",), model="gemma-2b"),
    "no rules": Broken({}, ("P413",), model="tiny-opt"),
    "a style for linear layers on a norm": Broken(PLAIN, ("P405",), added('"model.norm" -> colwise')),
    "a style for linear layers on a norm of tokens": Broken(
        SEQUENCE, ("P405",), {"norm": '"model.norm" -> colwise'}
    ),
    "a style for linear layers on an embedding": Broken(
        PLAIN, ("P405",), added('"model.embed_tokens" -> colwise')
    ),
    "a style for embeddings on the head": Broken(PLAIN, ("P405",), added('"lm_head" -> embedding_rowwise')),
    "a prepared projection": Broken(PLAIN, ("P405",), added(WHOLE_GATES.format("lm_head"))),
    "a prepared layer": Broken(PLAIN, ("P419",), added(WHOLE_GATES.format("model.layers.*"))),
    "a prepared module that adds what it takes": Broken(
        {"auto": "auto(solve)", "skip": WHOLE_GATES.format("model.layers.*.laurel")},
        ("P419",),
        model="tiny-gemma3n",
    ),
    "a prepared activation": Broken(PLAIN, ("P419",), added(WHOLE_GATES.format("model.layers.*.mlp.act_fn"))),
    "a prepared activation in a prepared MLP": Broken(
        PLAIN,
        ("P419",),
        added(WHOLE_GATES.format("model.layers.*.mlp"), WHOLE_GATES.format("model.layers.*.mlp.act_fn")),
    ),
    "a prepared attention without styles": Broken(
        {"gate": WHOLE_GATES.format("model.layers.*.self_attn")}, ("P419", "P406")
    ),
    "a gathered output beside auto": Broken(
        {"auto": "auto", "out": f'override {ATTENTION}.o_proj" -> rowwise_split_input'}, ("P406",)
    ),
    "a whole layer beside auto": Broken(
        {"auto": "auto", "up": f'override {MLP}.up_proj" -> replicate'}, ("P415",)
    ),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("helps")
    (folder / "models").mkdir()
    for model in (*(PLANS / "models").iterdir(), *(CATALOGUE / "models").iterdir()):
        (folder / "models" / model.name).symlink_to(model)
    return folder


EXPERTS = ("tiny-deepseek-v3", "deepseek-v2-lite", "tiny-mixtral")


def plan(broken: Broken) -> str:
    rules = {**broken.of, **broken.edits}
    lines = "".join(f"  {line}\n" for line in rules.values() if line)
    text = PLAN.format(model=broken.model, tp=broken.tp, rules=lines)
    own = "  # planc: ignore[P725] not what it is about" if broken.model in EXPERTS else ""
    return text.replace(f'{broken.model}"', f'{broken.model}"{own}\n  attention = {broken.attention}')


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_what_a_help_says_mends_the_plan(broken: Broken, base: Path) -> None:
    def check(text: str) -> Checked:
        return check_source(SourceFile("x.plan", text), base=base)

    text = plan(broken)
    for code in broken.codes:
        found = check(text).diagnostics
        assert [one.code.code for one in found] == [code]
        text = applied(text, found[0], check)
    assert [(one.code.code, one.help) for one in check(text).diagnostics] == []


HALF = {
    "an MLP": {"gates": SEQUENCE["gates"].replace("{self_attn,mlp}", "mlp")},
    "a head": {"head": SEQUENCE["head"]},
}


@pytest.mark.parametrize("half", HALF.values(), ids=HALF.keys())
def test_helps_on_a_sequence_that_is_half_divided_lead_to_no_circle(
    half: Mapping[str, str], base: Path
) -> None:
    norms = SEQUENCE["norms"].replace("{input,post_attention}", "input")
    text = plan(Broken(PLAIN, (), {"embedding": EMBEDDING, "norms": norms, **half}))

    def check(text: str) -> Checked:
        return check_source(SourceFile("x.plan", text), base=base)

    seen: list[str] = []
    while found := check(text).diagnostics:
        assert text not in seen, found[0].help
        seen.append(text)
        text = applied(text, found[0], check)


def test_modules_and_a_head_without_rules_get_both_remedies_in_one_help(base: Path) -> None:
    text = plan(Broken(SEQUENCE, (), {"gates": "", "heads": "", "up": "", "head": ""}))
    (found,) = check_source(SourceFile("x.plan", text), base=base).diagnostics
    gates, head = SEQUENCE["gates"], SEQUENCE["head"]
    assert found.help == f"gather once for all of them: add `{gates}`, and write `{head}`"


OPTIMIZER = "  kind = adamw(lr = 1e-3)\n"


def optimized(text: str) -> str:
    """A plan without tensor parallelism, with another optimizer."""
    start, end = PLAN.index("mesh {{"), PLAN.index("data {{")
    whole = f"{PLAN[:start]}{PLAN[end:]}".format(model="tiny-llama")
    return whole.replace(OPTIMIZER, "".join(f"  {line}\n" for line in text.split("\n")))


@pytest.mark.parametrize("schedule", ["cosine(warmup = 10 steps)", "linear(warmup = 25 steps)"])
def test_a_warm_up_of_the_size_in_the_help_leaves_training_behind_it(schedule: str, base: Path) -> None:
    def check(text: str) -> Checked:
        return check_source(SourceFile("x.plan", text), base=base)

    text = optimized(f"kind = adamw(lr = 1e-3)\nschedule = {schedule}")
    (found,) = check(text).diagnostics
    assert found.code.code == "P706"
    assert codes(check(applied(text, found, check))) == []


def test_a_constant_schedule_may_reach_its_peak_in_the_last_step(base: Path) -> None:
    text = optimized("kind = adamw(lr = 1e-3)\nschedule = constant(warmup = 10 steps)")
    assert codes(check_source(SourceFile("x.plan", text), base=base)) == []


def test_a_run_of_one_step_is_not_all_warm_up(base: Path) -> None:
    text = optimized("kind = adamw(lr = 1e-3)\nschedule = cosine(warmup = 1 steps)")
    text = text.replace("steps = 10\n", "steps = 1\n")
    assert codes(check_source(SourceFile("x.plan", text), base=base)) == []


DECAYS = {
    "the rate": ("lr = 10.0, weight_decay = 0.1", ("lr", "weight_decay"), "1e-2"),
    "the decay": ("lr = 1e-3, weight_decay = 1e4", ("weight_decay", "lr"), "0.1"),
}


@pytest.mark.parametrize(("arguments", "names", "value"), DECAYS.values(), ids=DECAYS.keys())
def test_a_decay_beyond_one_is_laid_to_what_is_out_of_the_usual(
    arguments: str, names: tuple[str, str], value: str, base: Path
) -> None:
    text = optimized(f"kind = adamw({arguments})")
    (found,) = check_source(SourceFile("x.plan", text), base=base).diagnostics
    cause, other = names
    assert found.help is not None
    assert cause in found.help and value in found.help and other not in found.help
    mended = re.sub(rf"\b{cause} = [^,)]+", f"{cause} = {value}", text)
    assert codes(check_source(SourceFile("x.plan", mended), base=base)) == []


def test_a_rate_that_is_too_large_for_groups_is_one_finding(base: Path) -> None:
    text = optimized('kind = adamw(lr = 10.0)\n"model.norm" -> group(weight_decay = 0.2)')
    (found,) = check_source(SourceFile("x.plan", text), base=base).diagnostics
    assert found.code.code == "P713"


OPTIMIZERS = {
    "a group's own rate": ('kind = adamw(lr = 1e-3)\n"model.norm" -> group(lr = 200.0)', ["P713"]),
    "its decay too": (
        'kind = adamw(lr = 10.0)\n"model.norm" -> group(lr = 1e-3, weight_decay = 0.2)',
        ["P723"],
    ),
    "all rates but one zero": ('kind = adamw(lr = 0.0)\n"model.norm" -> group(lr = 1e-3)', []),
    "a group of everything with rate zero": ('kind = adamw(lr = 1e-3)\n"**" -> group(lr = 0)', ["P711"]),
    "groups that leave nothing": (
        'kind = adamw(lr = 1e-3)\n"model.**" -> group(lr = 0)\n"lm_head" -> group(lr = 0.0)',
        ["P711"],
    ),
    "all but the head with rate zero": ('kind = adamw(lr = 1e-3)\n"model.**" -> group(lr = 0)', []),
    "all rates zero": ('kind = adamw(lr = 0.0)\n"model.norm" -> group(lr = 0.0)', ["P711"]),
    "an override that undoes": (
        'kind = adamw(lr = 1e-3)\n"**.*norm*" -> group(lr = 0.1)\noverride "model.norm" -> group',
        [],
    ),
    "a decay as long as what is left": (
        "kind = sgd(lr = 1e-1)\nschedule = wsd(warmup = 4 steps, decay = 6 steps)",
        [],
    ),
    "a warm-up beyond the training": (
        "kind = sgd(lr = 1e-1)\nschedule = wsd(warmup = 11 steps, decay = 6 steps)",
        ["P706"],
    ),
    "a warm-up as long as the training": (
        "kind = sgd(lr = 1e-1)\nschedule = wsd(warmup = 10 steps, decay = 1 steps)",
        ["P715"],
    ),
}


@pytest.mark.parametrize(("block", "expected"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers_and_schedules(block: str, expected: list[str], base: Path) -> None:
    assert codes(check_source(SourceFile("x.plan", optimized(block)), base=base)) == expected


def test_tables_that_are_too_short_can_stay_whole(base: Path) -> None:
    def check(text: str) -> Checked:
        return check_source(SourceFile("x.plan", text), base=base)

    rules = '  "model.embed_tokens" -> embedding_rowwise\n  "lm_head" -> colwise\n'
    text = PLAN.format(model="tiny-llama", tp=512, rules=rules)
    (found,) = check(text).diagnostics
    assert found.code.code == "P404"
    assert len(found.secondary) == 2
    assert found.help is not None
    at_most, _, alternative = found.help.partition(", or ")
    assert "260" in at_most
    mended = applied(text, replace(found, help=f"write {alternative}"), check)
    assert codes(check(mended)) == ["P413"]  # so many ranks have nothing else to divide


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("sequence_parallel", []),
        ("replicate", []),
        ("sequence_parallel(sequence_dim = 2)", ["P405"]),
        ("replicated_with_grad_allreduce", ["P405"]),
        ("colwise", ["P405"]),
    ],
)
def test_a_norm_without_weights_takes_rules_that_leave_tokens_together(
    style: str, expected: list[str], base: Path
) -> None:
    fc = {name: SEQUENCE[name] for name in ("embedding", "gates", "heads", "out", "head")} | {
        "up": f'{MLP}.fc1" -> colwise',
        "down": f'{MLP}.fc2" -> rowwise(output = Shard(1))',
        "norms": SEQUENCE["norms"].replace("sequence_parallel", style),
    }
    text = plan(Broken(fc, (), model="tiny-nanochat"))
    assert codes(check_source(SourceFile("x.plan", text), base=base)) == expected


def test_a_container_is_answered_with_the_layers_inside_it(base: Path) -> None:
    text = PLAN.format(model="tiny-llama", tp=2, rules=f'  {MLP}" -> colwise\n')
    (found,) = check_source(SourceFile("x.plan", text), base=base).diagnostics
    assert found.code.code == "P405"
    assert found.help == "name the layers inside it: `model.layers.*.mlp.{gate,up,down}_proj`"
