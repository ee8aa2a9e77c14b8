"""What an editor asks of a plan, through a real client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from planc.show.reference import page
from tests.lsp.editor import Editor, edited, editing, marked, uri_of

PLANS = Path(__file__).parents[2] / "plans"
QUICKSTART = PLANS / "quickstart.plan"
TEXT = QUICKSTART.read_text(encoding="utf-8")
PRESET = 'mesh "two" {\n  tp = 2\n}\n'
BASE = "param lr: float = 0.1\n"
LAYERED = 'extends "base.plan"\nimport "preset.plan" as preset\n\nmesh {\n  use preset.two\n}\n'


@pytest.fixture(scope="module")
def editor() -> Iterator[Editor]:
    with editing() as found:
        yield found
        assert found.errors == []


def document(path: Path = QUICKSTART) -> types.TextDocumentIdentifier:
    return types.TextDocumentIdentifier(uri_of(path))


def at(editor: Editor, before: str, after: str) -> types.Position:
    """Open the quickstart with one place written as `after`, whose mark is where to ask."""
    assert TEXT.count(before) >= 1
    text, place = marked(TEXT.replace(before, after, 1))
    editor.open(QUICKSTART, TEXT)
    editor.type(QUICKSTART, text)
    return place


def completed(editor: Editor, before: str, after: str) -> dict[str, types.CompletionItem]:
    found = editor.ask("completion", types.CompletionParams(document(), at(editor, before, after)))
    return {item.label: item for item in found}


def hovered(editor: Editor, word: str) -> str:
    """The text over a word of the quickstart, whose mark is where the mouse is."""
    place = at(editor, word.replace("§", ""), word)
    found = editor.ask("hover", types.HoverParams(document(), place))
    assert isinstance(found, types.Hover) and isinstance(found.contents, types.MarkupContent)
    return found.contents.value


@pytest.mark.parametrize(
    ("before", "after", "offered", "missing"),
    [
        ("tp = 2", "§", "tp", "dp_shard"),
        ("dtype = float32", "dtype = fl§", "bfloat16", "lr"),
        ("save_every = 60 steps", "save_every = 60 §", "steps", "GiB"),
        ("betas = [0.9, 0.95]", "§", "betas", "seed"),
        ("lr = lr", "lr = §", "lr", "steps"),
        ('"model.norm" -> sequence', '"model.layers.*.self_attn.§', "q_proj", "mlp"),
        ('"model.norm" -> sequence', '"model.layers.*.self_attn.{q_proj,§', "k_proj", "mlp"),
        ('"model.norm" -> sequence', '"model.layers.§', "{0..3}", "norm"),
        ('"**.*norm*" -> group', '"model.norm.§', "weight", "layers"),
        ("-> sequence_parallel", "-> §", "rowwise", "unit"),
        ("-> rowwise(output = Shard(1))", "-> rowwise(§", "output", "sequence_dim"),
        ("-> rowwise(output = Shard(1))", "-> rowwise(output = §", "Shard", "lr"),
        ("fsdp on dp_shard, cp", "fsdp on dp_shard, §", "cp", "dp_shard"),
        ("schedule = cosine(", "schedule = §(", "wsd", "lr"),
        ("{ when = end, dtype = bfloat16 }", "{ when = end, § }", "dtype", "when"),
        ("world_size == 4", "§", "peak_memory", "tp"),
        ("mesh {", "§", "hardware", "train"),
    ],
)
def test_what_may_stand_at_a_place_is_offered(
    editor: Editor, before: str, after: str, offered: str, missing: str
) -> None:
    found = completed(editor, before, after)
    assert offered in found and missing not in found


def test_nothing_is_offered_in_a_comment(editor: Editor) -> None:
    assert completed(editor, "tp = 2", "tp = 2  # t§") == {}


def test_a_chosen_name_replaces_only_what_is_written_of_it(editor: Editor) -> None:
    before, after = '"model.norm" -> sequence_parallel', '"model.layers.*.ml§" -> sequence_parallel'
    edit = completed(editor, before, after)["mlp"].text_edit
    assert isinstance(edit, types.TextEdit)
    text, _ = marked(TEXT.replace(before, after, 1))
    assert '"model.layers.*.mlp" -> sequence_parallel' in edited(text, [edit])


def test_a_key_shows_meaning_default_value_and_origin(editor: Editor) -> None:
    text = hovered(editor, "clip_grad§_norm = 1.0")
    assert "optimizer.clip_grad_norm: " in text
    assert "default" in text
    assert f"value: 1.0 (quickstart.plan:{TEXT.splitlines().index('  clip_grad_norm = 1.0') + 1})" in text


def test_a_key_of_a_nested_block_has_its_whole_path(editor: Editor) -> None:
    assert "checkpoint.export.hf.when: " in hovered(editor, "wh§en = end")


def test_an_argument_shows_its_unit_and_default(editor: Editor) -> None:
    text = hovered(editor, "warm§up = 10 steps")
    assert "cosine(warmup): " in text and "a number of steps" in text


def test_a_block_shows_its_page_of_the_reference(editor: Editor) -> None:
    assert hovered(editor, "m§esh {") == f"```text\n{(page('mesh') or '').rstrip()}\n```"


def test_a_style_shows_its_page_of_the_reference(editor: Editor) -> None:
    assert (
        hovered(editor, "-> seq§uence_parallel")
        == f"```text\n{(page('sequence_parallel') or '').rstrip()}\n```"
    )


def test_a_pattern_shows_what_it_matches_and_its_layout(editor: Editor) -> None:
    text = hovered(editor, '"model.layers.*.self_attn.{q,k§,v}_proj"')
    assert "matches 12 of LlamaForCausalLM: model.layers.{0..3}.self_attn.q_proj" in text
    assert "Shard(tensor_dim=0)" in text or "Shard(0)" in text


def test_a_pattern_in_a_broken_plan_still_shows_what_it_matches(editor: Editor) -> None:
    place = at(editor, '"model.norm" -> sequence_parallel', '"model.n§orm" -> \n')
    assert editor.ask("hover", types.HoverParams(document(), place)) is None
    broken = TEXT.replace("mesh {", "mesh { tp = = 3")
    editor.type(QUICKSTART, broken)
    line = broken.splitlines().index('  "model.norm" -> sequence_parallel')
    found = editor.ask("hover", types.HoverParams(document(), types.Position(line, 5)))
    assert "matches 1 of LlamaForCausalLM: model.norm" in found.contents.value


def test_a_fact_shows_its_formula(editor: Editor) -> None:
    assert "dp_replicate x dp_shard x cp x tp" in hovered(editor, "world_§size == 4")


def test_a_parameter_leads_to_its_definition(editor: Editor) -> None:
    place = at(editor, "lr = lr,", "lr = l§r,")
    found = editor.ask("definition", types.DefinitionParams(document(), place))
    line = next(number for number, text in enumerate(TEXT.splitlines()) if text.startswith("param lr"))
    assert (found.uri, found.range.start) == (uri_of(QUICKSTART), types.Position(line, 6))


@pytest.mark.parametrize(
    ("word", "file", "line"),
    [
        ('"ba§se.plan"', "base.plan", 0),
        ('"pre§set.plan"', "preset.plan", 0),
        ("use preset.t§wo", "preset.plan", 0),
        ("use pre§set.two", "top.plan", 1),
    ],
)
def test_bases_imports_and_fragments_lead_to_their_files(
    editor: Editor, tmp_path: Path, word: str, file: str, line: int
) -> None:
    (tmp_path / "base.plan").write_text(BASE, encoding="utf-8")
    (tmp_path / "preset.plan").write_text(PRESET, encoding="utf-8")
    text, place = marked(LAYERED.replace(word.replace("§", ""), word))
    editor.open(tmp_path / "top.plan", text)
    found = editor.ask("definition", types.DefinitionParams(document(tmp_path / "top.plan"), place))
    assert (found.uri, found.range.start.line) == (uri_of(tmp_path / file), line)


def test_a_parameter_is_renamed_everywhere_and_the_key_of_its_name_is_not(editor: Editor) -> None:
    place = at(editor, "lr = lr,", "lr = l§r,")
    found = editor.ask("rename", types.RenameParams(document(), place, "peak"))
    after = edited(TEXT, found.changes[uri_of(QUICKSTART)])
    assert after == TEXT.replace("param lr:", "param peak:").replace("lr = lr,", "lr = peak,")
    assert editor.type(QUICKSTART, after) == []


def test_a_choice_with_the_name_of_a_parameter_is_not_renamed(editor: Editor) -> None:
    text, place = marked(TEXT.replace("param lr", "param r§andom").replace("lr = lr,", "lr = random,"))
    assert editor.open(QUICKSTART, text) == []
    found = editor.ask("rename", types.RenameParams(document(), place, "peak"))
    assert "weights = random" in edited(text, found.changes[uri_of(QUICKSTART)])


@pytest.mark.parametrize(
    ("word", "name", "reason"),
    [
        ("lr = l§r,", "2x", "letters"),
        ("lr = l§r,", "random", "already"),
        ("t§p = 2", "x", "only a parameter"),
    ],
)
def test_a_rename_that_can_not_be_done_says_why(editor: Editor, word: str, name: str, reason: str) -> None:
    place = at(editor, word.replace("§", ""), word)
    with pytest.raises(JsonRpcException, match=reason):
        editor.ask("rename", types.RenameParams(document(), place, name))


def test_uses_of_a_parameter_are_listed(editor: Editor) -> None:
    place = at(editor, "param lr", "param l§r")
    context = types.ReferenceContext(include_declaration=False)
    (found,) = editor.ask("references", types.ReferenceParams(context, document(), place))
    line = next(number for number, text in enumerate(TEXT.splitlines()) if "lr = lr," in text)
    assert found.range.start.line == line


def test_formatting_gives_what_fmt_gives(editor: Editor) -> None:
    untidy = TEXT.replace("  tp = 2", "      tp=2")
    editor.open(QUICKSTART, untidy)
    options = types.FormattingOptions(tab_size=2, insert_spaces=True)
    edits = editor.ask("formatting", types.DocumentFormattingParams(document(), options))
    assert edited(untidy, edits) == TEXT


def test_a_text_that_does_not_parse_is_left_as_it_is(editor: Editor) -> None:
    editor.open(QUICKSTART, TEXT.replace("mesh {", "mesh {{"))
    options = types.FormattingOptions(tab_size=2, insert_spaces=True)
    assert not editor.ask("formatting", types.DocumentFormattingParams(document(), options))


def test_the_outline_has_blocks_with_their_settings(editor: Editor) -> None:
    editor.open(QUICKSTART, TEXT)
    found: list[Any] = editor.ask("document_symbol", types.DocumentSymbolParams(document()))
    mesh = next(symbol for symbol in found if symbol.name == "mesh")
    assert [(child.name, child.detail) for child in mesh.children] == [("dp_shard", "2"), ("tp", "2")]


def hints(editor: Editor) -> dict[int, str]:
    whole = types.Range(types.Position(0, 0), types.Position(10_000, 0))
    found = editor.ask("inlay_hint", types.InlayHintParams(document(), whole))
    return {hint.position.line: hint.label for hint in found}


def test_ranks_accumulation_and_memory_are_at_their_lines(editor: Editor) -> None:
    editor.open(QUICKSTART, TEXT)
    lines = TEXT.splitlines()
    found = hints(editor)
    assert found[lines.index("mesh {")] == "4 ranks"
    assert found[lines.index("  tokens_per_step = 4096")] == "gradient accumulation 2"
    assert found[lines.index("model {")].startswith("about ")


def test_figures_of_blocks_in_a_base_are_at_the_line_that_names_the_base(editor: Editor) -> None:
    path = PLANS / "launch-fsdp4.plan"
    text = path.read_text(encoding="utf-8")
    editor.open(path, text)
    whole = types.Range(types.Position(0, 0), types.Position(10_000, 0))
    found = editor.ask("inlay_hint", types.InlayHintParams(document(path), whole))
    line = next(number for number, one in enumerate(text.splitlines()) if one.startswith("extends"))
    assert any(hint.position.line == line for hint in found)


def test_a_plan_with_errors_has_no_figures(editor: Editor) -> None:
    editor.open(QUICKSTART, TEXT.replace("tp = 2", "tp = 3"))
    assert hints(editor) == {}


def test_a_text_that_is_not_open_has_no_answers(editor: Editor, tmp_path: Path) -> None:
    other = document(tmp_path / "other.plan")
    assert not editor.ask("document_symbol", types.DocumentSymbolParams(other))
    assert editor.ask("hover", types.HoverParams(other, types.Position(0, 0))) is None
