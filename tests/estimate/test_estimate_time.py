"""The times of a step: the bound and the expectation on numbers by hand, and what a run says of a machine."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from planc.api import check_plan, check_source
from planc.cli.main import main
from planc.devices.hardware import DEVICES, Device
from planc.estimate.bound import StepBound, step_bound
from planc.estimate.calibration import Calibration, dumps, loads, step_seconds
from planc.estimate.estimate import estimate
from planc.estimate.expectation import PUBLISHED, StepExpectation, step_expectation
from planc.estimate.result import Collective, Kind
from planc.estimate.routes import members_in_node, route
from planc.estimate.scale import calibrate
from planc.estimate.step_work import StepWork, step_work
from planc.graph.groups import Axis
from planc.graph.ops import AllReduceGradients
from planc.show.times import expected_rows
from planc.source import SourceFile
from planc.vocab import MeshDim
from tests.plans import PLANS

H100 = DEVICES["h100"]
MEASURED = Calibration("cluster a", "h100", "2026-01-02", compute_scale=0.5, communication_scale=0.25)
SHARD, TP = MeshDim.DP_SHARD, MeshDim.TP


RECOMPUTED = 'activation_checkpoint {\n  "model.layers.*" -> full\n}\n'
COMPILED = 'compile {\n  "model.layers.*" -> region\n}\n'


def work_of(name: str, *settings: str, more: str = "") -> StepWork:
    """The work of a plan that ships, with more blocks."""
    sources = [SourceFile(f"--set[{index}]", text) for index, text in enumerate(settings)]
    source = SourceFile(name, (PLANS / name).read_text(encoding="utf-8") + more)
    found = check_source(source, base=PLANS, settings=sources)
    assert found.graph is not None and found.inventory is not None
    return step_work(found.graph, found.inventory, estimate(found.graph, found.inventory))


def llama(*settings: str) -> StepWork:
    return work_of("llama-3.1-8b.plan", *settings)


def bound_on(device: Device, *settings: str, node: int | None = None) -> StepBound:
    found = step_bound(llama(*settings), device, devices_per_node=node)
    assert found is not None
    return found


def expected_on(
    device: Device, *settings: str, node: int | None = None, calibration: Calibration | None = None
) -> StepExpectation:
    found = step_expectation(llama(*settings), device, devices_per_node=node, calibration=calibration)
    assert found is not None
    return found


def calibrated(step: StepWork, *, seconds: float, device: Device = H100) -> Calibration:
    return calibrate(step, device, seconds=seconds, machine="a", date="2026-01-02")


def test_a_bound_is_the_slowest_part_and_then_the_optimizer() -> None:
    bound, step = bound_on(H100), llama()
    flops = sum(one.flops * (one.num_forward + one.num_backward) for one in step.matmuls)
    assert bound.compute_seconds == (flops + step.attention.least) / 989e12
    assert bound.optimizer_seconds == 28 * step.optimizer_elements / 3.35e12
    slowest = max(bound.compute_seconds, bound.link_seconds, bound.network_seconds)
    assert bound.step_seconds == slowest + bound.optimizer_seconds
    assert bound.limit == "compute"


def test_the_flops_of_a_dense_layer_are_six_for_each_weight_and_token() -> None:
    """One device, nothing recomputed: 2 x 3 x tokens x weights, and causal attention's half."""
    step = work_of("launch-one-process.plan")
    flops = sum(one.flops * (one.num_forward + one.num_backward) for one in step.matmuls)
    # 4 layers of 128: q and o 128 x 128, k and v 64 x 128, three of 352 x 128; a head of 260 x 128.
    weights = 4 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 352 * 128) + 260 * 128
    assert flops == 6 * weights * step.tokens


def test_recomputation_adds_a_forward_up_to_the_last_tensor_that_backward_reads() -> None:
    counts = {"model.layers.*.mlp.down_proj": 2, "model.layers.*.mlp.up_proj": 3}
    step = work_of("launch-one-process.plan", more=RECOMPUTED)
    backward = {(one.inner, one.outer): one.num_backward / one.num_forward for one in step.matmuls}
    assert backward[352, 128] == counts["model.layers.*.mlp.down_proj"]
    assert backward[128, 352] == counts["model.layers.*.mlp.up_proj"]


