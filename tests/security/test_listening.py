"""Ranks on one machine listen on its loopback interface only: what else reached them could join in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planc.runtime.process import Launch
from planc.runtime.torch.parallel.loopback import keep_gloo_inside, listener
from tests.launch.processes import free_port
from tests.parity.cases import Case, make_workspace, plan_text
from tests.security.sockets import listeners_of

RUN = ("-m", "planc.run")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_workspace(tmp_path_factory.mktemp("listening") / "workspace")
    path = folder / "two.plan"
    path.write_text(plan_text(Case("DP2", "", {"dp_shard": 2})), encoding="utf-8")
    return path


@pytest.mark.slow
def test_ranks_of_torchrun_listen_on_loopback_only(plan: Path, tmp_path: Path) -> None:
    command = (sys.executable, *TORCHRUN, *RUN, str(plan), "--run-dir", str(tmp_path / "run"))
    codes, found = listeners_of([command], environments=[{}])
    assert codes == [0]
    ranks = {one for one in found if "torch.distributed.run" not in one.program}
    assert ranks
    assert all(one.is_loopback for one in ranks), ranks
    # torchrun's agent is not planc's: its store is open to whoever reaches the machine.
    assert {one.is_loopback for one in found - ranks} == {False}


@pytest.mark.slow
def test_ranks_without_torchrun_meet_on_loopback(plan: Path, tmp_path: Path) -> None:
    command = (sys.executable, *RUN, str(plan), "--run-dir", str(tmp_path / "run"))
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environments = [{**world, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    codes, found = listeners_of([command] * 2, environments=environments)
    assert codes == [0, 0]
    assert found
    assert all(one.is_loopback for one in found), found


ONE_MACHINE = Launch(0, 2, 0, "127.0.0.1", 29500, False, 2)
TWO_MACHINES = Launch(0, 2, 0, "node0", 29500, False, 1)


def test_an_interface_that_is_chosen_is_kept() -> None:
    environment = {"GLOO_SOCKET_IFNAME": "eth0"}
    keep_gloo_inside(environment, launch=ONE_MACHINE)
    assert environment == {"GLOO_SOCKET_IFNAME": "eth0"}


def test_ranks_of_several_machines_are_left_to_find_each_other() -> None:
    environment: dict[str, str] = {}
    keep_gloo_inside(environment, launch=TWO_MACHINES)
    assert environment == {}
    assert listener(TWO_MACHINES) is None


def test_ranks_of_one_machine_stay_on_it() -> None:
    environment: dict[str, str] = {}
    keep_gloo_inside(environment, launch=ONE_MACHINE)
    assert environment in ({"GLOO_SOCKET_IFNAME": "lo"}, {"GLOO_SOCKET_IFNAME": "lo0"})
