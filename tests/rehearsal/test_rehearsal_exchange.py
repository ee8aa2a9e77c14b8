"""An all-to-all between tensor dimensions is one on every backend, and is estimated as one."""

from __future__ import annotations

import re

import pytest

from planc.api import check_source
from planc.deep_check.check import counted_collectives, predicted_collectives
from planc.estimate.estimate import estimate
from planc.runtime.rehearsal.rehearse import rehearse
from planc.source import SourceFile
from tests.plans import PLANS, QUICKSTART


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("backend", ["gloo", "nccl", "auto"])
def test_a_change_of_the_divided_dimension_is_an_exchange(backend: str) -> None:
    text, changed = re.subn(
        r'"lm_head" -> .*', '"lm_head" -> rowwise(input = Shard(1))', QUICKSTART.read_text(encoding="utf-8")
    )
    assert changed == 1
    setting = SourceFile("--set", f"mesh.backend={backend}")
    checked = check_source(SourceFile("x.plan", text), base=PLANS, settings=[setting])
    assert checked.graph is not None and checked.inventory is not None, checked.diagnostics
    measured = rehearse(checked.graph, base=PLANS).measured
    assert measured is not None
    counted = counted_collectives(measured)
    assert counted == predicted_collectives(estimate(checked.graph, checked.inventory))
    assert any(kind == "all_to_all" for kind, _, _ in counted)
