"""Text sources: what they read, in which order, and what they refuse."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from planc.data_sources.kinds import JsonLinesSource, PythonStdlibSource, TextSource
from planc.runtime.data.errors import DataError
from planc.runtime.data.files import matched_files
from planc.runtime.data.sources import PlainSource, documents


def texts(source: PlainSource, *, base: Path) -> list[str]:
    return [document.text for document in documents(source, base=base)]


def write_lines(path: Path, *lines: str) -> None:
    path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8"))


def test_files_come_pattern_by_pattern_sorted_and_once_each(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "z.md", "deep/c.txt", "deep/er/d.txt"):
        (tmp_path / name).write_text(name)
    patterns = ("*.md", "**/*.txt", "a.txt")
    assert texts(TextSource(patterns), base=tmp_path) == [
        "z.md", "a.txt", "b.txt", "deep/c.txt", "deep/er/d.txt"
    ]  # fmt: skip


def test_an_absolute_pattern_reads_outside_the_base(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("outside")
    (tmp_path / "base").mkdir()
    assert texts(TextSource((f"{tmp_path}/data/*.txt",)), base=tmp_path / "base") == ["outside"]
    assert texts(TextSource(("../data/*.txt",)), base=tmp_path / "base") == ["outside"]


def test_line_ends_and_wide_characters_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("é\r\n\U0001f600\r".encode())
    (document,) = documents(TextSource(("a.txt",)), base=tmp_path)
    assert (document.text, document.num_bytes) == ("é\r\n\U0001f600\r", 9)


def test_a_pattern_that_matches_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(DataError, match=r'pattern "\*\.md" matches no file') as caught:
        texts(TextSource(("*.txt", "*.md")), base=tmp_path)
    assert str(tmp_path) in caught.value.help


def test_a_bad_byte_is_reported_with_file_and_offset(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"abc\xff")
    with pytest.raises(DataError, match=r"bad\.txt is not UTF-8 at byte 3"):
        texts(TextSource(("*.txt",)), base=tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
@pytest.mark.parametrize("source", [TextSource(("*.txt",)), JsonLinesSource(("*.txt",))])
def test_a_fifo_is_refused_rather_than_waited_for(tmp_path: Path, source: PlainSource) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match=r"pipe\.txt is not a regular file"):
        texts(source, base=tmp_path)


def test_a_device_is_refused() -> None:
    with pytest.raises(DataError, match=r"/dev/null is not a regular file"):
        texts(TextSource((os.devnull,)), base=Path("/"))


def test_a_dangling_link_is_reported(tmp_path: Path) -> None:
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"cannot open gone\.txt: No such file"):
        texts(TextSource(("*.txt",)), base=tmp_path)


def test_json_lines_yield_their_field(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", '{"text": "one", "body": "1"}', '{"text": "t\\u00fc", "body": "2"}')
    assert texts(JsonLinesSource(("*.jsonl",)), base=tmp_path) == ["one", "tü"]
    assert texts(JsonLinesSource(("*.jsonl",), field="body"), base=tmp_path) == ["1", "2"]


def test_a_json_document_knows_its_line_and_its_bytes(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", '{"text": "one"}', '{"text": "tü"}')
    found = [(item.origin, item.num_bytes) for item in documents(JsonLinesSource(("*",)), base=tmp_path)]
    assert found == [("a.jsonl:1", 3), ("a.jsonl:2", 3)]


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", '{"text": "one\u2028two\x85"}')
    assert texts(JsonLinesSource(("a.jsonl",)), base=tmp_path) == ["one\u2028two\x85"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"text": "cut', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('["text"]', "is not a JSON object"),
        ('{"body": "x"}', 'has no field "text"'),
        ('{"text": 7}', "is not a string"),
        ('{"text": null}', "is not a string"),
        ('{"text": "a\\ud800"}', "lone surrogate at character 1"),
    ],
    ids=["cut", "deep", "list", "other-field", "number", "null", "surrogate"],
)
def test_a_bad_json_line_is_reported_with_file_and_line(tmp_path: Path, line: str, fault: str) -> None:
    write_lines(tmp_path / "a.jsonl", '{"text": "fine"}', line, '{"text": "fine"}')
    with pytest.raises(DataError, match=fault) as caught:
        texts(JsonLinesSource(("a.jsonl",)), base=tmp_path)
    assert "a.jsonl:2" in caught.value.message


def test_a_bad_byte_in_json_lines_is_reported_with_line_and_offset_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": ""}\n{"text": "\xff"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2 is not UTF-8 at byte 23"):
        texts(JsonLinesSource(("a.jsonl",)), base=tmp_path)


def test_the_stdlib_is_much_real_text_in_sorted_order() -> None:
    found = list(documents(PythonStdlibSource(), base=Path()))
    origins = [document.origin for document in found]
    assert origins == sorted(origins)
    assert {"json/decoder.py", "argparse.py", "unittest/case.py"} <= set(origins)
    assert sum(document.num_bytes for document in found) > 5_000_000
    source = Path(sysconfig.get_path("stdlib"), "argparse.py").read_bytes().decode("utf-8")
    assert next(document for document in found if document.origin == "argparse.py").text == source


def test_the_stdlib_leaves_out_packages_tests_caches_and_other_codings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = ("site-packages", "dist-packages")
    tests = ("test", "x/tests", "idlelib/idle_test")
    for folder in (*packages, *tests, "lib2to3", "__pycache__", "kept/latest"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "module.py").write_text("pass")
    (tmp_path / "latin.py").write_bytes("# coding: latin-1\n# é".encode("latin-1"))
    (tmp_path / "data.txt").write_text("not Python")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: {"stdlib": str(tmp_path)}[name])
    origins = [document.origin for document in documents(PythonStdlibSource(), base=Path())]
    assert origins == ["kept/latest/module.py"]


def test_a_file_that_two_patterns_match_is_listed_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert matched_files(("a.txt", "*.txt"), base=tmp_path) == ("a.txt",)
