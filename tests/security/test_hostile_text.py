"""Text from data, manifests and tokenizers leaves planc harmless, and errors in a bounded length."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from planc.checks.model.experts_unbalanced import CODE
from planc.cli.main import main
from planc.cli.support.exits import UsageError
from planc.data_sources.kinds import JsonLinesSource
from planc.diagnostics.diagnostic import Label
from planc.diagnostics.formats import FORMATS
from planc.diagnostics.human import HumanRenderer
from planc.diagnostics.report import PlanFindings, Report
from planc.diff.text import escape
from planc.outgoing import MAX_MESSAGE, guard, write_commands
from planc.runtime.checkpoint_format.errors import CheckpointError
from planc.runtime.data.errors import DataError
from planc.runtime.data.sources import documents
from planc.runtime.errors import RunError
from planc.source import SourceFile
from tests.plans import QUICKSTART

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e\x00"
UNSAFE = set(HOSTILE) & set(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x202E]))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(*texts: str, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    guard(stream, environment={})
    for text in texts:
        assert stream.write(text) == len(text)
    return stream.getvalue()


def test_nothing_steers_the_reader_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("CLICOLOR_FORCE", raising=False)
    text = written(f"a\tb {HOSTILE} é 漢 🦀\n", "\x1b[31mred\x1b[0m\n")
    assert not UNSAFE & set(text)
    assert text.startswith("a\tb \\u001b]0;owned\\u0007") and text.count("\n") == 2
    assert "é 漢 🦀" in text


def test_a_terminal_gets_colors_and_lines_that_are_redrawn_and_no_more() -> None:
    own = "\x1b[31mred\x1b[0m\r\x1b[2K\x1b[1A\x1b[?25l"
    text = written(own, HOSTILE, stream=Terminal())
    assert text.startswith(own)
    assert "\x1b]" not in text and "\x1b[2J" not in text and "\x07" not in text


@pytest.mark.parametrize(
    "texts",
    [
        ("::error::forged\n",),
        ("a\n  ::set-output name=x::y\n",),
        ("a\n", "::add-mask::x\n"),
        ("word ##[error]forged\n",),
        ("##vso[task.setvariable variable=x]y\n",),
    ],
)
def test_no_runner_takes_text_for_a_command(texts: tuple[str, ...]) -> None:
    for line in written(*texts).splitlines():
        assert not line.lstrip().startswith("::") and "##[" not in line and "##vso[" not in line


def test_colons_within_a_line_stay() -> None:
    assert written("tests/a.py", "::test_b ran\n") == "tests/a.py::test_b ran\n"


def test_annotations_are_written_as_commands() -> None:
    stream = io.StringIO()
    guard(stream, environment={"HF_TOKEN": "secret-key"})
    write_commands("::error file=a::secret-key\n", stream=stream)
    assert stream.getvalue() == "::error file=a::***\n"


def test_json_stays_json() -> None:
    value = {"name": "\x7f\x1b\u2028 ::error::"}
    assert json.loads(written(json.dumps(value, ensure_ascii=False) + "\n")) == value


ERRORS: list[Callable[[str], Exception]] = [
    UsageError,
    RunError,
    lambda text: DataError(text, help=text),
    lambda text: CheckpointError(text, help=text),
]


@pytest.mark.parametrize("make", ERRORS)
def test_an_error_is_harmless_and_bounded(make: Callable[[str], Exception]) -> None:
    error = make("a\nb" + HOSTILE + "x" * 2_600_000)
    texts = [str(error), *(getattr(error, name, None) or "" for name in ("message", "help"))]
    for text in texts:
        assert not UNSAFE & set(text) and len(text) < MAX_MESSAGE + 200
    assert "a\nb" in str(error) and "2_600_" in str(error)


def test_a_finding_is_bounded_in_every_format() -> None:
    """One that quotes names of 2.6 million characters, in its label, a second one, a note and its help."""
    name = f'"{"x" * 2_600_000}"'
    source = SourceFile("a.plan", "model {\n}\n")
    second = Label(source.start(), f"the tokenizer's {name}")
    found = CODE.at(
        source.start(), f"no {name} here", secondary=(second,), notes=(name,), help=f"write {name}"
    )
    report = Report((PlanFindings("a.plan", (found,), {"a.plan": source}),))
    texts = {one.name: one.render(report) for one in FORMATS}
    texts["human"] = HumanRenderer({"a.plan": source}).render((found,))
    # SARIF and JUnit have the whole page of the code, too.
    assert {name for name, text in texts.items() if len(text) > 20_000} == set()
    words = (found.primary.text, second.text, *found.notes, found.help or "")
    assert all("(2_600_002 characters)" in one for one in words)
    assert found.primary.text.startswith("no ") and found.primary.text.endswith(" here")


def test_sentences_of_many_names_are_cut() -> None:
    label = CODE.at(SourceFile("a.plan", "").start(), "name " * 100_000).primary
    assert MAX_MESSAGE < len(label.text) < MAX_MESSAGE + 200 and "(500_000 characters)" in label.text


def test_the_names_of_a_record_are_harmless_in_its_error(tmp_path: Path) -> None:
    names = {f"{HOSTILE}\n::error::{number}": 1 for number in range(100_000)}
    (tmp_path / "a.jsonl").write_text(json.dumps(names))
    with pytest.raises(DataError) as caught:
        list(documents(JsonLinesSource(("*.jsonl",)), base=tmp_path))
    assert len(caught.value.help) < MAX_MESSAGE + 200 and not UNSAFE & set(caught.value.help)


def test_a_command_prints_no_command_of_a_runner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "a\n::error::forged\x1b[2J.plan"
    Path(name).write_text(QUICKSTART.read_text(encoding="utf-8"))
    main(["check", f"./{name}x"])
    main(["fmt", "--check", name])
    captured = capsys.readouterr()
    for line in (captured.out + captured.err).splitlines():
        assert not line.startswith("::") and "\x1b" not in line
    assert "forged" in captured.out


@pytest.mark.parametrize(
    "text", ["@name", "see https://evil.example", "HTTP://x.y", "www.evil.example", "#12", "<b>", "a|b"]
)
def test_markdown_holds_no_live_text(text: str) -> None:
    escaped = escape(text)
    assert text not in escaped
    assert escaped.replace("&#8203;", "").replace("\\", "").replace("&amp;", "&") == text
