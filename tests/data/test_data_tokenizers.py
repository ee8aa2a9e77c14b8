"""Tokenizers: bytes, and a real tokenizer.json trained here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from planc.runtime.data.errors import DataError
from planc.runtime.data.tokenizers import ByteTokenizer, _num_processes, share_cpus
from tests.data.tokenizing import ids_of, load_tokenizer

TEXT = "def encode(self, text):\n    return [self.rank[piece] for piece in text]\n" * 20


def trained(special: Sequence[str] = ("<|endoftext|>",)) -> tokenizers.Tokenizer:
    """A byte-level BPE of some 300 tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def saved(tokenizer: tokenizers.Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@given(st.text())
def test_byte_ids_are_the_utf8_of_the_text(text: str) -> None:
    assert bytes(ids_of(ByteTokenizer(), text)[0]) == text.encode("utf-8")


def test_bytes_end_a_document_with_id_256_of_257() -> None:
    tokenizer = load_tokenizer("bytes", base=Path(), end_of_document=None)
    assert (tokenizer.end_of_document, tokenizer.vocab_size) == (256, 257)


def test_bytes_refuse_a_named_end_of_document() -> None:
    with pytest.raises(DataError, match="has no token"):
        load_tokenizer("bytes", base=Path(), end_of_document="</s>")


def test_a_file_encodes_as_the_library_does_and_decodes_back(tmp_path: Path) -> None:
    reference = trained()
    tokenizer = load_tokenizer("tokenizer.json", base=saved(reference, tmp_path), end_of_document=None)
    (ids,) = ids_of(tokenizer, TEXT)
    assert ids == reference.encode(TEXT).ids
    assert reference.decode(ids) == TEXT
    assert len(ids) < len(TEXT) / 2


def test_documents_that_are_tokenized_together_have_the_ids_of_each_alone(tmp_path: Path) -> None:
    reference = trained()
    tokenizer = load_tokenizer("tokenizer.json", base=saved(reference, tmp_path), end_of_document=None)
    texts = [TEXT[start:] for start in range(0, len(TEXT), 7)] + [""]
    alone = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    assert ids_of(tokenizer, *texts) == alone


def processes_that_tokenize(folder: Path, *, num_sharing: int, text: str = TEXT * 40) -> list[int]:
    """The threads of each process that tokenizes, after a run limited its CPUs in this way."""
    code = """
import os, sys
from pathlib import Path
from planc.runtime.data.tokenizers import share_cpus
from tests.data.tokenizing import ids_of, load_tokenizer
os.sched_getaffinity = lambda process: set(range(6))
share_cpus(int(sys.argv[2]))
tokenizer = load_tokenizer("tokenizer.json", base=Path(sys.argv[1]), end_of_document=None)
ids_of(tokenizer, *[sys.stdin.read()] * 60)
print(*(len(os.listdir(f"/proc/{number}/task")) for number in tokenizer.encoders.process_ids))
tokenizer.close()
"""
    unset = {"RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(num_sharing)],
        env={name: value for name, value in os.environ.items() if name not in unset},
        cwd=Path(__file__).parents[2],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(number) for number in done.stdout.split()]


def test_the_ranks_of_a_machine_share_its_processors(tmp_path: Path) -> None:
    """Each rank starts one process for each CPU of its share, and each process has one thread."""
    folder = saved(trained(), tmp_path)
    assert processes_that_tokenize(folder, num_sharing=2) == [1, 1, 1]
    assert processes_that_tokenize(folder, num_sharing=100) == [1]


def test_little_text_is_left_to_one_process(tmp_path: Path) -> None:
    folder = saved(trained(), tmp_path)
    assert processes_that_tokenize(folder, num_sharing=1, text="some text") == [1]


def test_what_the_environment_says_of_threads_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"RAYON_NUM_THREADS": "7"})
    share_cpus(2)
    assert os.environ["RAYON_NUM_THREADS"] == "7"


def test_the_processes_of_a_machine_with_very_many_cpus_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planc.runtime.data.tokenizers.num_cpus", lambda: 500)
    for environment in ({}, {"RAYON_NUM_THREADS": "0"}):
        monkeypatch.setattr(os, "environ", environment)
        assert _num_processes() == 32
    monkeypatch.setattr(os, "environ", {})
    share_cpus(1)
    assert os.environ["RAYON_NUM_THREADS"] == "32"
    monkeypatch.setattr(os, "environ", {"RAYON_NUM_THREADS": "many"})
    with pytest.raises(DataError, match="RAYON_NUM_THREADS is not a number"):
        _num_processes()


