"""Cases of files: compressed, with a byte order mark, with blank lines; and tokens that a side file adds."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.data.cases.case import Case, differs, refused, save_base, save_tokenizer, shown, write_plan

TEXT = "hello <think>world</think> the cat sat on the mat and the dog ran over the hill"
LINE = json.dumps({"text": TEXT}) + "\n"


def _ids(tokenizer: Path, text: str) -> list[int]:
    """What transformers makes of a text, cut as `packing = none` cuts it."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    ids: list[int] = loaded(text, add_special_tokens=False)["input_ids"]
    return ids


def _shows(folder: Path, *, source: str, text: str = TEXT) -> str | None:
    """The problem of the source's first row, which should be `text`, all of it trained on."""
    save_base(folder / "base")
    write_plan(folder, source=source, tokenizer="base")
    ids = [*_ids(folder / "base", text), 0]
    return differs(shown(folder), ids=ids, trained=[True] * len(ids))


def _file(
    name: str, content: Callable[[], bytes], *, call: str = "jsonl", text: str = TEXT
) -> Callable[[Path], str | None]:
    def problem(folder: Path) -> str | None:
        (folder / name).write_bytes(content())
        return _shows(folder, source=f'{call}("{name}")', text=text)

    return problem


def _wrong_call(folder: Path) -> str | None:
    save_base(folder / "base")
    (folder / "rows.jsonl").write_bytes(b"PAR1" + bytes(64) + b"PAR1")
    write_plan(folder, source='jsonl("rows.jsonl")', tokenizer="base")
    return refused(folder, "parquet")


def _added(config: Mapping[str, object], **files: object) -> Callable[[Path], str | None]:
    def problem(folder: Path) -> str | None:
        save_base(folder / "base")
        save_tokenizer(folder / "tok", config)
        for name, content in files.items():
            (folder / "tok" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        (folder / "rows.jsonl").write_text(LINE * 8, encoding="utf-8")
        write_plan(folder, source='jsonl("rows.jsonl")')
        ids = [*_ids(folder / "tok", TEXT), 2]
        found = differs(shown(folder), ids=ids, trained=[True] * len(ids))
        if found is None and 344 not in ids:
            return "the case adds no token"
        return found

    return problem


def _token(content: str) -> dict[str, object]:
    plain = dict.fromkeys(("special", "lstrip", "rstrip", "normalized", "single_word"), False)
    return {"content": content, **plain}


CASES = (
    Case("JSON lines in gzip", _file("rows.jsonl.gz", lambda: gzip.compress((LINE * 8).encode()))),
    Case("JSON lines in xz", _file("rows.jsonl.xz", lambda: lzma.compress((LINE * 8).encode()))),
    Case("JSON lines with a byte order mark", _file("rows.jsonl", lambda: (LINE * 8).encode("utf-8-sig"))),
    Case("text with a byte order mark", _file("t.txt", lambda: TEXT.encode("utf-8-sig"), call="text")),
    Case("JSON lines with blank lines", _file("rows.jsonl", lambda: ("\n" + LINE * 8 + "  \n\n").encode())),
    Case("a parquet file as JSON lines", _wrong_call),
    Case(
        "tokens of added_tokens_decoder",
        _added({"added_tokens_decoder": {"344": _token("<think>"), "345": _token("</think>")}}),
    ),
    Case("extra special tokens", _added({"extra_special_tokens": {"think_token": "<think>"}})),
    Case("additional special tokens", _added({"additional_special_tokens": ["<think>", "</think>"]})),
    Case("a new pad token", _added({"pad_token": "<think>"})),
    Case("tokens of added_tokens.json", _added({}, added_tokens={"<think>": 344})),
)
