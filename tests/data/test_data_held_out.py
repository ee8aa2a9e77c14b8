"""A held-out share: by a hash of each document, before packing, in memory and in files."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from planc.data_sources.kinds import ChatSource, JsonLinesSource, Thinking
from planc.runtime.data.documents import spec_documents
from planc.runtime.data.open import open_data, open_prepared
from planc.runtime.data.prepared.prepare import prepare
from planc.runtime.data.prepared.wanted import want
from planc.runtime.data.sources import Document
from planc.runtime.data.spec import DataSpec, HeldOut
from tests.data.cases.case import planc
from tests.data.conversing import save_talks
from tests.plans import write_plan

SOURCE = JsonLinesSource(("*.jsonl",))


def save(folder: Path, name: str, numbers: range) -> None:
    lines = (json.dumps({"text": f"document {number} of many"}) for number in numbers)
    (folder / f"{name}.jsonl").write_text("\n".join(lines))


def spec_of(is_kept: bool | None, *, share: str = "1/20") -> DataSpec:
    held_out = None if is_kept is None else HeldOut(share, is_kept)
    return DataSpec(SOURCE, "bytes", 16, 3, "isolate", held_out=held_out)


def texts(folder: Path, spec: DataSpec) -> list[str]:
    found = list(spec_documents(spec, base=folder))
    assert all(isinstance(one, Document) for one in found)
    return [one.text for one in found if isinstance(one, Document)]


def test_each_document_is_on_one_side_by_its_hash(tmp_path: Path) -> None:
    save(tmp_path, "a", range(2_000))
    every, trained, held = (texts(tmp_path, spec_of(one)) for one in (None, False, True))

    # The definition: the first 64 bits of SHA-256, as a fraction of their range.
    def is_held(text: str) -> bool:
        return Fraction(int(hashlib.sha256(text.encode()).hexdigest()[:16], 16), 2**64) < Fraction(1, 20)

    assert trained == [text for text in every if not is_held(text)]
    assert held == [text for text in every if is_held(text)]
    assert 60 < len(held) < 140


def test_files_that_are_added_move_no_other_document(tmp_path: Path) -> None:
    save(tmp_path, "b", range(500))
    before = {one: set(texts(tmp_path, spec_of(one))) for one in (True, False)}
    # Before it in the order of names, and with half of the same documents.
    save(tmp_path, "a", range(250, 900))
    for one, known in before.items():
        after = set(texts(tmp_path, spec_of(one)))
        assert known < after
    assert not set(texts(tmp_path, spec_of(True))) & set(texts(tmp_path, spec_of(False)))


def test_both_sides_are_prepared_apart_and_equal_those_in_memory(tmp_path: Path) -> None:
    save(tmp_path, "a", range(2_000))
    folders, fingerprints = set(), set()
    for one in (None, False, True):
        spec = spec_of(one)
        memory = open_data(spec, base=tmp_path, model_vocab_size=257)
        wanted = want(spec, base=tmp_path)
        found = prepare(tmp_path / "prepared", wanted, name="test")
        files = open_prepared(found, wanted, model_vocab_size=257)
        assert files.fingerprint == memory.fingerprint
        for index in range(memory.dataset.num_sequences):
            np.testing.assert_array_equal(files.dataset[index], memory.dataset[index])
        folders.add(found.folder.name)
        fingerprints.add(files.fingerprint)
    assert len(folders) == len(fingerprints) == 3


PLAN = """\
model {
  hf = "models/tiny-llama"
}

data {
  source "a" { source = jsonl("a.jsonl"), weight = 0.7 }
  source "b" { source = jsonl("b.jsonl"), weight = 0.3 }
  sequence_length = 32
  micro_batch = 2
  eval "held_out" { share = 5 %, every = 1 step, sequences = 2 }
}

optimizer {
  kind = adamw(lr = 1e-3)
}

train {
  steps = 1
}
"""


@pytest.mark.slow
def test_a_mixture_is_evaluated_source_by_source(tmp_path: Path) -> None:
    save(tmp_path, "a", range(400))
    save(tmp_path, "b", range(400, 800))
    path = write_plan(tmp_path, text=PLAN)
    # A run ends its process.
    ended = planc(tmp_path, "run", str(path), "--run-dir", "run")
    assert ended.code == 0, ended.text
    counts = {
        name: len(
            texts(tmp_path, DataSpec(JsonLinesSource((f"{name}.jsonl",)), "bytes", 32, 0, held_out=held))
        )
        for name, held in (("a", HeldOut("1/20", True)), ("b", HeldOut("1/20", True)))
    }
    for name, count in counts.items():
        assert f"evaluation held_out.{name}: {count} documents" in ended.out
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"held_out.a", "held_out.b"} <= set(json.dumps(row).replace('"', " ").split())


@pytest.mark.parametrize("thinking", ["last", "all"])
def test_turns_of_one_conversation_are_on_one_side(tmp_path: Path, thinking: Thinking) -> None:
    talks = [
        [{"role": ("user", "assistant")[at % 2], "content": f"{number} {at}"} for at in range(6)]
        for number in range(300)
    ]
    save_talks(tmp_path / "a.jsonl", *talks)
    source = ChatSource(("*.jsonl",), thinking=thinking)
    origins = [
        {
            one.origin
            for one in spec_documents(
                DataSpec(source, "bytes", 16, 0, held_out=HeldOut("1/5", is_kept)), base=tmp_path
            )
        }
        for is_kept in (True, False)
    ]
    assert not origins[0] & origins[1]
    assert len(origins[0] | origins[1]) == len(talks)
    assert 30 < len(origins[0]) < 90
