"""Reference pages are made from the definitions, so that each definition must yield one."""

from __future__ import annotations

import pytest

from planc.plan.blocks import BLOCKS
from planc.plan.keys import keys
from planc.show.reference import page, topics
from planc.tables import format_bytes, printable


@pytest.mark.parametrize("topic", [name for names in topics().values() for name in names])
def test_every_topic_has_a_page(topic: str) -> None:
    text = page(topic)
    assert text is not None
    assert topic in text


@pytest.mark.parametrize("kind", BLOCKS)
def test_block_page_lists_every_key_and_action(kind: str) -> None:
    text = page(kind) or ""
    for spec_field in keys(BLOCKS[kind].record):
        assert f"  {spec_field.name} " in text
        assert spec_field.metadata["doc"] in text
    for action in BLOCKS[kind].actions or ():
        assert f"\n  {action}" in text


def test_block_page_shows_the_blocks_inside_it() -> None:
    lines = (page("checkpoint") or "").splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith('  export "hf" { ... }'))
    assert [line.split()[0] for line in lines[head + 1 : head + 4]] == ["when", "dtype", "merged"]
    assert "default end" in lines[head + 1]


def test_topics_do_not_collide() -> None:
    names = [name for group in topics().values() for name in group]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (150 * 1024, "150 KiB"), (3 * 2**40, "3.00 TiB")],
)
def test_bytes_are_readable(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[31mb\n") == "a\\x1b[31mb\\n"