@pytest.mark.parametrize(("node", "members"), [(1, 1), (4, 1), (8, 2), (16, 4), (64, 16), (None, 16)])
def test_members_of_a_group_in_a_node_are_counted_by_stride(node: int | None, members: int) -> None:
    """tp 4 is innermost, so two neighbors of dp_shard are 4 ranks apart."""
    assert members_in_node((Axis(SHARD, 16, 4), Axis(TP, 4, 1)), (SHARD,), node) == members


@pytest.mark.parametrize(("node", "members"), [(4, 4), (6, 6), (8, 8), (64, 32)])
def test_a_group_of_two_dims_has_all_ranks_of_both(node: int, members: int) -> None:
    assert members_in_node((Axis(SHARD, 8, 4), Axis(TP, 4, 1)), (SHARD, TP), node) == members


def test_the_rings_of_a_group_cross_to_the_next_node_at_every_member() -> None:
    """64 ranks on 8 nodes: an adapter carries an eighth of what a rank sends, not all of it."""
    gather = Collective((SHARD,), 64, Kind.ALL_GATHER, "fsdp.shard", 1, 800)
    way = route(gather, 8)
    assert (way.nic_bytes, way.link_bytes) == (63 * 800 / 8, 63 * 800 * 7 / 8)
    assert way.least_nic_bytes == 56 * 800 / 8
    assert (way.link_steps, way.nic_steps) == (56, 7)


def test_a_group_with_one_member_in_each_node_sends_all_through_its_adapter() -> None:
    way = route(Collective((SHARD,), 8, Kind.REDUCE_SCATTER, "fsdp.shard", 1, 800), 1)
    assert (way.nic_bytes, way.least_nic_bytes, way.link_bytes) == (700, 700, 0)


def test_an_exchange_between_nodes_is_not_shared_by_adapters() -> None:
    way = route(Collective((TP,), 16, Kind.ALL_TO_ALL, "attention", 1, 1600), 8)
    assert (way.nic_bytes, way.link_bytes) == (800, 700)


def test_switches_that_sum_let_an_all_reduce_send_its_input_once() -> None:
    inside = route(Collective((TP,), 8, Kind.ALL_REDUCE, "tp.shard", 1, 800), 8)
    assert (inside.link_bytes, inside.least_link_bytes, inside.nic_bytes) == (1400, 800, 0)


@pytest.mark.sampled(every=28)
@pytest.mark.parametrize("plan", sorted(PLANS.glob("*.plan")), ids=lambda path: path.stem)
@pytest.mark.parametrize("device", ["h100", "a100", "mi300x"])
def test_no_plan_is_expected_to_beat_its_bound(plan: Path, device: str) -> None:
    found = check_plan(plan)
    assert found.bound is not None and found.inventory is not None
    assert found.draft is not None
    graph = found.draft.graph
    step = step_work(graph, found.inventory, estimate(graph, found.inventory))
    bound, expected = (make(step, DEVICES[device]) for make in (step_bound, step_expectation))
    assert isinstance(bound, StepBound)
    if expected is None:
        assert step.not_modeled
        return
    assert isinstance(expected, StepExpectation)
    assert bound.step_seconds <= expected.fast_seconds <= expected.step_seconds <= expected.slow_seconds


@pytest.mark.parametrize("node", [1, 4])
def test_the_last_gradients_that_replicas_sum_overlap_with_nothing(node: int) -> None:
    bound = step_bound(step := work_of("launch-dp4.plan"), H100, devices_per_node=node)
    assert bound is not None and step.behind
    summed = sum(one.count * one.input_bytes for one in step.behind)
    assert bound.replicas_seconds == pytest.approx(summed / (450e9 if node == 4 else 50e9))
    slowest = max(bound.compute_seconds, bound.link_seconds, bound.network_seconds)
    assert bound.step_seconds == slowest + bound.replicas_seconds + bound.optimizer_seconds


def test_backward_hides_the_sums_of_all_buckets_but_the_last() -> None:
    found = check_plan(PLANS / "launch-dp4.plan")
    assert found.graph is not None and found.inventory is not None
    old = found.graph.step
    small = (replace(op, bucket_bytes=1) if isinstance(op, AllReduceGradients) else op for op in old)
    graphs = found.graph, replace(found.graph, step=tuple(small))
    one, many = (step_work(graph, found.inventory, estimate(graph, found.inventory)) for graph in graphs)
    whole = sum(each.input_bytes for each in one.behind)
    inside = [each for each in many.collectives if each.cause == "grads.all_reduce"]
    hidden = sum(each.count * each.input_bytes for each in inside)
    (last,) = many.behind
    assert last.count == 1 and 0 < last.input_bytes < hidden and hidden + last.input_bytes == whole
    found_one, found_many = (step_expectation(step, H100) for step in (one, many))
    assert found_one is not None and found_many is not None
    assert found_many.hidden_seconds > found_one.hidden_seconds


