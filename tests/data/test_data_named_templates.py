"""Several templates of one tokenizer: each row has the one that transformers would use."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from planc.data_sources.kinds import ChatSource
from planc.runtime.data.documents import source_documents
from planc.runtime.data.errors import DataError
from planc.runtime.data.packing import encode
from planc.runtime.data.prepared.wanted import Wanted, want
from planc.runtime.data.spec import DataSpec
from planc.runtime.ranks.reads import Reads
from tests.data.conversing import TALK, TEMPLATE, save_tokenizer

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
WITH_TOOLS = "{{ '<|im_start|>tools\n' }}{{ tools | tojson }}{{ '<|im_end|>\n' }}" + TEMPLATE
NAMED = {
    "default": TEMPLATE,
    "tool_use": WITH_TOOLS,
    "rag": TEMPLATE.replace("'\n' }}{% endif", "'\n\n' }}{% endif"),
}
ROWS: list[dict[str, Any]] = [
    {"messages": TALK},
    {"messages": TALK, "tools": TOOLS},
    {"messages": TALK[1:3], "tools": []},
    {"messages": TALK[1:], "tools": None},
]


def folder_of(base: Path, *, templates: dict[str, str], in_settings: bool) -> Path:
    """A tokenizer's folder as transformers saves it."""
    plain = save_tokenizer(base / "plain", template=None)
    tokenizer = AutoTokenizer.from_pretrained(plain, local_files_only=True)
    tokenizer.chat_template = templates
    tokenizer.save_pretrained(base / "tokenizer", save_jinja_files=not in_settings)
    is_listed = "chat_template" in json.loads((base / "tokenizer" / "tokenizer_config.json").read_text())
    assert is_listed == in_settings
    return base / "tokenizer"


def wanted(base: Path, *, rows: list[dict[str, Any]], template: str = "auto") -> Wanted:
    (base / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return want(DataSpec(ChatSource(("rows.jsonl",), template=template), "tokenizer", 64, 0), base=base)


def made(base: Path, **settings: Any) -> list[tuple[list[int], list[int]]]:
    """The ids and the mask of each row, without the end of the document."""
    one = wanted(base, **settings)
    with contextlib.closing(one.tokenizer.load()) as tokenizer:
        found = [*encode(source_documents(one.spec.source, base=base), tokenizer=tokenizer)]
    return [(row.tokens[:-1].tolist(), row.is_target[:-1].astype(int).tolist()) for row in found]  # type: ignore[index]


def expected(folder: Path, **settings: Any) -> list[tuple[list[int], list[int]]]:
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    rendered = [
        tokenizer.apply_chat_template(
            row["messages"],
            tools=row.get("tools"),
            return_dict=True,
            return_assistant_tokens_mask=True,
            **settings,
        )
        for row in ROWS
    ]
    return [(one["input_ids"], one["assistant_masks"]) for one in rendered]


@pytest.mark.parametrize("in_settings", [True, False])
def test_ids_and_masks_are_those_of_transformers(tmp_path: Path, in_settings: bool) -> None:
    folder = folder_of(tmp_path, templates=NAMED, in_settings=in_settings)
    found = made(tmp_path, rows=ROWS)
    assert found == expected(folder)
    assert len({tuple(ids) for ids, _ in found}) == 4
    for name in NAMED:
        assert made(tmp_path, rows=ROWS, template=name) == expected(folder, chat_template=name)


def test_without_a_template_for_tools_all_rows_have_the_default(tmp_path: Path) -> None:
    templates = {"default": TEMPLATE, "rag": WITH_TOOLS}
    folder = folder_of(tmp_path, templates=templates, in_settings=False)
    assert made(tmp_path, rows=ROWS) == expected(folder)


def test_files_replace_the_settings(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, templates=NAMED, in_settings=True)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "default.jinja").write_text(WITH_TOOLS)
    assert made(tmp_path, rows=ROWS) == expected(folder)


def test_a_row_without_a_template_is_named(tmp_path: Path) -> None:
    folder_of(tmp_path, templates={"tool_use": WITH_TOOLS}, in_settings=True)
    assert len(made(tmp_path, rows=ROWS[1:3])) == 2
    with pytest.raises(DataError, match=r"rows\.jsonl:1 is rejected by the chat template: there is none"):
        made(tmp_path, rows=ROWS)


def test_a_name_that_is_nothing_is_refused_with_the_names(tmp_path: Path) -> None:
    folder_of(tmp_path, templates={"rag": TEMPLATE, "other": TEMPLATE}, in_settings=False)
    with pytest.raises(DataError, match="no chat template `tool`, and there is no such file") as caught:
        made(tmp_path, rows=ROWS, template="tool")
    assert caught.value.help == "its templates are other, rag"
    with pytest.raises(DataError, match="has no chat template `default`"):
        made(tmp_path, rows=ROWS)


def test_a_name_that_is_a_file_too_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, templates=NAMED, in_settings=False)
    (tmp_path / "rag").write_text(TEMPLATE)
    with pytest.raises(DataError, match="`rag` is a template of the tokenizer, and a file"):
        made(tmp_path, rows=ROWS, template="rag")
    assert made(tmp_path, rows=ROWS, template="./rag") == made(tmp_path, rows=ROWS, template="default")


@pytest.mark.parametrize(
    "setting", [3, [TEMPLATE], [{"name": "default"}], [{"name": "a", "template": "x"}] * 2]
)
def test_a_setting_that_is_no_list_of_templates_is_refused(tmp_path: Path, setting: object) -> None:
    folder = save_tokenizer(tmp_path / "tokenizer", template=None)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": setting}))
    with pytest.raises(DataError, match=r"tokenizer/tokenizer_config\.json: `chat_template` is neither"):
        wanted(tmp_path, rows=ROWS)


def test_a_changed_template_is_prepared_again_and_ranks_compare_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, templates=NAMED, in_settings=False)
    first = wanted(tmp_path, rows=ROWS)
    assert wanted(tmp_path, rows=ROWS).key == first.key
    more = folder / "additional_chat_templates"
    (more / "rag.jinja").write_text("unused")
    assert wanted(tmp_path, rows=ROWS).key == first.key
    (more / "tool_use.jinja").write_text(TEMPLATE)
    assert wanted(tmp_path, rows=ROWS).key != first.key
    reads = Reads()
    want(first.spec, base=tmp_path, reads=reads)
    assert "tokenizer/additional_chat_templates/tool_use.jinja" in str(reads.entries)
