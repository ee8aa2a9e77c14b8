"""Machines with devices, as data: what a plan gets to hear about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from planc.doctor.devices import device_checks, num_here
from planc.doctor.examination import Report
from planc.doctor.examine import Found, examine
from planc.doctor.machine import Device, Machine, Storage, TorchFacts
from planc.doctor.needs import MeantFor, Needs
from planc.doctor.variables import Surroundings, variable_checks
from planc.runtime import compilers
from planc.source import SourceFile
from planc.vocab import DType
from tests.doctor.environments import present_versions

PLAN = SourceFile("x.plan", "mesh {}")
H200 = Device("NVIDIA H200", 150_000_000_000, (9, 0))
V100 = Device("Tesla V100-SXM2-16GB", 17_000_000_000, (7, 0))
SLICE = Device("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5_000_000_000, (8, 0))
WITH_CUDA = TorchFacts("2.13.0", "12.8", 91002, "2.27.3", ("gloo", "nccl"), (H200,) * 8)
WITHOUT = TorchFacts("2.13.0+cpu", backends=("gloo",))
MACHINE = Machine("Linux 6.8", WITH_CUDA, "570.86", 64, 65536, 2**34, ("lo", "eth0"), 1.8e9)
NEEDS = Needs(16, "auto", (DType.BFLOAT16,), True, PLAN.whole(), PLAN.whole())


def report(
    torch: TorchFacts | None = WITH_CUDA,
    *,
    needs: Needs | None = NEEDS,
    machine: Machine = MACHINE,
    environment: Mapping[str, str] | None = None,
) -> Report:
    found = Found(environment or {}, present_versions(), replace(machine, torch=torch))
    return examine(found, needs=needs)


def codes(found: Report) -> list[str]:
    return [one.code.code for one in found.diagnostics]


def test_a_machine_that_has_what_the_plan_wants_is_fine() -> None:
    found = report()
    assert codes(found) == []
    devices = next(check for check in found.checks if check.observed.name == "CUDA devices")
    assert devices.observed.text == "8 x NVIDIA H200 140 GiB"
    assert devices.required == "8 for 16 ranks"


@pytest.mark.parametrize(("backend", "expected"), [("nccl", ["P920"]), ("gloo", []), ("auto", [])])
def test_nccl_without_devices_is_refused_and_nothing_put_in_its_place(
    backend: str, expected: list[str]
) -> None:
    found = report(WITHOUT, needs=replace(NEEDS, backend=backend))
    assert codes(found) == expected
    if expected:
        assert found.diagnostics[0].primary.text == "this PyTorch has no nccl"


def test_nccl_outside_linux_is_refused_by_name() -> None:
    found = report(WITHOUT, needs=replace(NEEDS, backend="nccl"), machine=replace(MACHINE, os="Darwin 25"))
    assert found.diagnostics[0].primary.text == "nccl runs only on Linux, and this is Darwin 25"


def test_a_pytorch_without_gloo_is_refused() -> None:
    found = report(replace(WITH_CUDA, backends=("nccl",)))
    assert [one.primary.text for one in found.diagnostics] == ["this PyTorch has no gloo"]


def test_more_ranks_than_devices_on_a_machine_are_refused() -> None:
    found = report(replace(WITH_CUDA, devices=(H200,) * 2), needs=replace(NEEDS, devices_per_node=8))
    assert codes(found) == ["P919"]
    assert found.diagnostics[0].primary.text == "8 ranks on this machine, which has 2 devices"


def test_torchruns_count_of_local_ranks_comes_before_the_plans() -> None:
    needs = replace(NEEDS, devices_per_node=8)
    assert num_here(WITH_CUDA, {"LOCAL_WORLD_SIZE": "4"}, needs) == 4
    assert num_here(WITH_CUDA, {}, needs) == 8
    assert num_here(WITH_CUDA, {}, replace(needs, devices_per_node=None, world_size=2)) == 2
    assert num_here(WITHOUT, {}, replace(needs, devices_per_node=None)) == 16


def test_visible_devices_that_are_not_there_are_an_error() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,9"}
    found = report(replace(WITH_CUDA, devices=(H200,) * 2), needs=None, environment=environment)
    assert codes(found) == ["P919"]
    assert (
        found.diagnostics[0].primary.text == "CUDA_VISIBLE_DEVICES=0,1,9 names 3 devices, but PyTorch sees 2"
    )


def test_a_driver_that_pytorch_cannot_use_is_an_error() -> None:
    torch = replace(WITH_CUDA, devices=(), cuda_problem="the NVIDIA driver on your system is too old")
    assert codes(report(torch, needs=None)) == ["P919"]


def test_slices_and_unlike_devices_are_warned_about() -> None:
    assert codes(report(replace(WITH_CUDA, devices=(SLICE,) * 7), needs=None)) == ["P922"]
    assert codes(report(replace(WITH_CUDA, devices=(H200, V100)), needs=None)) == ["P922"]


@pytest.mark.parametrize(
    ("dtypes", "expected"), [((DType.BFLOAT16,), ["P921"]), ((DType.FLOAT32, DType.FLOAT16), [])]
)
def test_bfloat16_before_ampere_is_emulated(dtypes: tuple[DType, ...], expected: list[str]) -> None:
    torch = replace(WITH_CUDA, devices=(V100,) * 8)
    assert codes(report(torch, needs=replace(NEEDS, dtypes=dtypes))) == expected


@pytest.mark.parametrize(
    ("meant_bytes", "expected"), [(10**12, ["P929"]), (151_000_000_000, []), (10**9, [])]
)
def test_devices_smaller_than_those_the_plan_is_meant_for_are_warned_about(
    meant_bytes: int, expected: list[str]
) -> None:
    meant = MeantFor("b200", meant_bytes, PLAN.whole())
    assert codes(report(needs=replace(NEEDS, device=meant))) == expected


def test_a_pytorch_that_cannot_be_imported_shows_its_last_line() -> None:
    found = report(TorchFacts(problem="ImportError: libcudart.so.12: no such file"), needs=None)
    assert codes(found) == ["P913"]
    assert "libcudart" in found.sources["import torch"].text


def test_without_pytorch_devices_are_said_to_be_unknown() -> None:
    texts = [check.observed.text for check in device_checks(replace(MACHINE, torch=None), {}, needs=None)]
    assert texts[-1] == "unknown, because PyTorch is not installed"


def test_a_docker_default_of_shared_memory_is_too_little_for_nccl_alone() -> None:
    machine = replace(MACHINE, shared_memory_bytes=64 * 2**20)
    assert codes(report(machine=machine)) == ["P926"]
    assert codes(report(WITHOUT, machine=machine)) == []


def test_connections_to_many_ranks_need_open_files() -> None:
    machine = replace(MACHINE, num_open_files=1024)
    assert codes(report(machine=machine)) == []
    assert codes(report(machine=machine, needs=replace(NEEDS, world_size=4096))) == ["P926"]
    unlimited = replace(MACHINE, num_open_files=-1)
    assert codes(report(machine=unlimited, needs=replace(NEEDS, world_size=4096))) == []


def test_a_plan_that_compiles_needs_a_compiler_of_its_device() -> None:
    compiling = replace(NEEDS, compiler=PLAN.whole())
    bare = {"PATH": "/nowhere"}
    assert codes(report(needs=compiling, environment=bare)) == ["P930"]
    assert codes(report(needs=NEEDS, environment=bare)) == []
    found = report(WITHOUT, needs=replace(compiling, backend="gloo"), environment=bare)
    assert "a C++ compiler" in found.diagnostics[0].primary.text


def test_inductor_compiles_for_cpus_only_where_torchs_path_has_no_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compilers, "find_compiler", lambda *_: "/usr/bin/g++")
    monkeypatch.setattr(compilers, "_torch_path", lambda: "/opt/my models/torch/__init__.py")
    compiling = replace(NEEDS, compiler=PLAN.whole())
    assert codes(report(needs=compiling)) == []
    found = report(WITHOUT, needs=replace(compiling, backend="gloo"))
    assert "/opt/my models/torch/__init__.py, a path with a space" in found.diagnostics[0].primary.text


def test_a_clock_before_planc_was_made_is_wrong() -> None:
    assert codes(report(machine=replace(MACHINE, now=0.0))) == ["P927"]


def variable_codes(name: str, value: str, *, has_devices: bool = True) -> list[str]:
    around = Surroundings(("lo", "eth0"), 64, has_devices, num_local_ranks=8, has_fsdp=True)
    (check,) = variable_checks({name: value}, around)
    return [problem.code.code for problem in check.problems]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NCCL_P2P_DISABLE", "1", ["P917"]),
        ("NCCL_P2P_DISABLE", "0", []),
        ("NCCL_DEBUG", "TRACE", ["P917"]),
        ("NCCL_DEBUG", "WARN", []),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", ["P917"]),
        ("NCCL_ASYNC_ERROR_HANDLING", "1", ["P916"]),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1", ["P917"]),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32", []),
        ("NCCL_SOCKET_IFNAME", "eth", []),
        ("NCCL_SOCKET_IFNAME", "=eth", ["P915"]),
        ("NCCL_SOCKET_IFNAME", "^lo", []),
        ("NCCL_SOCKET_IFNAME", "^lo,eth", ["P915"]),
        ("NCCL_SOCKET_IFNAME", "ib0,ib1", ["P915"]),
        ("GLOO_SOCKET_IFNAME", "eth0,lo", []),
        ("GLOO_SOCKET_IFNAME", "eth", ["P915"]),
        ("OMP_NUM_THREADS", "8", []),
        ("OMP_NUM_THREADS", "9", ["P917"]),
        ("OMP_NUM_THREADS", "many", ["P915"]),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", []),
        ("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:[256:1,512:2,>:4], backend:native", []),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb=512", ["P915"]),
        ("PYTORCH_CUDA_ALLOC_CONF", "", []),
    ],
)
def test_variables_of_runs_on_devices(name: str, value: str, expected: list[str]) -> None:
    assert variable_codes(name, value) == expected


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS"])
def test_variables_of_devices_do_no_harm_without_any(name: str) -> None:
    assert variable_codes(name, "1", has_devices=False) == []


def test_a_run_folder_on_a_machines_own_disk_is_warned_about(tmp_path: Path) -> None:
    storage = Storage(tmp_path, tmp_path, 2**40, "ext4")
    two = Found({}, present_versions(), MACHINE, storage)
    assert codes(examine(two, needs=NEEDS)) == ["P925"]
    assert codes(examine(two, needs=replace(NEEDS, world_size=8))) == []
    shared = replace(two, storage=replace(storage, file_system="lustre"))
    assert codes(examine(shared, needs=NEEDS)) == []
