"""Data that a plan's own code computes: refused unless it is always the same, and trained on as files are."""

from __future__ import annotations

import hashlib
import json
import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from planc.api import check_plan
from planc.data_sources.kinds import ExtensionSource, JsonLinesSource, TransformedSource
from planc.extend.reference import Extension
from planc.runtime.data.errors import DataError
from planc.runtime.data.open import OpenData, open_in_memory
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.spec import DataSpec
from tests.own_code.by_hand import (
    LEARNING_RATE,
    MAX_NORM,
    ByHand,
    compiled,
    require_equal,
    sequences_of,
    train,
    trained,
)
from tests.parity.reference import write_weights

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_data"
LENGTH = 32

CODE = """
import random
import numpy as np
from planc.extend import data_source, row_transform

class Texts:
    def __len__(self): return 40
    def __getitem__(self, index): return f"document {index}"

@data_source("good")
class Good(Texts): pass
@data_source("stream")
def stream():
    yield from (f"document {index}" for index in range(40))
@data_source("ids")
class Ids(Texts):
    def __getitem__(self, index): return [*f"document {index}".encode()]
@data_source("ended")
class Ended(Texts):
    def __getitem__(self, index): return np.array([*f"document {index}".encode(), 256])
@data_source("labeled")
class Labeled(Texts):
    def __getitem__(self, index):
        ids = [*f"document {index}".encode()]
        return {"input_ids": np.array(ids), "labels": [-100] * 8 + ids[8:]}

@data_source("random")
class Random(Texts):
    def __getitem__(self, index): return f"document {random.random()}"
@data_source("in_order")
class InOrder(Texts):
    def __init__(self): self.random = random.Random(0)
    def __getitem__(self, index): return f"document {self.random.random()}"
@data_source("hashed")
class Hashed(Texts):
    def __getitem__(self, index): return f"document {hash(str(index))}"
@data_source("growing")
class Growing(Texts):
    length = 40
    def __len__(self):
        Growing.length += 1
        return self.length
@data_source("raising")
class Raising(Texts):
    def __getitem__(self, index):
        if index == 33: raise KeyError(index)
        return "document"
@data_source("late")
class Late(Texts):
    def __getitem__(self, index): return f"document {index}" if index != 33 else 3.5
@data_source("mixed")
class Mixed(Texts):
    def __getitem__(self, index): return "text" if index < 20 else [1, 2, 3]
@data_source("some_labels")
class SomeLabels(Texts):
    def __getitem__(self, index):
        return {"input_ids": [1, 2], **({"labels": [-100, 2]} if index == 33 else {})}
@data_source("late_random")
class LateRandom(Texts):
    def __getitem__(self, index): return f"document {random.random() if index == 34 else index}"
@data_source("negative")
class Negative(Texts):
    def __getitem__(self, index): return [1, -2]
@data_source("beyond")
class Beyond(Texts):
    def __getitem__(self, index): return [1, 300]
@data_source("shifted")
class Shifted(Texts):
    def __getitem__(self, index): return {"input_ids": [1, 2, 3], "labels": [2, 3, -100]}
@data_source("empty")
class Empty(Texts):
    def __len__(self): return 0
@data_source("messages")
class Messages(Texts):
    def __getitem__(self, index): return [{"role": "user", "content": "a question"}]
@data_source("masked")
class Masked(Texts):
    def __getitem__(self, index): return {"input_ids": [1, 2], "attention_mask": [1, 1]}
@data_source("numbered")
class Numbered(Texts):
    def __getitem__(self, index): return {"id": index, "prompt": "one", "completion": "two"}
@data_source("no_documents")
class NoDocuments: pass
@data_source("stream_random")
def stream_random():
    yield from (f"document {random.random()}" for index in range(40))

@row_transform("upper")
def upper(row, *, end: str = ""): return {"text": row["text"].upper() + end}
@row_transform("odd")
def odd(row): return row if row["number"] % 2 else None
@row_transform("noisy")
def noisy(row): return {"text": row["text"] + str(random.random())}
@row_transform("counting")
def counting(row):
    counting.calls = getattr(counting, "calls", 0) + 1
    return {"text": str(counting.calls)}
@row_transform("no_row")
def no_row(row): return row["text"]
@row_transform("none")
def none(row): row["text"] = row["text"].upper()
@row_transform("labels")
def labels(row): return {"text": row["text"], "labels": [-100]}
@row_transform("failing")
def failing(row): return {"text": row["missing"]}
"""
TEXTS = [f"document {index}" for index in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("own")
    (found / "own.py").write_text(CODE)
    rows = [{"text": text, "number": number} for number, text in enumerate(TEXTS)]
    (found / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return found


def code(name: str, folder: Path, kind: str = "data_source", **arguments: Any) -> Extension:
    digest = hashlib.sha256((folder / "own.py").read_bytes()).hexdigest()
    return Extension(kind=kind, entry=name, file="own.py", digest=digest, arguments=tuple(arguments.items()))


def source(name: str, folder: Path) -> ExtensionSource:
    return ExtensionSource(code(name, folder))


def transformed(name: str, folder: Path, **arguments: Any) -> TransformedSource:
    return TransformedSource(
        JsonLinesSource(("rows.jsonl",)), code(name, folder, "row_transform", **arguments)
    )


def opened(found: ExtensionSource | TransformedSource, folder: Path, **spec: Any) -> OpenData:
    wanted = want(DataSpec(found, "bytes", LENGTH, 0, **spec), base=folder, runs_extensions=True)
    return open_in_memory(wanted, model_vocab_size=300)


def tokens(data: OpenData) -> list[list[int]]:
    return [[*map(int, data.dataset[index][0])] for index in range(data.dataset.num_sequences)]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", ["good", "stream", "ids", "ended"])
def test_documents_are_packed_as_those_of_files_are(name: str, folder: Path) -> None:
    by_hand = [one[:-1].tolist() for one in sequences_of(TEXTS, length=LENGTH)]
    assert tokens(opened(source(name, folder), folder)) == by_hand


def test_labels_leave_tokens_out_of_the_loss(folder: Path) -> None:
    data = opened(source("labeled", folder), folder, packing="none")
    _, labels = data.dataset[12]
    # A position predicts the token after it: the first label kept is that of the ninth token.
    assert labels.tolist()[7:11] == [*b" 12", -100] and set(labels.tolist()[:7]) == {-100}


def test_rows_are_replaced_or_left_out(folder: Path) -> None:
    upper = opened(transformed("upper", folder, end="!"), folder)
    assert (
        tokens(upper)[0] == sequences_of([f"{one.upper()}!" for one in TEXTS], length=LENGTH)[0][:-1].tolist()
    )
    assert opened(transformed("odd", folder), folder).dataset.num_documents == 20


BAD = {
    "random": "`random` is not deterministic: document 0 is different when it is asked again",
    "in_order": "`in_order` is not deterministic: document 0 is different when it is asked again",
    "hashed": "`hashed` is not deterministic: document 0 is different in another process",
    "growing": "`growing` is not deterministic: .* is different in another order",
    "stream_random": "`stream_random` is not deterministic",
    "raising": "document 33 of `raising` fails: own.py:.*KeyError: 33",
    "late": "document 33 of `late` is a float, not a document",
    "mixed": "document 20 of `mixed` is token ids without labels, and those before it are text",
    "some_labels": "document 33 of `some_labels` is token ids with labels, .* are token ids without labels",
    "late_random": "`late_random` is not deterministic: document 34 is different in another process\n",
    "negative": "has the token id -2",
    "beyond": "document 0 of `beyond` has the token id 300",
    "shifted": "the label of token 0 of document 0 of `shifted` is 2, and its id 1",
    "empty": "`empty` has no documents",
    "messages": "document 0 of `messages` is messages, and the bytes tokenizer has no chat template",
    "masked": '`masked` has a key that planc does not read: "attention_mask"\nhelp: leave it out',
    "numbered": '`numbered` has a key that planc does not read: "id"\nhelp: leave it out',
    "no_documents": "`no_documents` is of type NoDocuments",
}
BAD_ROWS = {
    "noisy": "the row transform `noisy` is not deterministic: row rows.jsonl:1 is different",
    "counting": "the row transform `counting` is not deterministic",
    "no_row": "`no_row` returns `str` for rows.jsonl:1, not a row",
    "none": "`none` returns None for every row of 40\nhelp: return the row",
    "labels": '`labels` adds "labels" to rows.jsonl:1, and only the text of a row is read',
    "failing": "`failing` of rows.jsonl:1 fails: own.py:.*KeyError: 'missing'",
}


SLOW = ("late", "mixed", "negative", "shifted", "messages", "stream_random", "counting", "failing")


def sampled(names: Iterable[str]) -> list[Any]:
    return [pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else []) for one in names]


@pytest.mark.parametrize("name", sampled(BAD))
def test_data_that_can_not_be_used_is_refused_by_name(name: str, folder: Path) -> None:
    with pytest.raises(DataError, match=BAD[name]):
        opened(source(name, folder), folder)


@pytest.mark.parametrize("name", sampled(BAD_ROWS))
def test_rows_that_can_not_be_used_are_refused_by_name(name: str, folder: Path) -> None:
    with pytest.raises(DataError, match=BAD_ROWS[name]):
        opened(transformed(name, folder), folder)


def test_code_is_not_run_unasked(folder: Path) -> None:
    with pytest.raises(DataError, match="--run-extensions"):
        want(DataSpec(source("good", folder), "bytes", LENGTH, 0), base=folder)


def test_a_change_of_the_code_or_of_what_it_reads_is_other_data(tmp_path: Path) -> None:
    text = f"""
from planc.extend import data_source
@data_source("read")
class Read:
    def __len__(self): return 3
    def __getitem__(self, index): return open({str(tmp_path / "text")!r}).read() * 9
"""
    keys, prints = set(), set()
    for content, comment in (("one", ""), ("two", ""), ("two", "# changed\n")):
        (tmp_path / "text").write_text(content)
        (tmp_path / "own.py").write_text(text + comment)
        found = source("read", tmp_path)
        keys.add(want(DataSpec(found, "bytes", LENGTH, 0), base=tmp_path, runs_extensions=True).key)
        prints.add(opened(found, tmp_path).fingerprint)
    assert len(keys) == 3 and len(prints) == 3


def test_a_change_of_one_row_that_a_source_reads_is_other_data(tmp_path: Path) -> None:
    text = f"""
from planc.extend import data_source
@data_source("read")
class Read:
    def __init__(self): self.rows = open({str(tmp_path / "rows")!r}).read().splitlines()
    def __len__(self): return len(self.rows)
    def __getitem__(self, index): return self.rows[index]
"""
    (tmp_path / "own.py").write_text(text)
    keys = set()
    for changed in (None, 7, 389):
        (tmp_path / "rows").write_text("".join(f"row {number == changed}\n" for number in range(400)))
        spec = DataSpec(source("read", tmp_path), "bytes", LENGTH, 0)
        keys.add(want(spec, base=tmp_path, runs_extensions=True).key)
    assert len(keys) == 3


PLAN = """extension "arithmetic.py"
model {{
  hf = "tiny-llama"
  weights = pretrained
}}
mesh {{
{mesh}
}}
{blocks}
data {{
  source = sums(number = 400, digits = 2)
  sequence_length = {length}
  micro_batch = 2
  shuffle_seed = 3
}}
optimizer {{
  kind = adamw(lr = {lr}, weight_decay = 0.01)
  clip_grad_norm = {norm}
  schedule = constant
}}
checkpoint {{
  save_every = 2 steps
  resume = latest
}}
train {{
  steps = 4
  tokens_per_step = {tokens}
}}
"""
BLOCKS = 'tensor_parallel on tp {\n  auto\n}\nfsdp on dp_shard {\n  "model.layers.*" -> unit\n}\n'


def write(folder: Path, *, mesh: str, blocks: str = "") -> Path:
    (folder / "tiny-llama").mkdir(exist_ok=True)
    for name in ("config.json", "inventory.json"):
        content = (ROOT / "plans" / "models" / "tiny-llama" / name).read_bytes()
        (folder / "tiny-llama" / name).write_bytes(content)
    write_weights(folder / "tiny-llama")
    (folder / "arithmetic.py").write_bytes((EXAMPLE / "arithmetic.py").read_bytes())
    plan = PLAN.format(
        mesh=mesh, blocks=blocks, length=LENGTH, lr=LEARNING_RATE, norm=MAX_NORM, tokens=8 * LENGTH
    )
    (folder / "own.plan").write_text(plan)
    return folder / "own.plan"


def by_hand(folder: Path) -> ByHand:
    """The training of transformers' model on the class's documents."""
    documents = runpy.run_path(str(EXAMPLE / "arithmetic.py"))["Sums"](number=400, digits=2)
    texts = [documents[index] for index in range(len(documents))]
    config = AutoConfig.from_pretrained(folder / "tiny-llama", local_files_only=True)
    # `from_pretrained` would change which functions heed torch.device in this process, for good.
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(load_file(folder / "tiny-llama" / "model.safetensors"))
    return train(model, sequences_of(texts, length=LENGTH), steps=4, batch=8, seed=3, by_name=True)


@pytest.mark.slow
def test_computed_documents_train_as_one_process(tmp_path: Path) -> None:
    path = write(tmp_path, mesh="  dp_shard = 2\n  tp = 2", blocks=BLOCKS)
    records = trained(compiled(path), base=tmp_path, folder=tmp_path / "run")
    require_equal(records, by_hand(tmp_path))


@pytest.mark.slow
def test_computed_documents_resume_exactly(tmp_path: Path) -> None:
    path = write(tmp_path, mesh="  dp_shard = 2\n  tp = 2", blocks=BLOCKS)
    graph = compiled(path)
    whole = trained(graph, base=tmp_path, folder=tmp_path / "whole")
    trained(graph, base=tmp_path, folder=tmp_path / "run", stop_after=2)
    resumed = trained(graph, base=tmp_path, folder=tmp_path / "run")
    assert resumed[0].first_step == 3
    ids = [step.sample_ids for step in whole[0].metrics]
    assert [step.sample_ids for step in resumed[0].metrics] == ids[2:]
    assert all(torch.equal(resumed[0].final[name], one) for name, one in whole[0].final.items())


def test_examples_check(tmp_path: Path) -> None:
    checked = check_plan(EXAMPLE / "own_data.plan")
    assert checked.graph is not None, checked.diagnostics
