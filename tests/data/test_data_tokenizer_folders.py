"""Tokenizers' directories: ids, special ids and decoding are those of `AutoTokenizer`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from planc.runtime.data.errors import DataError
from planc.runtime.data.tokenizers import FileTokenizer, read_tokenizer
from tests.data.test_data_tokenizers import saved, trained
from tests.data.tokenizing import ids_of, load_tokenizer
from tests.patience import PATIENCE_SECONDS

TEXTS = (
    "def <think>x</think>",
    " <|tool|>\n<pad> </s><|endoftext|>",
    "",
    "<new>é ☕\u200b<think >",
    "<s>a</s>",
)


def added(content: str, **settings: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("special", "lstrip", "rstrip", "normalized", "single_word"), False)
    return {"content": content, **flags, **settings}


SIDE_FILES: dict[str, dict[str, Any]] = {
    "added_tokens_decoder": {
        "tokenizer_config.json": {
            "eos_token": "<|endoftext|>",
            "added_tokens_decoder": {"344": added("<think>"), "345": added("</think>", rstrip=True)},
        }
    },
    "extra_special_tokens": {"tokenizer_config.json": {"extra_special_tokens": ["<|tool|>"]}},
    "additional_special_tokens": {"tokenizer_config.json": {"additional_special_tokens": ["<|tool|>"]}},
    "named extra tokens": {"tokenizer_config.json": {"extra_special_tokens": {"image_token": "<|tool|>"}}},
    "a new pad token": {"tokenizer_config.json": {"pad_token": "<pad>"}},
    "added_tokens.json": {"added_tokens.json": {"<new>": 300, "<think>": 301}},
    "special_tokens_map.json": {"special_tokens_map.json": {"pad_token": "<pad>", "eos_token": "</s>"}},
    "split_special_tokens": {"tokenizer_config.json": {"split_special_tokens": True}},
    "a class that builds its own": {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"}},
    "a model's type": {"config.json": {"model_type": "gpt2"}},
    "add_prefix_space": {
        "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    },
    "nothing": {},
}


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("case", SIDE_FILES)
def test_ids_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    folder = saved(trained(("<|endoftext|>",)), tmp_path)
    write(folder, SIDE_FILES[case])
    reference = AutoTokenizer.from_pretrained(folder)
    with contextlib.closing(load_tokenizer(".", base=folder, end_of_document="<|endoftext|>")) as tokenizer:
        assert isinstance(tokenizer, FileTokenizer)
        expected = [reference(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
        assert ids_of(tokenizer, *TEXTS) == expected
        assert tokenizer.decode(expected) == [reference.decode(ids) for ids in expected]
        assert tokenizer.vocab_size == max(reference.get_vocab().values()) + 1
        assert tokenizer.special_ids >= {*reference.all_special_ids}


def test_a_file_that_changes_ids_changes_the_digest_and_no_other_does(tmp_path: Path) -> None:
    folder = saved(trained(), tmp_path)

    def digest() -> str:
        return read_tokenizer("tokenizer.json", base=folder, end_of_document=None).digest

    digests = [digest()]
    for files in SIDE_FILES.values():
        write(folder, files)
        digests.append(digest())
    # The last case writes nothing.
    assert len({*digests}) == len(digests) - 1
    config = {"model_type": "gpt2", "vocab_size": 7, "rope_theta": 1.0}
    write(folder, {"config.json": config, "generation_config.json": {}, "other.json": {}})
    (folder / "chat_template.jinja").write_text("x", encoding="utf-8")
    assert digest() == digests[-1]
    write(folder, {"config.json": {**config, "model_type": "llama"}})
    assert digest() != digests[-1]


def test_code_of_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = saved(trained(), tmp_path)
    mark = folder / "ran"
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own: pass\n", encoding="utf-8")
    write(folder, {"tokenizer_config.json": {"auto_map": {"AutoTokenizer": [None, "own.Own"]}}})
    with pytest.raises(DataError, match="is not a tokenizer that transformers loads") as caught:
        load_tokenizer(".", base=folder, end_of_document=None)
    assert "remote code" in caught.value.help
    assert not mark.exists()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("open('/etc/hostname')", "it reads /etc/hostname"),
        ("import pickle; pickle.loads(b'cbuiltins\\nprint\\n.')", "it unpickles objects"),
        ("import socket; socket.socket().connect(('127.0.0.1', 9))", "it reaches for the network"),
        ("import os; os.system('true')", "it starts a process"),
    ],
)
def test_what_loading_must_not_do_is_refused(statement: str, reason: str, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom planc.runtime.data.encoding.isolation import only_reading\n"
        f"folder = pathlib.Path(sys.argv[1])\nwith only_reading(folder):\n"
        f"    (folder / 'own').read_bytes()\n    {statement}\n"
    )
    (tmp_path / "own").touch()
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=root, check=False
    )
    assert done.stderr.splitlines()[-1].startswith(f"PermissionError: {reason}")


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_run_that_is_killed_while_it_loads_a_tokenizer_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    folder = saved(trained(("<|endoftext|>",)), tmp_path / "own")
    write(folder, SIDE_FILES["a class that builds its own"])
    (tmp_path / "temporary").mkdir()
    code = (
        "import sys, pathlib\nfrom planc.runtime.data.tokenizers import read_tokenizer\n"
        "files = read_tokenizer('.', base=pathlib.Path(sys.argv[1]), end_of_document='<|endoftext|>')\n"
        "files.load()\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    )
    ends = time.monotonic() + PATIENCE_SECONDS
    while not list((tmp_path / "temporary").glob("*/tokenizer.json")):
        assert run.poll() is None and time.monotonic() < ends, "it never loads the tokenizer"
        time.sleep(0.001)
    run.kill()
    run.wait()
    while list((tmp_path / "temporary").iterdir()):
        assert time.monotonic() < ends, "the files stay"
        time.sleep(0.05)
