"""Times of other plans on a machine that one run has calibrated, against the runs of tests/gpu/GPU.md."""

from __future__ import annotations

import functools
import json
import re

import pytest

from planc.api import check_plan
from planc.devices.hardware import DEVICES
from planc.estimate.estimate import estimate
from planc.estimate.expectation import step_expectation
from planc.estimate.scale import calibrate
from planc.estimate.step_work import StepWork, step_work
from planc.source import SourceFile
from tests.gpu.page import RESULTS
from tests.gpu.site import ROOT

H200 = DEVICES["h200"]
PLANS = {
    "speed-eager": "large",
    "speed-compiled": "large-compiled",
    "speed-recomputed": "large-recomputed",
}


@functools.cache
def step(name: str) -> StepWork:
    settings = f'model.hf="{ROOT}/plans/models/llama-3.2-1b"', "hardware.gpu=h200"
    sources = [SourceFile(f"--set[{index}]", one) for index, one in enumerate(settings)]
    found = check_plan(ROOT / "tests" / "gpu" / "plans" / f"{PLANS[name]}.plan", settings=sources)
    assert found.graph is not None and found.inventory is not None, found.diagnostics
    return step_work(found.graph, found.inventory, estimate(found.graph, found.inventory))


def measured(name: str) -> float:
    """Seconds of a step on the H200."""
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    found = re.search(r"\(([\d.]+) ms, by hand", result["outcome"]["figures"])
    assert found is not None and result["site"]["names"] == ["NVIDIA H200"]
    return float(found[1]) / 1e3


@pytest.mark.parametrize("run", PLANS)
def test_one_run_brings_the_times_of_other_plans_nearer(run: str) -> None:
    calibration = calibrate(step(run), H200, seconds=measured(run), machine="a", date="2026-11-27")
    for other in PLANS.keys() - {run}:
        before, after = (step_expectation(step(other), H200, calibration=one) for one in (None, calibration))
        assert before is not None and after is not None
        errors = [abs(one.step_seconds / measured(other) - 1) for one in (before, after)]
        assert errors[1] < errors[0] and errors[1] < 0.12, other
