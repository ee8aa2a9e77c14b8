"""What Optimum tests of its automatic tensor parallelism, on 1, 2, 4 and 8 ranks: ranks agree on the outputs,
they compute what one process computes, parameters survive saving and loading, and ties stay tied.

The reference is transformers and torch alone, and none of planc.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from planc.api import Checked, check_source
from planc.diagnostics import Severity
from planc.inventory.load import save_inventory
from planc.source import SourceFile
from planc.verify.ranks import Record, Task
from tests.dist.pool import run_ranks
from tests.models.agreement import agreement
from tests.models.independent import Measured, loaded, measured, tokens_of, write_corpus, write_weights
from tests.solve.stopped_runs import Seen, trained

SEQUENCE_LENGTH, NUM_STEPS, SAVED_STEP = 32, 4, 2
_TIMEOUT_SECONDS = 300.0
_LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 8, "hidden_size": 64}
_GPT2_LAYERS = {"n_layer": 2, "n_head": 8, "n_embd": 64}
_NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
CONFIGS: Mapping[str, Mapping[str, object]] = {
    "llama": {**_LAYERS, "model_type": "llama", "num_key_value_heads": 8, "intermediate_size": 128},
    "mistral": {**_LAYERS, "model_type": "mistral", "num_key_value_heads": 4, "intermediate_size": 128},
    "gpt2": {**_GPT2_LAYERS, **_NO_DROPOUT, "model_type": "gpt2", "n_positions": 64},
    "opt": {**_LAYERS, "model_type": "opt", "ffn_dim": 128, "word_embed_proj_dim": 64, "dropout": 0.0},
    "bloom": {"n_layer": 2, "n_head": 8, "hidden_size": 64, "model_type": "bloom", "hidden_dropout": 0.0},
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "opt": "OPTForCausalLM",
    "bloom": "BloomForCausalLM",
}
TIED = ("gpt2", "opt", "bloom")
"""The others have a head of their own."""
_PLAN = """\
model {{
  hf = "{model}"
  seed = 7
  weights = pretrained
  attention = {attention}
}}
mesh {{
  tp = {tp}
}}
tensor_parallel on tp {{
  {auto}
}}
data {{
  source = text("corpus.txt")
  tokenizer = bytes
  sequence_length = 32
  micro_batch = 4
  shuffle_seed = 42
}}
optimizer {{
  kind = adamw(lr = 1e-2, betas = [0.9, 0.95], eps = 1e-3, weight_decay = 0.1)
  clip_grad_norm = 1.0
  schedule = constant(warmup = 1 steps)
}}
checkpoint {{
  save_every = {saved} steps
  export "hf" {{ when = end }}
}}
train {{
  steps = {steps}
}}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was stopped after some steps, and one that went on from what it saved."""

    model: str
    stopped: list[Seen]
    resumed: list[Seen]
    export: Path

    @property
    def records(self) -> list[Record]:
        """Each rank's record of both, as of one run."""
        pairs = zip(self.stopped, self.resumed, strict=True)
        return [
            replace(
                one.record, metrics=[*one.record.metrics, *other.record.metrics], final=other.record.final
            )
            for one, other in pairs
        ]


def auto_of(model: str) -> tuple[str, ...]:
    return ("auto(solve)", "auto") if model in ("llama", "mistral") else ("auto(solve)",)


QUICK = ("gpt2", 2)
CASES = [
    pytest.param(
        model,
        auto,
        ranks,
        id=f"{model}-{auto}-{ranks}",
        marks=() if (model, ranks) == QUICK else pytest.mark.slow,
    )
    for model in CONFIGS
    for auto in auto_of(model)
    for ranks in (1, 2, 4, 8)
    if (model, auto, ranks) != ("mistral", "auto", 8)
]
runs = pytest.mark.parametrize(("model", "auto", "ranks"), CASES)
RunOf = Callable[[str, str, int], Run]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("optimum")
    write_corpus(folder / "corpus.txt", sequence_length=SEQUENCE_LENGTH)
    return folder


@pytest.fixture(scope="module")
def prepared(workspace: Path) -> Callable[[str], Path]:
    """The folder of a model, with weights that transformers wrote."""

    @cache
    def prepare(model: str) -> Path:
        folder = workspace / model
        folder.mkdir()
        own = {
            "vocab_size": 264,
            "architectures": [ARCHITECTURES[model]],
            "bos_token_id": 1,
            "eos_token_id": 1,
        }
        pads = {"pad_token_id": None} if model in ("opt", "bloom") else {}
        config = {**own, **pads, **CONFIGS[model]}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        write_weights(folder)
        save_inventory(folder)
        return folder

    return prepare


