"""Exports pushed by the hub's own client to a server of this machine, and pushes that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from planc.runtime import push as pushing
from tests.hub.push_server import TOKEN, PushServer, serving
from tests.patience import WAIT_SECONDS

FILES: Mapping[str, bytes] = {
    "config.json": b'{"vocab_size": 256}\n',
    "model-00001-of-00002.safetensors": os.urandom(300_000),
    "model-00002-of-00002.safetensors": os.urandom(70_000),
    "model.safetensors.index.json": b"{}\n",
    "tokenizer/chat.jinja": b"{{ x }}",
    "planc_export.json": json.dumps({"step": 60, "plan_hash": "0123456789abcdef", "planc": "0"}).encode(),
}


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """An export's directory."""
    for name, content in FILES.items():
        path = tmp_path / "export" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "export"


def variables(url: str, **others: str) -> dict[str, str]:
    """The environment of a process that pushes. Files are sent by HTTP: the server does not speak Xet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {
        **kept,
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        **others,
    }


def push(export: Path, url: str, *options: str, **others: str) -> subprocess.CompletedProcess[str]:
    """`planc checkpoint push`."""
    command = (sys.executable, "-m", "planc", "checkpoint", "push", str(export), "--to", "org/name", *options)
    environment = variables(url, **others)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS)


def test_the_server_has_every_byte_of_the_export_in_one_commit(export: Path) -> None:
    with serving(PushServer()) as server:
        done = push(export, server.url)
    assert done.returncode == 0, done.stderr
    there = server.branches["main"]
    assert {name: there[name] for name in there if name != ".gitattributes"} == FILES
    assert server.private
    assert server.commits == [("main", "step 60 of plan 0123456789ab, by planc")]
    assert f"pushed {export} to org/name (private), branch main: {server.url}/org/name/commit/" in done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_a_branch_is_created_and_a_public_repository_stays_public(export: Path) -> None:
    with serving(PushServer()) as server:
        done = push(export, server.url, "--public", "--revision", "v1.0")
    assert done.returncode == 0, done.stderr
    assert not server.private
    assert set(server.branches["main"]) == {".gitattributes"}
    assert server.commits[0][0] == "v1.0"


def test_weights_of_an_earlier_push_are_deleted_and_what_others_wrote_is_kept(export: Path) -> None:
    earlier = {"model.safetensors": b"old", "adapter_config.json": b"{}", "README.md": b"by a person"}
    with serving(PushServer(exists=True, branches={"main": earlier})) as server:
        done = push(export, server.url)
    assert done.returncode == 0, done.stderr
    assert server.branches["main"] == {**FILES, "README.md": b"by a person"}


def test_a_second_push_changes_nothing(export: Path) -> None:
    with serving(PushServer()) as server:
        outputs = [push(export, server.url) for _ in range(2)]
    assert [done.returncode for done in outputs] == [0, 0]
    assert {name: server.branches["main"][name] for name in FILES} == FILES


def test_a_busy_server_is_asked_again(export: Path) -> None:
    with serving(PushServer(busy=1)) as server:
        done = push(export, server.url)
    assert done.returncode == 0, done.stderr
    assert len(server.commits) == 1
    assert {name: server.branches["main"][name] for name in FILES} == FILES


@pytest.mark.slow
def test_a_slow_server_is_waited_for(export: Path) -> None:
    with serving(PushServer(delay_seconds=0.7)) as server:
        done = push(export, server.url)
    assert done.returncode == 0, done.stderr
    assert {name: server.branches["main"][name] for name in FILES} == FILES


@pytest.mark.parametrize(
    ("server", "text"),
    [
        (PushServer(token="hf_other"), "the Hub does not accept the token (401)"),
        (PushServer(is_other_type=True), "the token sees no model repository org/name"),
        (
            PushServer(exists=True, private=False, branches={"main": {}}),
            "org/name is public already, and the push is to a private repository",
        ),
    ],
    ids=["wrong token", "another type", "public already"],
)
def test_a_refused_push_is_tried_once_and_reported(export: Path, server: PushServer, text: str) -> None:
    with serving(server):
        done = push(export, server.url)
    assert done.returncode == 2
    assert text in done.stderr
    assert f"cannot push {export} to org/name (private), branch main" in done.stderr
    assert "Traceback" not in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert server.commits == []
    assert sum("repos/create" in request for request in server.requests) == 1


@pytest.mark.slow
def test_a_server_that_is_gone_is_reported(export: Path) -> None:
    with serving(PushServer()) as server:
        pass
    done = push(export, server.url)
    assert done.returncode == 2
    assert "ConnectError" in done.stderr
    assert "Traceback" not in done.stderr


def test_offline_no_request_is_made(export: Path) -> None:
    with serving(PushServer()) as server:
        done = push(export, server.url, HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert "HF_HUB_OFFLINE forbids requests to the Hub; unset it" in done.stderr
    assert server.requests == []


def test_a_link_in_an_export_is_refused(export: Path) -> None:
    (export / "notes.txt").symlink_to("/etc/hostname")
    with serving(PushServer()) as server:
        done = push(export, server.url)
    assert done.returncode == 2
    assert "notes.txt is a symbolic link, not a plain file" in done.stderr
    assert server.requests == []


def test_a_directory_that_is_not_an_export_is_refused(tmp_path: Path) -> None:
    with serving(PushServer()) as server:
        done = push(tmp_path, server.url)
    assert done.returncode == 2
    assert "is not an export of planc: planc_export.json is missing or damaged" in done.stderr
    assert server.requests == []


@pytest.mark.parametrize("end", ["stopped", "limit"])
def test_a_server_that_never_answers_holds_up_no_run(
    export: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    op = pushing.PushExport(when="end", export="hf", repository="org/name", private=True, revision="main")
    monkeypatch.setattr(pushing, "_LEAST_SECONDS", WAIT_SECONDS if end == "stopped" else 3)
    with serving(PushServer(is_mute=True)) as server:
        for name, value in variables(server.url).items():
            monkeypatch.setenv(name, value)
        asked = threading.Event()

        def stops() -> bool:
            if server.requests and end == "stopped":
                asked.set()
            return asked.is_set()

        text = "the push was stopped" if end == "stopped" else "the push takes more than 3 s"
        with pytest.raises(pushing.PushError, match=text):
            pushing.push_apart(export, op, stops=stops)
