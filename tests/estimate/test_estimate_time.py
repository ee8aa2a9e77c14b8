"""The roofline on numbers by hand, and what a run says of a machine."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_plan
from planc.cli.main import main
from planc.devices.hardware import DEVICES, Device
from planc.estimate.calibration import Calibration, dumps, loads, step_seconds
from planc.estimate.estimate import estimate
from planc.estimate.result import Estimate
from planc.estimate.roofline import UNCALIBRATED, Roofline, calibrate, roofline
from planc.graph.graph import Graph
from planc.source import SourceFile
from tests.plans import PLANS

H100 = DEVICES["h100"]
MEASURED = Calibration("cluster a", "h100", "2026-01-02", gemm_efficiency=0.5, bus_efficiency=0.25)


def llama(*settings: str) -> tuple[Estimate, Graph]:
    return estimated("llama-3.1-8b.plan", *settings)


def estimated(name: str, *settings: str) -> tuple[Estimate, Graph]:
    sources = [SourceFile(f"--set[{index}]", text) for index, text in enumerate(settings)]
    found = check_plan(PLANS / name, settings=sources)
    assert found.graph is not None and found.inventory is not None
    return estimate(found.graph, found.inventory), found.graph


def bound_on(
    device: Device, *settings: str, node: int | None = None, calibration: Calibration | None = None
) -> Roofline:
    found, graph = llama(*settings)
    bound = roofline(found, graph, device, devices_per_node=node, calibration=calibration)
    assert bound is not None
    return bound


def test_a_step_waits_for_the_slowest_and_then_for_the_optimizer() -> None:
    bound, (found, _) = bound_on(H100), llama()
    assert bound.compute_seconds == found.flops.executed_per_rank / 989e12
    assert bound.optimizer_seconds == 28 * found.num_local_parameters / 3.35e12
    slowest = max(bound.compute_seconds, bound.link_seconds, bound.network_seconds)
    assert bound.step_seconds == slowest + bound.optimizer_seconds
    assert (bound.bound, bound.source) == ("compute", UNCALIBRATED)


@pytest.mark.parametrize("node", [1, 4])
def test_gradients_that_replicas_sum_overlap_with_nothing(node: int) -> None:
    found, graph = estimated("launch-dp4.plan")
    bound = roofline(found, graph, H100, devices_per_node=node)
    assert bound is not None
    summed = sum(one.sent_bytes for one in found.collectives if one.cause == "grads.all_reduce")
    assert bound.replicas_seconds == summed / (450e9 if node == 4 else 50e9)
    slowest = max(bound.compute_seconds, bound.link_seconds, bound.network_seconds)
    assert bound.link_seconds + bound.network_seconds < bound.replicas_seconds
    assert bound.step_seconds == slowest + bound.replicas_seconds + bound.optimizer_seconds


@pytest.mark.parametrize("slower", [1, 10**6])
def test_a_run_of_replicas_gives_an_efficiency_that_gives_the_run(slower: int) -> None:
    found, graph = estimated("launch-dp4.plan")
    device = replace(H100, link_bandwidth=450 * 10**9 // slower)
    plain = roofline(found, graph, device)
    assert plain is not None
    seconds = 2 * plain.step_seconds
    measured = calibrate(plain, seconds=seconds, machine="a", device=device, date="2026-01-02")
    assert (measured.gemm_efficiency is None) == (slower > 1)
    again = roofline(found, graph, device, calibration=measured)
    assert again is not None and again.step_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("kind", "num_bytes"), [("sgd(lr = 1e-2)", 12), ("sgd(lr = 1e-2, momentum = 0.9)", 20)]
)
def test_an_optimizer_that_keeps_less_moves_less(kind: str, num_bytes: int) -> None:
    assert bound_on(H100, f"optimizer.kind={kind}").optimizer_bytes == num_bytes


@pytest.mark.parametrize(
    ("node", "inside"),
    [(1, ()), (4, (("tp",),)), (8, (("tp",), ("cp",))), (64, None)],
)
def test_groups_of_one_node_use_its_links(node: int, inside: tuple[tuple[str, ...], ...] | None) -> None:
    """tp 4 is innermost, cp 2 the next: together they fill a node of 8."""
    found, _ = llama()
    chosen = [one for one in found.collectives if inside is None or one.over in inside]
    assert bound_on(H100, node=node).link_seconds == found.sent_bytes(chosen) / 450e9


def test_a_calibration_slows_what_it_measured_and_says_where() -> None:
    plain, slower = bound_on(H100), bound_on(H100, calibration=MEASURED)
    assert slower.compute_seconds == 2 * plain.compute_seconds
    assert slower.network_seconds == 4 * plain.network_seconds
    assert slower.source == "calibrated by cluster a, h100, 2026-01-02: gemm 0.500, bus 0.250"


def test_a_calibration_of_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="the calibration is for h100, and the plan's device is h200"):
        bound_on(DEVICES["h200"], calibration=MEASURED)


def test_a_device_without_peaks_has_no_time() -> None:
    found, graph = llama()
    assert roofline(found, graph, replace(H100, peak_flops=None)) is None


def test_a_run_gives_the_efficiency_of_what_bounds_it() -> None:
    plain = bound_on(H100)
    seconds = plain.compute_seconds / 0.4 + plain.optimizer_seconds
    measured = calibrate(plain, seconds=seconds, machine="a", device=H100, date="2026-01-02")
    assert measured.gemm_efficiency == pytest.approx(0.4)
    assert measured.bus_efficiency is None
    assert bound_on(H100, calibration=measured).step_seconds == pytest.approx(seconds)


def test_a_run_that_waits_for_the_network_gives_the_bus_efficiency() -> None:
    slow = bound_on(replace(H100, nic_bandwidth=10**9))
    seconds = 2 * slow.network_seconds + slow.optimizer_seconds
    measured = calibrate(slow, seconds=seconds, machine="a", device=H100, date="2026-01-02")
    assert (measured.gemm_efficiency, measured.bus_efficiency) == (None, pytest.approx(0.5))


def test_a_run_faster_than_the_device_is_refused() -> None:
    with pytest.raises(ValueError, match="is faster than h100 allows"):
        calibrate(bound_on(H100), seconds=1e-3, machine="a", device=H100, date="2026-01-02")


def test_a_file_comes_back_as_it_was() -> None:
    assert loads(dumps(MEASURED)) == MEASURED


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"gemm_efficiency": 1.5}, "`gemm_efficiency` must be a number above 0 and up to 1"),
        ({"bus_efficiency": True}, "`bus_efficiency` must be a number"),
        ({"machine": " "}, "`machine` must be a string"),
        ({"format_version": 2}, "format_version 2 is not 1"),
        ({"extra": 1}, "expected an object with"),
        ({"gemm_efficiency": float("nan")}, "NaN is not a JSON number"),
    ],
)
def test_a_broken_file_is_refused(edit: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loads(json.dumps(json.loads(dumps(MEASURED)) | edit))


def lines(*seconds: float) -> list[str]:
    """Of a run on chats, whose labels are a small part of its positions: no rate of labels tells seconds."""
    return [
        json.dumps({"step": step, "loss": 1.0, "seconds": one, "labels": 10, "tokens_per_second": 10 / one})
        for step, one in enumerate(seconds, 1)
    ]


def test_a_file_with_a_key_twice_is_refused() -> None:
    with pytest.raises(ValueError, match='the key "machine" stands twice'):
        loads(dumps(MEASURED).replace("{", '{"machine": "b",', 1))


def test_the_first_steps_of_a_run_do_not_count() -> None:
    assert step_seconds(lines(9, 9, 9, 4, 5, 6)) == 5


def test_a_run_of_its_first_steps_alone_is_too_short() -> None:
    with pytest.raises(ValueError, match="3 steps are logged; more than 3 are needed"):
        step_seconds(lines(1, 1, 1))


def run_folder(tmp_path: Path, *, seconds: float, plan: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    if not (folder / "plan.json").exists():
        assert main(["compile", str(plan), "-o", str(folder / "plan.json")]) == 0
    (folder / "metrics.jsonl").write_text("\n".join(lines(*[seconds] * 5)) + "\n")
    return folder


def test_a_run_calibrates_the_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, output = PLANS / "llama-3.1-8b.plan", tmp_path / "a.json"
    folder = run_folder(tmp_path, seconds=10.0, plan=plan)
    device = ["--gpu", "h100"]
    assert main(["calibrate", str(plan), str(folder), *device, "--machine", "a", "-o", str(output)]) == 0
    assert "a, h100, " in capsys.readouterr().out
    estimate_command = ["estimate", str(plan), *device, "--calibration", str(output)]
    assert main([*estimate_command, "--output-format", "json"]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert time["step_seconds"] == pytest.approx(10)
    assert time["source"].startswith("calibrated by a, h100, ")


def test_a_run_of_another_plan_calibrates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, output = PLANS / "llama-3.1-8b.plan", tmp_path / "a.json"
    folder = run_folder(tmp_path, seconds=1.0, plan=plan)
    other = ["--set", "optimizer.clip_grad_norm=2.0"]
    command = ["calibrate", str(plan), str(folder), *other, "--gpu", "h100", "--machine", "a"]
    assert main([*command, "-o", str(output)]) == 2
    assert "pass the run's --set" in capsys.readouterr().err
    assert not output.exists()


def test_a_run_on_cpus_calibrates_no_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, output = PLANS / "llama-3.1-8b.plan", tmp_path / "a.json"
    folder = run_folder(tmp_path, seconds=10.0, plan=plan)
    metrics = folder / "metrics.jsonl"
    command = ["calibrate", str(plan), str(folder), "--gpu", "h100", "--machine", "a", "-o", str(output)]
    logged = [json.loads(line) for line in metrics.read_text().splitlines()]
    for kind, code in (("process", 2), ("allocated", 0)):
        metrics.write_text("".join(json.dumps({**line, "memory_kind": kind}) + "\n" for line in logged))
        assert main(command) == code
        assert output.exists() == (code == 0)
        assert ("the run used CPUs" in capsys.readouterr().err) == (code == 2)


@pytest.mark.parametrize("damage", ["a byte", "a pipe", "a link", "a directory"])
def test_a_damaged_run_calibrates_nothing(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, output = PLANS / "llama-3.1-8b.plan", tmp_path / "a.json"
    folder = run_folder(tmp_path, seconds=1.0, plan=plan)
    metrics = folder / "metrics.jsonl"
    sound = metrics.read_bytes()
    metrics.unlink()
    match damage:
        case "a byte":
            metrics.write_bytes(sound + b"\xff\n")
        case "a pipe":
            os.mkfifo(metrics)
        case "a link":
            (tmp_path / "elsewhere").write_bytes(sound)
            metrics.symlink_to(tmp_path / "elsewhere")
        case _:
            metrics.mkdir()
    command = ["calibrate", str(plan), str(folder), "--gpu", "h100", "--machine", "a", "-o", str(output)]
    assert main(command) == 2
    assert str(metrics) in capsys.readouterr().err
    assert not output.exists()


def test_a_time_stands_beside_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(PLANS / "llama-3.1-8b.plan"), "--gpu", "h100"]) == 0
    assert f"TIME PER STEP, {UNCALIBRATED}\n" in capsys.readouterr().out


def test_without_a_device_there_is_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(PLANS / "llama-3.1-8b.plan")]) == 0
    assert "TIME" not in capsys.readouterr().out