@pytest.fixture(scope="module")
def alone(workspace: Path, prepared: Callable[[str], Path]) -> Callable[[str], Measured]:
    """What one process did."""

    @cache
    def train(model: str) -> Measured:
        arguments = (prepared(model), workspace / "corpus.txt", SEQUENCE_LENGTH, "float32", NUM_STEPS)
        (found,) = run_ranks(measured, 1, *arguments, timeout_seconds=_TIMEOUT_SECONDS, init=False)
        return found

    return train


@pytest.fixture(scope="module")
def run_of(workspace: Path, prepared: Callable[[str], Path]) -> RunOf:
    """A model's training on some ranks; each is trained once."""

    @cache
    def train(model: str, auto: str, ranks: int) -> Run:
        prepared(model)
        checked = checked_plan(model, auto, ranks, workspace=workspace)
        assert checked.graph is not None, [one.primary.text for one in checked.diagnostics]
        folder = workspace / f"{model}-{auto}-{ranks}"
        task = Task(checked.graph, workspace, folder, collective_timeout_seconds=_TIMEOUT_SECONDS // 2)
        tokens = tokens_of(workspace / "corpus.txt", sequence_length=SEQUENCE_LENGTH)[:, :-1]
        found = [
            run_ranks(trained, ranks, one, tokens, timeout_seconds=_TIMEOUT_SECONDS, init=False)
            for one in (replace(task, stop_after=SAVED_STEP), task)
        ]
        return Run(model, found[0], found[1], folder / "export" / "hf")

    return train


def checked_plan(model: str, auto: str, ranks: int, *, workspace: Path) -> Checked:
    # BLOOM computes attention in its own code.
    attention = "eager" if model == "bloom" else "sdpa"
    values = {"model": model, "auto": auto, "tp": ranks, "attention": attention}
    text = _PLAN.format(**values, saved=SAVED_STEP, steps=NUM_STEPS)
    return check_source(SourceFile(f"{model}.plan", text), base=workspace)


@runs
def test_ranks_agree_on_the_outputs(
    model: str, auto: str, ranks: int, run_of: RunOf, prepared: Callable[[str], Path], workspace: Path
) -> None:
    seen = run_of(model, auto, ranks).stopped
    tokens = tokens_of(workspace / "corpus.txt", sequence_length=SEQUENCE_LENGTH)[:, :-1]
    with torch.no_grad():
        expected = loaded(prepared(model), dtype="float32")(input_ids=tokens, use_cache=False).logits
    assert len(seen) == ranks
    assert all(torch.equal(one.outputs, seen[0].outputs) for one in seen)
    torch.testing.assert_close(seen[0].outputs, expected, rtol=1e-4, atol=1e-5)


@runs
def test_ranks_train_as_one_process(
    model: str, auto: str, ranks: int, run_of: RunOf, alone: Callable[[str], Measured]
) -> None:
    found = agreement(run_of(model, auto, ranks).records, alone(model), dtype="float32")
    assert found.wrong == ()


@runs
def test_parameters_survive_saving_and_loading(model: str, auto: str, ranks: int, run_of: RunOf) -> None:
    run = run_of(model, auto, ranks)
    for one, other in zip(run.stopped, run.resumed, strict=True):
        assert other.record.first_step == SAVED_STEP + 1
        assert other.record.states[SAVED_STEP] == one.record.states[SAVED_STEP] != {}
    plain = dict(AutoModelForCausalLM.from_pretrained(run.export).named_parameters())
    final = run.resumed[0].record.final
    assert plain.keys() == final.keys()
    assert all(torch.equal(plain[name], one) for name, one in final.items())


@runs
def test_ties_stay_tied(model: str, auto: str, ranks: int, run_of: RunOf) -> None:
    run = run_of(model, auto, ranks)
    assert {one.tied for one in (*run.stopped, *run.resumed)} == {model in TIED}


def test_heads_that_ranks_cannot_share_are_refused_where_they_are_sharded(
    prepared: Callable[[str], Path], workspace: Path
) -> None:
    prepared("mistral")
    checked = checked_plan("mistral", "auto", 8, workspace=workspace)
    (error,) = [one for one in checked.diagnostics if one.severity is Severity.ERROR]
    assert checked.graph is None
    assert error.code.name == "kv-heads-indivisible"
    lines = checked.sources["mistral.plan"].text.splitlines()
    named = [lines[one.span.line - 1].strip() for one in (error.primary, *error.secondary)]
    assert named == ["tp = 8", "auto"]
    assert error.primary.text == "tp = 8 does not divide 4 key/value heads"
