"""What an environment says about the launch, and what is refused in it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from planc.runtime.errors import ExitCode, RunError
from planc.runtime.process import Launch, read_launch, require_world_size
from planc.runtime.ranks.rank_claims import require_free_port

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in TORCHRUN.items() if name not in names}


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_an_empty_environment_is_one_process() -> None:
    assert read_launch({}) == Launch()


def test_torchruns_environment_is_read() -> None:
    assert read_launch(TORCHRUN) == Launch(3, 8, 1, "node0", 29500)


def test_torchruns_own_store_is_noticed() -> None:
    assert read_launch({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}).agent_hosts_store


def test_a_world_of_one_needs_no_address() -> None:
    assert read_launch({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}) == Launch()


def test_an_address_alone_is_no_launch() -> None:
    assert read_launch({"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}) == Launch()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (without("LOCAL_RANK"), "RANK and WORLD_SIZE are set, but LOCAL_RANK is not"),
        (without("WORLD_SIZE"), "RANK and LOCAL_RANK are set, but WORLD_SIZE is not"),
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE and LOCAL_RANK are not"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is set, but RANK and LOCAL_RANK are not"),
        (without("MASTER_ADDR"), "MASTER_ADDR is not set"),
        (without("MASTER_PORT"), "MASTER_PORT is not set"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({**TORCHRUN, "MASTER_PORT": "0"}, "MASTER_PORT = 0 is not a port"),
        ({**TORCHRUN, "MASTER_PORT": "65536"}, "MASTER_PORT = 65536 is not a port"),
        ({**TORCHRUN, "MASTER_PORT": "http"}, "MASTER_PORT = 'http' is not a number"),
        ({**TORCHRUN, "RANK": "8"}, "RANK = 8 is outside WORLD_SIZE = 8"),
        ({**TORCHRUN, "WORLD_SIZE": "0", "RANK": "0"}, "RANK = 0 is outside WORLD_SIZE = 0"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK = '-1' is not a number"),
        ({**TORCHRUN, "RANK": ""}, "RANK = '' is not a number"),
        ({**TORCHRUN, "RANK": " 3"}, "RANK = ' 3' is not a number"),
        ({**TORCHRUN, "RANK": "3\n"}, r"RANK = '3\n' is not a number"),
        ({**TORCHRUN, "RANK": "3.0"}, "RANK = '3.0' is not a number"),
        ({**TORCHRUN, "WORLD_SIZE": "1_0"}, "WORLD_SIZE = '1_0' is not a number"),
        ({**TORCHRUN, "WORLD_SIZE": "٨"}, "WORLD_SIZE = '٨' is not a number"),
        ({**TORCHRUN, "LOCAL_RANK": "one"}, "LOCAL_RANK = 'one' is not a number"),
        ({**TORCHRUN, "WORLD_SIZE": "9" * 5000}, "is not a number"),
    ],
)
def test_half_a_launch_and_nonsense_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(RunError) as caught:
        read_launch(environment)
    assert message in caught.value.message
    assert caught.value.code is ExitCode.INPUT
    assert caught.value.help


def test_the_right_number_of_processes_is_accepted() -> None:
    require_world_size(Launch(0, 4), wanted=4, mesh="tp=4", start_with="torchrun")


@pytest.mark.parametrize(("started", "text"), [(1, "1 process was started"), (6, "6 processes were started")])
def test_another_number_of_processes_names_the_command(started: int, text: str) -> None:
    with pytest.raises(RunError) as caught:
        require_world_size(Launch(0, started), wanted=4, mesh="dp_shard=2 tp=2", start_with="torchrun a")
    assert text in caught.value.message
    assert "dp_shard=2 tp=2 needs 4 processes" in caught.value.message
    assert caught.value.help == "start it with: torchrun a"


def test_a_taken_port_is_named_with_a_free_one(taken_port: int) -> None:
    with pytest.raises(RunError) as caught:
        require_free_port(Launch(0, 2, 0, "127.0.0.1", taken_port))
    assert f"MASTER_PORT = {taken_port}" in caught.value.message
    assert caught.value.help is not None
    words = caught.value.help.split()
    free = next(int(word) for word in words if word.isdecimal())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free))


def test_a_free_port_is_left_free(taken_port: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    require_free_port(Launch(0, 2, 0, "127.0.0.1", port))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("rank", "agent_hosts_store"), [(1, False), (0, True)], ids=["other ranks connect", "the agent listens"]
)
def test_only_who_must_listen_needs_the_port(taken_port: int, rank: int, agent_hosts_store: bool) -> None:
    require_free_port(Launch(rank, 2, rank, "127.0.0.1", taken_port, agent_hosts_store))
