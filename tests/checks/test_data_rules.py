"""Rules of the data block that look at files beside the plan, or at several settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from planc.api import check_source
from planc.checks.data.tokenizer_file import chat_templates, num_token_ids
from planc.source import SourceFile
from tests.data.conversing import TEMPLATE, save_tokenizer
from tests.plans import FULL, PLANS

CONTEXT = """\
mesh {
  cp = 2
  backend = nccl
}
context_parallel on cp {
  rotate = ROTATE
  ["input_ids", "labels", "position_ids"] -> Shard(1)
}
model {
  hf = "models/tiny-llama"
  dtype = bfloat16
}
fsdp on cp {
  "model.layers.*" -> unit
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 4
  packing = isolate
}
optimizer {
  kind = adamw(lr = 1e-1)
}
train {
  steps = 10
}
"""


def codes(text: str, *, base: Path) -> list[str]:
    return [one.code.code for one in check_source(SourceFile("x.plan", text), base=base).diagnostics]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "models").symlink_to(PLANS / "models")
    return tmp_path


def chatting(tokenizer: str) -> str:
    assert "source = python_stdlib()" in FULL and "tokenizer = bytes" in FULL
    text = FULL.replace("source = python_stdlib()", 'source = chat("elsewhere/talk.jsonl")')
    return text.replace("tokenizer = bytes", f"tokenizer = {tokenizer}")


@pytest.mark.parametrize("in_config", [False, True])
def test_a_template_in_the_tokenizers_folder_is_found(base: Path, in_config: bool) -> None:
    save_tokenizer(base / "tokenizer", in_config=in_config)
    assert chat_templates(base / "tokenizer") == {"default"}
    assert chat_templates(base / "tokenizer" / "tokenizer.json") == {"default"}
    assert "P731" not in codes(chatting('file("tokenizer")'), base=base)


def test_a_folder_without_a_template_is_found(base: Path) -> None:
    save_tokenizer(base / "tokenizer", template=None)
    assert "P731" in codes(chatting('file("tokenizer")'), base=base)


@pytest.mark.parametrize(
    ("template", "found"),
    [("", ["P731"]), ("rag", []), ("./rag", ["P738"]), ("other", ["P738"]), ("tokenizer/x.jinja", ["P738"])],
)
def test_a_template_of_the_tokenizer_is_found_by_its_name(
    base: Path, template: str, found: list[str]
) -> None:
    folder = save_tokenizer(base / "tokenizer", template=None)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text(TEMPLATE)
    text = chatting('file("tokenizer")')
    written = f'.jsonl", template = "{template}")' if template else '.jsonl")'
    assert text.count('.jsonl")') == 1
    assert chat_templates(folder) == {"rag"}
    seen = codes(text.replace('.jsonl")', written), base=base)
    assert [one for one in seen if one in ("P731", "P738")] == found


def test_bytes_have_no_template(base: Path) -> None:
    assert codes(chatting("bytes"), base=base) == ["P731"]


def test_texts_need_no_template_and_rows_a_source_of_rows(base: Path) -> None:
    [finding] = check_source(SourceFile("x.plan", chatting("bytes")), base=base).diagnostics
    assert "write `template = none` in `chat(...)`" in (finding.help or "")
    text = FULL.replace("source = python_stdlib()", 'source = transformed(text("a.txt"), by = clean)')
    found = check_source(SourceFile("x.plan", text), base=base).diagnostics
    assert "`text` is not a source of rows" in str(found)


def test_nothing_is_said_of_a_tokenizer_that_is_not_here(base: Path) -> None:
    assert chat_templates(base / "gone") is None
    assert codes(chatting('file("gone/tokenizer.json")'), base=base) == []


def test_a_damaged_config_says_nothing_of_templates(base: Path) -> None:
    folder = save_tokenizer(base / "tokenizer", template=TEMPLATE, in_config=True)
    (folder / "tokenizer_config.json").write_text("{")
    assert chat_templates(folder) is None


def test_ids_of_a_folder_are_those_of_its_file(base: Path) -> None:
    folder = save_tokenizer(base / "tokenizer")
    assert num_token_ids(folder) == num_token_ids(folder / "tokenizer.json") == 310
    assert codes(FULL.replace("tokenizer = bytes", 'tokenizer = file("tokenizer")'), base=base) == ["P705"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("rotate", ["ring", "allgather", "ulysses"])
def test_documents_stay_apart_on_cuda_in_every_kind_and_dtype(rotate: str, dtype: str) -> None:
    text = CONTEXT.replace("ROTATE", rotate).replace("dtype = bfloat16", f"dtype = {dtype}")
    assert codes(text, base=PLANS) == []
