"""The right plans whose edits are judged, and those edits as mutants."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planc.api import check_plan
from planc.graph.graph import plan_hash
from planc.lower import draft_graph
from tests.catalogue.declared import HERE as CATALOGUE
from tests.mutants.campaign import Mutant, Workshop
from tests.mutants.draft import Draft, read_draft
from tests.mutants.mutant import Edited
from tests.mutants.shrink import Config
from tests.parity.cases import MODELS
from tests.plans import PLANS
from tests.soundness.edits import Edit, double_edits, single_edits

_PLAN = """\
model {{
  seed = 7
}}
mesh {{
  tp = 2
}}
tensor_parallel on tp {{
{rules}}}
data {{
  source = text("data/corpus.txt")
  tokenizer = bytes
  packing = attend
  sequence_length = 32
  micro_batch = 2
}}
optimizer {{
  kind = adamw(lr = 1e-3)
  schedule = constant(warmup = 1 steps)
}}
train {{
  steps = 10
}}
"""
_PLAIN = """\
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise()
  "model.layers.*.self_attn.o_proj" -> rowwise()
  "model.layers.*.mlp.{gate,up}_proj" -> colwise()
  "model.layers.*.mlp.down_proj" -> rowwise()
"""
_DIVIDED_ENDS = """\
  "model.embed_tokens" -> embedding_rowwise()
  "lm_head" -> colwise(output = Shard(-1))
"""
_SEQUENCE = """\
  "model.embed_tokens" -> embedding_rowwise(output = Shard(1))
  "model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel()
  "model.layers.*.{self_attn,mlp}" -> prepare_input(input = Shard(1), desired = Replicate())
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise()
  "model.layers.*.self_attn.o_proj" -> rowwise(output = Shard(1))
  "model.layers.*.mlp.{gate,up}_proj" -> colwise()
  "model.layers.*.mlp.down_proj" -> rowwise(output = Shard(1))
  "model.norm" -> sequence_parallel()
  "lm_head" -> colwise(input = Shard(1), output = Shard(-1))
"""
_HEAD_NORMS = '  "model.layers.*.self_attn.{q,k}_norm" -> replicated_with_grad_allreduce()\n'
_PARALLEL_BLOCK = (
    _SEQUENCE.replace("{input,post_attention}_layernorm", "input_layernorm")
    .replace("o_proj", "dense")
    .replace("mlp.{gate,up}_proj", "mlp.fc1")
    .replace("mlp.down_proj", "mlp.fc2")
    .replace("model.norm", "model.final_layernorm")
)
_WEIGHTLESS_NORMS = """\
  "model.embed_tokens" -> embedding_rowwise(output = Shard(1))
  "model.layers.*.{self_attn,mlp}" -> prepare_input(input = Shard(1), desired = Replicate())
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise()
  "model.layers.*.self_attn.o_proj" -> rowwise(output = Shard(1))
  "model.layers.*.mlp.fc1" -> colwise()
  "model.layers.*.mlp.fc2" -> rowwise(output = Shard(1))
  "lm_head" -> colwise(input = Shard(1), output = Shard(-1))
"""
_FUSED_ATTENTION = """\
  "gpt_neox.layers.*.attention.query_key_value" -> colwise()
  "gpt_neox.layers.*.attention.dense" -> rowwise()
  "gpt_neox.layers.*.mlp.dense_h_to_4h" -> colwise()
  "gpt_neox.layers.*.mlp.dense_4h_to_h" -> rowwise()
"""
_EXPERTS = """\
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise()
  "model.layers.*.self_attn.o_proj" -> rowwise()
"""
_MLP_ALONE = """\
  "model.layers.*.mlp.{gate,up}_proj" -> colwise()
  "model.layers.*.mlp.down_proj" -> rowwise()
"""
_BARE = (
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    "model.layers.*.input_layernorm",
    "model.layers.*.self_attn",
    "model.layers.*.mlp",
)


@dataclass(frozen=True, slots=True)
class RightPlan:
    """A plan that is right; patterns of modules that it does not name, pairs of rules to edit together."""

    name: str
    draft: Draft
    config: Config
    bare: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()

    def edits(self, *, doubles: bool) -> Iterator[Edit]:
        """All edits of one rule; and, if wanted, of the rules that belong together."""
        yield from single_edits(self.draft, bare=self.bare)
        for first, second in self.pairs if doubles else ():
            yield from double_edits(self.draft, first, second)


def _right(
    name: str,
    config: Config,
    rules: str,
    bare: tuple[str, ...] = (),
    pairs: tuple[tuple[str, str], ...] = (),
) -> RightPlan:
    return RightPlan(name, read_draft(_PLAN.format(rules=rules)), config, bare, pairs)


def _config(folder: Path) -> Config:
    config: Config = json.loads((folder / "config.json").read_bytes())
    return config


_ATTENTION, _MLP = ("{q,k,v}_proj", "o_proj"), ("{gate,up}_proj", "down_proj")
RIGHT_PLANS: Mapping[str, RightPlan] = {
    plan.name: plan
    for plan in (
        _right("llama sequence", MODELS["llama"], _SEQUENCE, pairs=(("model.norm", "lm_head"),)),
        _right("llama plain", MODELS["llama"], _PLAIN, _BARE, (_ATTENTION, _MLP)),
        _right("llama ends", MODELS["llama"], _PLAIN + _DIVIDED_ENDS, pairs=(("embed_tokens", "lm_head"),)),
        _right("tied sequence", MODELS["llama-tied"], _SEQUENCE),
        _right("qwen3 sequence", MODELS["qwen3"], _SEQUENCE + _HEAD_NORMS),
        _right(
            "qwen3 plain",
            MODELS["qwen3"],
            _PLAIN + _HEAD_NORMS,
            pairs=(("{q,k,v}_proj", "{q,k}_norm"),),
        ),
        _right("phi sequence", _config(CATALOGUE / "models" / "tiny-phi"), _PARALLEL_BLOCK),
        _right(
            "nanochat sequence",
            _config(PLANS / "models" / "tiny-nanochat"),
            _WEIGHTLESS_NORMS,
            pairs=(("fc1", "fc2"),),
        ),
        _right(
            "neox plain",
            _config(CATALOGUE / "models" / "tiny-neox"),
            _FUSED_ATTENTION,
            pairs=(("query_key_value", "dense"),),
        ),
        _right("diffllama", _config(CATALOGUE / "models" / "tiny-diffllama"), _MLP_ALONE),
        _right("mixtral plain", _config(CATALOGUE / "models" / "tiny-mixtral"), _EXPERTS, _BARE),
    )
}
"""Norms on heads, tied ends, biases in a parallel block, norms without weights, fused heads, experts,
parameters of an attention's own."""


def mutants_of(
    workshop: Workshop, plan: RightPlan, edits: Iterable[Edit], *, first: int = 0
) -> Iterator[Mutant]:
    """The edits that mean something else than the plan and the edits before them."""
    known = {_meaning(workshop.write("right", Edited(plan.draft, plan.config, plan.name)))}
    number = first
    for edit in edits:
        name = f"{plan.name.replace(' ', '-')}-{number:05}"
        path = workshop.write(name, Edited(edit.draft, plan.config, edit.note))
        meaning = _meaning(path)
        if meaning in known:
            path.unlink()
            continue
        known.add(meaning)
        yield Mutant(number, edit.type, plan.name, edit.note, path, meaning)
        number += 1


def _meaning(path: Path) -> str:
    """What would run, as a text; a plan that does not determine it represents itself."""
    bound = check_plan(path).bound
    return path.name if bound is None or bound.conflicts else plan_hash(draft_graph(bound))
