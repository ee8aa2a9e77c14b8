"""Random rule sets: drawn alike from one seed, many of them accepted, and wrong ones seen where they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from planc.graph.graph import Graph
from planc.inventory.codec import loads
from planc.lower import draft_graph
from tests.models.independent import write_corpus
from tests.models.judge import Cell, Status, prepare
from tests.models.plans import CORPUS
from tests.models.tiny import SEQUENCE_LENGTH
from tests.plans import PLANS
from tests.soundness.rules_command import told, totals
from tests.soundness.rules_judge import Found, Sets, Trained, fuzzed, judged, meaning_of

NORM_ON_A_PART_OF_THE_TOKENS = """\
  "model.embed_tokens" -> embedding_rowwise(output = Shard(1))
  "model.layers.*.{input,post_attention}_layernorm" -> sequence_parallel
  "model.layers.*.{self_attn,mlp}" -> prepare_input(input = Shard(1), desired = Replicate())
  "model.layers.*.self_attn.{q,k,v}_proj" -> colwise
  "model.layers.*.self_attn.o_proj" -> rowwise(output = Shard(1))
  "model.layers.*.mlp.{gate,up}_proj" -> colwise
  "model.layers.*.mlp.down_proj" -> rowwise(output = Shard(1))
  "lm_head" -> colwise(input = Shard(1), output = Shard(-1))"""
"""Without a style for the last norm, each rank has the gradient of its own tokens, and nothing sums them."""


class Forced(Sets):
    """Rule sets that are trained although `check` refuses them."""

    def graph(self, rules: str, *, dtype: str) -> Graph:
        bound = self.checked(rules, dtype=dtype).bound
        assert bound is not None
        return draft_graph(bound)


@pytest.fixture
def sets(tmp_path: Path) -> Sets:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    text = (PLANS / "models" / "tiny-llama" / "inventory.json").read_text()
    (folder / "inventory.json").write_text(text)
    write_corpus(tmp_path / CORPUS, sequence_length=SEQUENCE_LENGTH)
    return Sets(loads(text), "tiny-llama", tmp_path)


@pytest.mark.slow
def test_a_seed_draws_the_same_sets_and_a_good_share_is_accepted(sets: Sets) -> None:
    accepted, num_refused, _ = sets.drawn(Random("3"), num_sets=12)
    assert sets.drawn(Random("3"), num_sets=12)[0] == accepted
    assert len(accepted) >= 2
    assert len(accepted) + num_refused == 12
    meanings = {meaning_of(sets.checked(rules)) for rules in accepted}
    assert len(meanings) == len(accepted)


def test_failures_are_counted_apart() -> None:
    trained = tuple(Trained("rules", Cell(status)) for status in (Status.EQUAL, Status.EQUAL, Status.FAILED))
    found = Found("llama", 5, 2, trained)
    assert totals([found]) == "5 refused, 2 alike, 3 trained: 2 equal, 1 FAILED"
    assert found.faults == [trained[2]]
    assert told(Found("blt", reason="why")).endswith("nothing to train: why")


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[Forced]:
    write_corpus(tmp_path / CORPUS, sequence_length=SEQUENCE_LENGTH)
    inventory = prepare("llama", "LlamaForCausalLM", changes={}, folder=tmp_path)
    yield Forced(inventory, "llama", tmp_path)


@pytest.mark.slow
def test_a_wrong_rule_set_that_is_forced_past_the_check_is_different(prepared: Forced) -> None:
    assert prepared.checked(NORM_ON_A_PART_OF_THE_TOKENS).graph is None
    right, wrong = judged(prepared, ["  auto(solve)", NORM_ON_A_PART_OF_THE_TOKENS])
    assert right.cell.status is Status.EQUAL
    assert wrong.cell.status is Status.DIFFERENT
    assert "model.norm.weight" in wrong.cell.detail


@pytest.mark.slow
@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [("llama", "LlamaForCausalLM"), ("opt", "OPTForCausalLM"), ("gpt2", "GPT2LMHeadModel")],
)
def test_accepted_sets_train_as_one_process(model_type: str, architecture: str, pp: int) -> None:
    found = fuzzed(model_type, architecture, num_sets=8, seed=2, pp=pp)
    assert found.trained
    assert [(one.plan, one.cell.detail) for one in found.faults] == []
