"""LongRoPE, whose embeddings each forward chooses by the positions that it sees: 128 is where they change."""

from __future__ import annotations

import pytest
from by_code import of
from variants import Check

PLAN = """\
model { hf = "models/tiny-phi3-long" }
mesh { cp = 4 }
fsdp on dp_shard, cp { "model.layers.*" -> unit }
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
    ("edits", "seen"),
    [
        ((), None),  # the last rank has chunks 4 and 5 of 8: up to 160
        ((("headtail", "none"),), 64),
        ((("headtail", "none"), ("length = 256", "length = 512")), 128),
        ((("headtail", "none"), ("length = 256", "length = 512"), ("cp = 4", "cp = 2")), None),
        ((("length = 256", "length = 200"),), 125),
        ((("headtail", "none"), ("length = 256", "length = 128")), None),
        ((("headtail", "none"), ("tiny-phi3-long", "tiny-phi3")), None),
    ],
)
def test_every_rank_sees_positions_beyond_the_switch(
    edits: tuple[tuple[str, str], ...], seen: int | None, check: Check
) -> None:
    text = PLAN
    for old, new in edits:
        text = text.replace(old, new, 1)
    assert [one.secondary[0].text for one in of("P610", check(text))] == [
        f"with cp = {4 if 'cp = 4' in text else 2}, some rank sees only positions up to {seen}"
    ] * (seen is not None)


def test_isolated_documents_have_short_positions(check: Check) -> None:
    text = PLAN.replace("packing = attend", "packing = isolate")
    (one,) = of("P610", check(text))
    assert "positions restart" in one.secondary[0].text
    assert not of("P610", check(text.replace("256", "128")))
