"""Models of the hub, fetched by the hub's own library from a server of this machine, or found here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from planc.hub.names import HubModel
from planc.runtime import fetch as hub
from planc.runtime.errors import RunError
from planc.runtime.fetch import require_model
from tests.hub.model_repository import NAME, REPOSITORY, REVISION, put_into_cache, serving
from tests.patience import WAIT_SECONDS

MODEL = HubModel(REPOSITORY, REVISION)
TOKEN = "hf_secret"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode()
FILES: Mapping[str, bytes] = {
    "config.json": b"{}",
    "model.safetensors.index.json": INDEX,
    SHARDS[0]: b"first",
    SHARDS[1]: b"second",
    "tokenizer.json": b"{ }",
    "tokenizer.model": b"model",
    "modeling_tiny.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"the same once more",
    "onnx/config.json": b"[]",
    "README.md": b"# tiny",
}


def require_in_process(
    cache: Path, *, url: str, with_weights: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`require_model` in a process of its own, since the library reads its variables as it is imported."""
    program = (
        "import sys\nfrom planc.hub.names import HubModel\nfrom planc.runtime.errors import RunError\n"
        "from planc.runtime.fetch import require_model\ntry:\n"
        f"    print(require_model({MODEL!r}, with_weights={with_weights}, say=print))\n"
        "except RunError as error:\n    sys.exit(f'{error.message} HELP {error.help}')\n"
    )
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))
    }
    environment = {**kept, "HF_ENDPOINT": url, "HF_HUB_CACHE": str(cache), "HF_TOKEN": TOKEN, **variables}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS
    )


def test_weights_json_and_tokenizer_are_fetched_and_nothing_else(tmp_path: Path) -> None:
    with serving(FILES) as server:
        done = require_in_process(tmp_path, url=server.url)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    wanted = {"config.json", "model.safetensors.index.json", *SHARDS, "tokenizer.json", "tokenizer.model"}
    assert {path.name for path in folder.rglob("*")} == wanted
    assert set(server.sent) == wanted
    assert {token for _, path, token in server.requests if REPOSITORY in path} == {f"Bearer {TOKEN}"}
    assert TOKEN not in done.stdout + done.stderr
    # What is here is not asked for again: the server is gone.
    again = require_in_process(tmp_path, url=server.url)
    assert (again.returncode, again.stdout) == (0, f"{folder}\n")


def test_weights_are_fetched_only_where_they_are_needed(tmp_path: Path) -> None:
    with serving(FILES) as server:
        done = require_in_process(tmp_path, url=server.url, with_weights=False)
    assert done.returncode == 0, done.stderr
    assert [name for name in server.sent if name.endswith(".safetensors")] == []


def test_quantized_weights_are_refused_before_they_are_fetched(tmp_path: Path) -> None:
    with serving({**FILES, "config.json": b'{"quantization_config": {"bits": 4}}'}) as server:
        done = require_in_process(tmp_path, url=server.url)
    assert done.returncode == 1
    assert "are quantized" in done.stderr
    assert [name for name in server.sent if name.endswith(".safetensors")] == []


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        ({"X-Error-Code": "GatedRepo"}, "is a gated model"),
        ({"X-Error-Code": "RepoNotFound"}, "it does not exist, or it is private"),
        ({"X-Error-Code": "RevisionNotFound"}, f"has no commit {REVISION}"),
    ],
)
def test_what_the_hub_refuses_is_said_in_words(refusal: Mapping[str, str], text: str, tmp_path: Path) -> None:
    with serving(FILES, refusal=refusal) as server:
        done = require_in_process(tmp_path, url=server.url)
    assert done.returncode == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert TOKEN not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_said_in_words(tmp_path: Path) -> None:
    done = require_in_process(tmp_path, url="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "check the connection" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_offline_a_whole_model_is_taken_as_it_is(cache: Path) -> None:
    folder = put_into_cache(cache, {name: FILES[name] for name in FILES if "/" not in name})
    assert require_model(MODEL, with_weights=True, say=pytest.fail) == folder


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ((), "config.json is missing"),
        (("config.json",), "neither model.safetensors nor"),
        (("config.json", "model.safetensors.index.json", SHARDS[0]), f"names {SHARDS[1]}, which does not"),
    ],
)
def test_offline_what_is_missing_is_named(names: tuple[str, ...], missing: str, cache: Path) -> None:
    put_into_cache(cache, {name: FILES[name] for name in names})
    with pytest.raises(RunError) as caught:
        require_model(MODEL, with_weights=True, say=pytest.fail)
    assert missing in caught.value.message
    assert "HF_HUB_OFFLINE forbids" in caught.value.message


def test_one_process_fetches_while_the_others_wait(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    waits, said, found = threading.Event(), [], []

    def say(text: str) -> None:
        said.append(text)
        waits.set()

    def follow() -> None:
        found.append(require_model(MODEL, with_weights=False, say=say))

    with hub._only_one(MODEL, say=pytest.fail):
        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        assert waits.wait(timeout=WAIT_SECONDS)
        folder = put_into_cache(cache, {"config.json": b"{}"})
    follower.join(timeout=WAIT_SECONDS)
    assert found == [folder]
    assert said == [f"waiting for another process to download {MODEL.short}"]


def test_inventory_fetches_the_config_and_shows_it(tmp_path: Path) -> None:
    tiny = Path(__file__).parents[2] / "plans" / "models" / "tiny-llama"
    files = {**FILES, "config.json": (tiny / "config.json").read_bytes()}
    with serving(files) as server:
        environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HUB_CACHE": str(tmp_path)}
        environment.pop("HF_HUB_OFFLINE", None)
        done = subprocess.run(
            [sys.executable, "-m", "planc", "inventory", NAME],
            env={**environment, "PLANC_CACHE": str(tmp_path / "planc")},
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
    assert done.returncode == 0, done.stderr
    assert "LlamaForCausalLM" in done.stdout
    assert [name for name in server.sent if name.endswith(".safetensors")] == []