def test_a_file_finds_its_special_end_of_document(tmp_path: Path) -> None:
    reference = trained(("<pad>", "</s>"))
    tokenizer = load_tokenizer("tokenizer.json", base=saved(reference, tmp_path), end_of_document=None)
    assert tokenizer.end_of_document == reference.token_to_id("</s>") == 1


def test_a_plain_token_spelt_like_an_end_of_document_is_not_taken_for_one(tmp_path: Path) -> None:
    reference = trained(("<eos>",))
    reference.add_tokens(["</s>"])
    tokenizer = load_tokenizer("tokenizer.json", base=saved(reference, tmp_path), end_of_document=None)
    assert tokenizer.end_of_document == reference.token_to_id("<eos>")


def test_a_named_end_of_document_is_taken(tmp_path: Path) -> None:
    reference = trained(("<|endoftext|>", "</s>"))
    tokenizer = load_tokenizer("tokenizer.json", base=saved(reference, tmp_path), end_of_document="</s>")
    assert tokenizer.end_of_document == reference.token_to_id("</s>")


@pytest.mark.parametrize(
    ("special", "named", "fault"),
    [
        (("<|endoftext|>", "</s>"), None, r"several ends of document: <\|endoftext\|>, </s>"),
        (("<pad>",), None, "no known end of document"),
        (("</s>",), "<stop>", 'has no token "<stop>"'),
    ],
)
def test_an_unclear_end_of_document_is_an_error(
    tmp_path: Path, special: tuple[str, ...], named: str | None, fault: str
) -> None:
    with pytest.raises(DataError, match=fault) as caught:
        load_tokenizer("tokenizer.json", base=saved(trained(special), tmp_path), end_of_document=named)
    assert "end_of_document" in caught.value.help


def test_saved_truncation_and_padding_do_not_touch_documents(tmp_path: Path) -> None:
    reference = trained()
    whole = reference.encode(TEXT).ids
    reference.enable_truncation(max_length=4)
    reference.enable_padding(length=100_000)
    tokenizer = load_tokenizer("tokenizer.json", base=saved(reference, tmp_path), end_of_document=None)
    assert ids_of(tokenizer, TEXT) == [whole]


def test_the_post_processor_adds_no_tokens(tmp_path: Path) -> None:
    reference = trained(("<s>", "</s>"))
    reference.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer = load_tokenizer("tokenizer.json", base=saved(reference, tmp_path), end_of_document=None)
    assert not {0, 1} & set(ids_of(tokenizer, TEXT)[0])


def test_vocab_size_covers_ids_beyond_the_number_of_tokens(tmp_path: Path) -> None:
    folder = saved(trained(("</s>",)), tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] = {"type": "WordLevel", "vocab": {"</s>": 0, "far": 999}, "unk_token": "</s>"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer("tokenizer.json", base=folder, end_of_document=None).vocab_size == 1000


def test_dropout_is_refused(tmp_path: Path) -> None:
    folder = saved(trained(), tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["dropout"] = 0.5
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="drops merges at random"):
        load_tokenizer("tokenizer.json", base=folder, end_of_document=None)


def test_the_digest_follows_the_file(tmp_path: Path) -> None:
    digests = set()
    for special in (("</s>",), ("<eos>",)):
        folder = saved(trained(special), tmp_path)
        digests.add(load_tokenizer("tokenizer.json", base=folder, end_of_document=None).digest)
    assert len(digests) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"model": {"type": "Exec"}}'])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.json is not a tokenizer\.json"):
        load_tokenizer("broken.json", base=tmp_path, end_of_document=None)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(DataError, match="cannot open gone: No such file"):
        load_tokenizer("gone", base=tmp_path, end_of_document=None)
    with pytest.raises(DataError, match=r"cannot open model/tokenizer\.json: No such file"):
        load_tokenizer("model", base=tmp_path, end_of_document=None)


def test_without_the_library_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(trained(), tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    with pytest.raises(DataError, match="needs the tokenizers library") as caught:
        load_tokenizer("tokenizer.json", base=tmp_path, end_of_document=None)
    assert "pip install" in caught.value.help


def test_the_pipeline_imports_neither_torch_nor_tokenizers() -> None:
    code = "import sys, planc.runtime.data.open, planc.runtime.data.loader as l\n" \
        "print(sorted({'torch', 'tokenizers', 'transformers'} & set(sys.modules)))"  # fmt: skip
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert printed.stdout == "[]\n"