@pytest.mark.parametrize(
    ("kind", "num_bytes"), [("sgd(lr = 1e-2)", 12), ("sgd(lr = 1e-2, momentum = 0.9)", 20)]
)
def test_an_optimizer_that_keeps_less_moves_less(kind: str, num_bytes: int) -> None:
    assert bound_on(H100, f"optimizer.kind={kind}").optimizer_bytes == num_bytes


def test_a_slower_network_takes_longer() -> None:
    slow = replace(H100, nic_bandwidth=H100.nic_bandwidth and H100.nic_bandwidth // 50)
    assert expected_on(slow).exposed_seconds > 2 * expected_on(H100).exposed_seconds
    assert bound_on(slow).network_seconds == pytest.approx(50 * bound_on(H100).network_seconds)


def test_what_compute_hides_is_not_in_the_step() -> None:
    found = expected_on(H100)
    parts = found.compute_seconds + found.exposed_seconds + found.optimizer_seconds
    assert found.hidden_seconds > 0
    assert found.step_seconds == pytest.approx(parts + found.replicas_seconds, rel=1e-12)


def test_a_compiled_layer_moves_fewer_bytes() -> None:
    step, fused = llama(), work_of("llama-3.1-8b.plan", more=COMPILED)
    assert fused.traffic.forward < 0.7 * step.traffic.forward
    assert fused.matmuls == step.matmuls and fused.kernels < step.kernels


def test_float32_is_slower_than_bfloat16() -> None:
    step = llama()
    wide = replace(step, dtype=type(step.dtype).FLOAT32)
    found, slower = step_expectation(step, H100), step_expectation(wide, H100)
    assert found is not None and slower is not None
    assert slower.matmul_seconds > 10 * found.matmul_seconds


def test_nothing_is_expected_of_work_that_is_not_modeled() -> None:
    step = replace(llama(), not_modeled=("CPU offload",))
    assert step_expectation(step, H100) is None and step_bound(step, H100) is not None


def test_a_calibration_slows_what_it_measured_and_says_where() -> None:
    plain, slower = expected_on(H100), expected_on(H100, calibration=MEASURED)
    assert slower.attention_seconds == 2 * plain.attention_seconds
    assert slower.elementwise_seconds == 2 * plain.elementwise_seconds
    assert slower.source == (
        "calibrated by cluster a, h100, 2026-01-02: "
        "compute 0.500 x the expected, communication 0.250 x the expected"
    )


def test_a_calibration_narrows_the_interval() -> None:
    def width(found: StepExpectation) -> float:
        return (found.slow_seconds - found.fast_seconds) / found.step_seconds

    as_expected = replace(MEASURED, compute_scale=1.0, communication_scale=1.0)
    assert width(expected_on(H100, calibration=as_expected)) < 0.6 * width(expected_on(H100))


def test_a_calibration_of_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="the calibration is for h100, and the plan's device is h200"):
        expected_on(DEVICES["h200"], calibration=MEASURED)


def test_a_device_without_peaks_has_no_time() -> None:
    step = llama()
    for device in (replace(H100, peak_flops=None), replace(H100, nic_bandwidth=None)):
        assert step_bound(step, device) is None and step_expectation(step, device) is None


@pytest.mark.parametrize("factor", [0.7, 1.0, 2.5])
def test_a_run_gives_the_scale_that_gives_the_run(factor: float) -> None:
    seconds = factor * expected_on(H100).step_seconds
    measured = calibrated(llama(), seconds=seconds)
    assert measured.compute_scale is not None and measured.communication_scale is None
    assert (measured.compute_scale < 1.001) == (factor >= 1)
    assert expected_on(H100, calibration=measured).step_seconds == pytest.approx(seconds)


def test_a_run_that_waits_for_the_network_gives_the_scale_of_communication() -> None:
    slow, step = replace(H100, nic_bandwidth=10**8), llama()
    seconds = 2 * expected_on(slow).step_seconds
    measured = calibrated(step, seconds=seconds, device=slow)
    assert measured.compute_scale is None
    assert measured.communication_scale == pytest.approx(0.5, rel=0.1)


