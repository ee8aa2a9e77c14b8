"""A real editor: Neovim's own client, with the configuration of the documentation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lsp.neovim import Neovim, neovim, release
from tests.plans import PLANS, QUICKSTART

RELEASE = release()
pytestmark = pytest.mark.skipif(
    RELEASE is None or RELEASE < (0, 7), reason="needs Neovim 0.7 or newer: apt install neovim"
)
TEXT = QUICKSTART.read_text(encoding="utf-8")
SLIP = TEXT.replace("weights = random", "wieghts = random")
FINDINGS = "#vim.diagnostic.get(0)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("neovim")
    shutil.copytree(PLANS / "models" / "tiny-llama", found / "models" / "tiny-llama")
    return found


@pytest.fixture(scope="module")
def editor(folder: Path) -> Iterator[Neovim]:
    with neovim(folder) as found:
        found.edit(folder / "first.plan", SLIP)
        found.wait_for(f"{FINDINGS} > 0")
        yield found


@pytest.fixture
def plan(folder: Path) -> Path:
    return folder / "x.plan"


def place(editor: Neovim, word: str) -> None:
    """Put the cursor on the § of a word."""
    before = word.index("§")
    line = f"vim.fn.search([[\\V{word.replace('§', '')}]], 'w')"
    editor.lua(f"assert({line} > 0); vim.fn.cursor(vim.fn.line('.'), vim.fn.col('.') + {before})")


def under_cursor(editor: Neovim) -> tuple[str, int, str]:
    """The file's name, the line from 1, and the line's text."""
    name, line, text = editor.lua(
        "return { vim.fn.expand('%:t'), vim.fn.line('.'), vim.api.nvim_get_current_line() }"
    )
    return name, line, text


def test_a_fault_is_found_and_the_chosen_fix_mends_it(editor: Neovim, plan: Path) -> None:
    editor.edit(plan, SLIP)
    editor.wait_for(f"{FINDINGS} > 0")
    (found,) = editor.lua("return vim.diagnostic.get(0)")
    line = SLIP.splitlines().index("  wieghts = random")
    assert (found["lnum"], found["col"], found["end_col"]) == (line, 2, 9)
    assert (found["code"], found["source"]) == ("P202", "planc")
    place(editor, "w§ieghts")
    editor.lua("""
      vim.ui.select = function(items, options, on_choice)
        local titles = vim.tbl_map(options.format_item, items)
        offered = titles
        on_choice(items[1], 1)
      end
      vim.lsp.buf.code_action()
      wait_for(function() return offered ~= nil end)
    """)
    assert editor.lua("return offered") == ["Replace `wieghts` with `weights`", "Apply all safe fixes"]
    editor.wait_for(f"{FINDINGS} == 0")
    assert editor.text() == TEXT


def test_columns_after_an_emoji_are_right(editor: Neovim, plan: Path) -> None:
    """Neovim counts bytes, and its client UTF-16 where the server does not agree on another unit."""
    editor.edit(plan, TEXT.replace('hf = "models/tiny-llama"', 'hf = "🦀é" wat = 1'))
    editor.wait_for(f"{FINDINGS} > 0")
    (column,) = [one["col"] for one in editor.lua("return vim.diagnostic.get(0)") if "wat" in one["message"]]
    assert column == len('  hf = "🦀é" '.encode())


def test_an_edit_after_an_emoji_replaces_the_right_word(editor: Neovim, plan: Path) -> None:
    text = TEXT.replace("kind = adamw(lr = lr", 'kind = adamw(betas = ["🦀é"], lr = lr')
    assert text != TEXT
    editor.edit(plan, text)
    place(editor, "param §lr")
    editor.lua("vim.lsp.buf.rename('peak')")
    editor.wait_for("vim.fn.search('lr = peak', 'nw') > 0")
    assert editor.text() == text.replace("param lr", "param peak").replace("lr = lr", "lr = peak")


def test_a_key_is_explained(editor: Neovim, plan: Path) -> None:
    editor.edit(plan, TEXT)
    place(editor, "clip_§grad_norm")
    editor.lua("vim.lsp.buf.hover()")
    editor.wait_for("#vim.api.nvim_list_wins() > 1")
    lines = editor.lua("return vim.api.nvim_buf_get_lines(vim.fn.winbufnr(2), 0, -1, true)")
    assert "optimizer.clip_grad_norm: maximum global gradient norm" in lines
    number = TEXT.splitlines().index("  clip_grad_norm = 1.0") + 1
    assert f"value: 1.0 (x.plan:{number})" in lines


def test_a_key_is_completed(editor: Neovim, plan: Path) -> None:
    editor.edit(plan, TEXT.replace("  tp = 2\n", ""))
    place(editor, "mesh §{")
    keys = "vim.api.nvim_replace_termcodes('o  t<C-x><C-o>', true, false, true)"
    editor.lua(f"vim.fn.feedkeys({keys}, 'n')")
    editor.wait_for("vim.fn.pumvisible() == 1 or vim.api.nvim_get_current_line() == '  tp = '")
    editor.lua("vim.fn.feedkeys('2', 'n')")
    editor.wait_for("vim.api.nvim_get_current_line() == '  tp = 2'")
    editor.lua("vim.cmd('stopinsert')")
    editor.wait_for("vim.fn.mode() == 'n'")


def test_a_parameter_and_a_base_lead_to_their_places(editor: Neovim, folder: Path) -> None:
    editor.edit(folder / "x.plan", TEXT)
    place(editor, "lr = §lr,")
    editor.lua("vim.lsp.buf.definition()")
    line = next(number for number, one in enumerate(TEXT.splitlines(), 1) if one.startswith("param lr"))
    editor.wait_for(f"vim.fn.line('.') == {line}")
    assert under_cursor(editor)[0] == "x.plan"
    editor.edit(folder / "top.plan", 'extends "x.plan"\n')
    place(editor, "x§.plan")
    editor.lua("vim.lsp.buf.definition()")
    editor.wait_for("vim.fn.expand('%:t') == 'x.plan'")


def test_a_parameter_is_renamed(editor: Neovim, plan: Path) -> None:
    editor.edit(plan, TEXT)
    place(editor, "param §lr")
    editor.lua("vim.lsp.buf.rename('peak')")
    editor.wait_for("vim.fn.search('lr = peak', 'nw') > 0")
    assert editor.text() == TEXT.replace("param lr", "param peak").replace("lr = lr", "lr = peak")


def test_formatting_keeps_the_cursor_at_its_line(editor: Neovim, plan: Path) -> None:
    editor.edit(plan, TEXT.replace("model {", "\n\n\n\nmodel {").replace("  tp = 2", "      tp=2"))
    place(editor, "clip_grad_norm§")
    editor.lua("(vim.lsp.buf.format or vim.lsp.buf.formatting_sync)(nil, 60000)")
    assert editor.text() == TEXT
    assert under_cursor(editor)[2] == "  clip_grad_norm = 1.0"


def test_an_outline_is_listed(editor: Neovim, plan: Path) -> None:
    editor.edit(plan, TEXT)
    editor.lua("vim.fn.setqflist({}); vim.lsp.buf.document_symbol()")
    listed = "vim.list_extend(vim.fn.getqflist(), vim.fn.getloclist(0))"
    editor.wait_for(f"#{listed} > 0")
    found: list[dict[str, Any]] = editor.lua(f"return {listed}")
    line = TEXT.splitlines().index("mesh {") + 1
    assert ("[Struct] mesh", line) in [(one["text"], one["lnum"]) for one in found]


def test_figures_are_at_their_lines(editor: Neovim, plan: Path) -> None:
    """Neovim shows them from 0.10 on; before, its client can ask for them."""
    editor.edit(plan, TEXT)
    found = editor.lua("""
      local params = {
        textDocument = vim.lsp.util.make_text_document_params(),
        range = { start = { line = 0, character = 0 }, ["end"] = { line = 1000, character = 0 } },
      }
      local answers = vim.lsp.buf_request_sync(0, "textDocument/inlayHint", params, 60000)
      return select(2, next(answers)).result
    """)
    labels = {one["position"]["line"]: one["label"] for one in found}
    assert labels[TEXT.splitlines().index("mesh {")] == "4 ranks"


def test_windows_line_ends_stay_as_they_are(editor: Neovim, plan: Path) -> None:
    untidy = TEXT.replace("  tp = 2", "      tp=2")
    plan.write_bytes(untidy.replace("\n", "\r\n").encode())
    editor.lua(f"vim.cmd('edit! ++ff=dos {plan}')")
    editor.lua("(vim.lsp.buf.format or vim.lsp.buf.formatting_sync)(nil, 60000)")
    assert editor.text() == TEXT
    editor.lua("vim.cmd('silent write')")
    assert plan.read_bytes() == TEXT.replace("\n", "\r\n").encode()


def test_one_server_serves_all_plans(editor: Neovim, folder: Path) -> None:
    editor.edit(folder / "x.plan", TEXT)
    editor.edit(folder / "y.plan", TEXT)
    assert editor.lua("return #(vim.lsp.get_clients or vim.lsp.get_active_clients)()") == 1
