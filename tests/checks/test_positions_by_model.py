"""Models that number their tokens themselves; tiny-bart is one."""

from __future__ import annotations

import pytest
from by_code import of
from variants import Check

PLAN = """\
model { hf = "models/tiny-bart" }
mesh { cp = 2 }
fsdp on dp_shard, cp { "model.decoder.layers.*" -> unit }
context_parallel on cp {
  rotate = allgather
  load_balancer = headtail
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 4
  packing = attend
}
optimizer { kind = adamw(lr = 1e-3) }
train { steps = 10 }
"""


@pytest.mark.parametrize(
    ("edits", "places"),
    [
        ((), ["context_parallel"]),
        ((("packing = attend", "packing = isolate"),), ["context_parallel", "isolate"]),
        ((("packing = attend", "packing = isolate"), ("cp = 2", "cp = 1")), ["isolate"]),
        ((("cp = 2", "cp = 1"),), []),
        ((("tiny-bart", "tiny-llama"), ("model.decoder.", "model.")), []),
    ],
)
def test_neither_parts_of_a_sequence_nor_documents_in_one_can_be_numbered(
    edits: tuple[tuple[str, str], ...], places: list[str], check: Check
) -> None:
    text = PLAN
    for old, new in edits:
        text = text.replace(old, new)
    lines = text.splitlines()
    found = of("P611", check(text))
    assert [
        place for place, one in zip(places, found, strict=True) if place in lines[one.primary.span.line - 1]
    ] == places