def test_a_run_faster_than_the_device_is_refused() -> None:
    with pytest.raises(ValueError, match="is faster than h100 allows"):
        calibrated(llama(), seconds=1e-3)


def test_a_run_that_no_scale_explains_is_refused() -> None:
    with pytest.raises(ValueError, match="is not explained by compute"):
        calibrated(llama(), seconds=1e6)


def host_bound() -> StepWork:
    """Qwen3-0.6B in bfloat16, four micro-batches of 2,048 tokens, as it ran on one H100."""
    text = (PLANS / "qwen3-0.6b.plan").read_text(encoding="utf-8")
    for block in ("expect", "activation_checkpoint", "context_parallel on cp"):
        text = re.sub(rf"^{block} \{{.*?^\}}\n", "", text, flags=re.DOTALL | re.MULTILINE)
    edits = {
        "dp_shard = 2\n  cp = 4": "dp_shard = 1",
        "dp_shard, cp": "dp_shard",
        "32_768": "2048",
        "262_144": "8192",
    }
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    found = check_source(SourceFile("host.plan", text), base=PLANS)
    assert found.graph is not None and found.inventory is not None, found.diagnostics
    return step_work(found.graph, found.inventory, estimate(found.graph, found.inventory))


def test_the_interval_has_a_step_that_waits_for_a_slow_host() -> None:
    """522 ms were measured, of which the device needs less than a third."""
    step = host_bound()
    found = step_expectation(step, H100)
    assert found is not None
    assert found.step_seconds < 0.2 < 0.522 < found.slow_seconds
    rows = {name: note for name, _, note in expected_rows(step, found)}
    assert rows["host"].startswith(f"{step.kernels:_} launches: bound by the host above 1")
    assert found.seconds_per_launch(step) * step.kernels == pytest.approx(
        found.matmul_seconds + found.attention_seconds + found.elementwise_seconds
    )


def test_one_run_gives_the_time_of_a_launch() -> None:
    step = host_bound()
    measured = calibrated(step, seconds=0.522)
    assert (measured.compute_scale, measured.communication_scale) == (None, None)
    assert measured.launch_seconds is not None and 30e-6 < measured.launch_seconds < 36e-6
    again = step_expectation(step, H100, calibration=measured)
    assert again is not None and again.step_seconds == pytest.approx(0.522, rel=0.01)
    assert again.limit == "the host" and again.fast_seconds < 0.522 < again.slow_seconds < 0.6
    assert loads(dumps(measured)) == measured


def test_large_models_say_nothing_of_launches() -> None:
    found = step_expectation(llama(), H100)
    assert found is not None
    assert "host" not in {name for name, *_ in expected_rows(llama(), found)}


def test_a_file_comes_back_as_it_was() -> None:
    assert loads(dumps(MEASURED)) == MEASURED


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"compute_scale": 150}, "`compute_scale` must be a number from 0.01 to 100, or null"),
        ({"launch_seconds": 1.0}, "`launch_seconds` must be a number from 1e-06 to 0.0001, or null"),
        ({"communication_scale": True}, "`communication_scale` must be a number"),
        ({"machine": " "}, "`machine` must be a string"),
        ({"format_version": 1}, "format_version 1 is not 3"),
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
    assert time["expected"]["expected_step_seconds"] == pytest.approx(10)
    assert time["bound"]["least_step_seconds"] < 10
    assert time["expected"]["source"].startswith("calibrated by a, h100, ")


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


def test_both_times_stand_beside_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(PLANS / "llama-3.1-8b.plan"), "--gpu", "h100"]) == 0
    out = capsys.readouterr().out
    assert f"TIME PER STEP, expected, by {PUBLISHED}\n" in out
    assert "TIME PER STEP, at least: a bound, from h100's peaks\n" in out


def test_an_offloaded_plan_has_a_bound_alone(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "estimate",
        str(PLANS / "llama-3.1-8b.plan"),
        "--gpu",
        "h100",
        "--set",
        "fsdp.cpu_offload=true",
    ]
    assert main([*command, "--output-format", "json"]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert time["expected"] is None and time["bound"]["least_step_seconds"] > 0
    assert time["unknown"] == "the time of CPU offload is not modeled"


def test_without_a_device_there_is_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(PLANS / "llama-3.1-8b.plan")]) == 0
    assert "TIME" not in capsys.readouterr().out
