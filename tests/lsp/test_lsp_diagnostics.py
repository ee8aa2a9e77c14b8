"""Findings and fixes in an editor, through a real client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lsprotocol import types

from planc.cli.main import main
from planc.cli.support import exits
from tests.lsp.editor import Editor, edited, editing, edits_of, uri_of

PLANS = Path(__file__).parents[2] / "plans"
QUICKSTART = PLANS / "quickstart.plan"
TEXT = QUICKSTART.read_text(encoding="utf-8")
WRONG = TEXT.replace("tp = 2", "tq = 2")


@pytest.fixture(scope="module")
def editor() -> Iterator[Editor]:
    with editing() as found:
        yield found
        assert found.errors == []


def test_a_sound_plan_has_no_findings(editor: Editor) -> None:
    assert editor.open(QUICKSTART, TEXT) == []


def test_a_key_stroke_that_breaks_the_plan_is_found_where_it_is(editor: Editor) -> None:
    editor.open(QUICKSTART, TEXT)
    (found,) = [one for one in editor.type(QUICKSTART, WRONG) if one.code == "P202"]
    line = WRONG.splitlines().index("  tq = 2")
    assert (found.range.start, found.range.end) == (types.Position(line, 2), types.Position(line, 4))
    assert found.severity is types.DiagnosticSeverity.Error


def test_a_finding_leads_to_its_page(editor: Editor) -> None:
    found = editor.open(QUICKSTART, WRONG)[0]
    assert found.code_description is not None
    assert found.code_description.href.endswith(f"/errors/{found.code}.html")


def test_the_fix_of_a_slip_makes_the_plan_sound(editor: Editor) -> None:
    slip = TEXT.replace("weights = random", "wieghts = random")
    editor.open(QUICKSTART, slip)
    quick, _ = editor.fixes(QUICKSTART, slip.splitlines().index("  wieghts = random"))
    assert (quick.title, quick.is_preferred) == ("Replace `wieghts` with `weights`", True)
    assert editor.type(QUICKSTART, edited(slip, edits_of(quick, QUICKSTART))) == []


def test_all_safe_fixes_are_one_action(editor: Editor) -> None:
    slips = TEXT.replace("weights = random", "wieghts = random").replace("shuffle_seed", "shufle_seed")
    editor.open(QUICKSTART, slips)
    (every,) = [one for one in editor.fixes(QUICKSTART, 0) if one.kind == "source.fixAll.planc"]
    assert edited(slips, edits_of(every, QUICKSTART)) == TEXT


def test_an_unsafe_fix_has_that_in_its_title(editor: Editor) -> None:
    text = TEXT.replace("packing = attend", "packing = attends_all")
    assert editor.open(QUICKSTART, text) != []
    titles = [
        one.title for one in editor.fixes(QUICKSTART, text.splitlines().index("  packing = attends_all"))
    ]
    assert all("unsafe" in title for title in titles)


@pytest.mark.parametrize(("encoding", "column"), [("utf-8", 17), ("utf-16", 14), ("utf-32", 13)])
def test_columns_are_counted_as_the_editor_counts_them(encoding: str, column: int) -> None:
    text = TEXT.replace("tp = 2\n", "tp = 2, # \U0001f980\n").replace(
        'hf = "models/tiny-llama"', 'hf = "\U0001f980é", wat = 1'
    )
    with editing(encoding=encoding) as editor:
        (found,) = [one for one in editor.open(QUICKSTART, text) if "wat" in one.message]
    assert found.range.start.character == column


def test_windows_line_ends_move_no_finding(editor: Editor) -> None:
    places = [one.range for one in editor.open(QUICKSTART, WRONG)]
    assert places and [one.range for one in editor.open(QUICKSTART, WRONG.replace("\n", "\r\n"))] == places


def test_a_finding_in_an_included_file_is_at_the_statement_that_includes_it(
    editor: Editor, tmp_path: Path
) -> None:
    preset, plan = tmp_path / "preset.plan", tmp_path / "one.plan"
    preset.write_text('mesh "four" {\n  tp = 4\n  pt = 2\n}\n', encoding="utf-8")
    text = 'import "preset.plan" as preset\nmesh {\n  use preset.four\n}\n'
    found = [one for one in editor.open(plan, text) if "no key `pt`" in one.message]
    assert [one.range.start.line for one in found] == [0]
    assert found[0].related_information is not None
    assert found[0].related_information[0].location.uri == uri_of(preset)
    assert found[0].related_information[0].location.range.start == types.Position(2, 2)


def test_an_edit_of_an_open_preset_is_seen_in_the_plans_that_use_it(editor: Editor, tmp_path: Path) -> None:
    preset, plan = tmp_path / "preset.plan", tmp_path / "one.plan"
    sound = 'mesh "four" {\n  tp = 4\n}\n'
    preset.write_text(sound, encoding="utf-8")
    before = editor.open(plan, 'import "preset.plan" as preset\nmesh {\n  use preset.four\n}\n')
    assert not any("no key `pt`" in one.message for one in before)
    assert [one.severity for one in editor.open(preset, sound)] == [types.DiagnosticSeverity.Information]
    editor.type(preset, sound.replace("tp", "pt"))
    assert editor.findings(plan, saying="no key `pt`")


def test_a_model_that_no_command_has_read_is_a_finding_that_names_the_command(
    editor: Editor, tmp_path: Path
) -> None:
    model = tmp_path / "models" / "new"
    model.mkdir(parents=True)
    config = PLANS / "models" / "tiny-llama" / "config.json"
    (model / "config.json").write_bytes(config.read_bytes())
    (found,) = editor.open(tmp_path / "one.plan", TEXT.replace("models/tiny-llama", "models/new"))
    assert found.code == "P216" and "planc inventory" in found.message


def test_a_closed_text_has_no_findings_left(editor: Editor) -> None:
    editor.open(QUICKSTART, WRONG)
    editor.versions[uri_of(QUICKSTART)] = None
    editor.close(QUICKSTART)
    assert editor.findings(QUICKSTART) == []


def test_the_server_ends_cleanly_when_it_is_asked_to() -> None:
    with editing() as editor:
        assert editor.stop() == 0


def test_without_pygls_the_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exits, "find_spec", lambda name: None)
    assert main(["lsp"]) == 2
    assert capsys.readouterr().err == "planc: error: planc lsp needs pygls: pip install 'planc[lsp]'\n"
