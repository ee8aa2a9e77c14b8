"""A headless Neovim with the configuration that docs/how-to/editors.md gives users."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.patience import WAIT_SECONDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "editors.md"
_LUA = re.compile(r"^```lua\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HELPERS = """\
local function wait_for(is_done)
  return vim.wait({milliseconds}, is_done, 20)
end
local function work()
{code}
end
local found = work()
local file = assert(io.open({answer}, "w"))
file:write(vim.json.encode({{ found }}))
file:close()
return 0
"""


def release() -> tuple[int, ...] | None:
    """The version of this machine's Neovim, if it has one."""
    if shutil.which("nvim") is None:
        return None
    printed = subprocess.run(["nvim", "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, printed.split("\n")[0].removeprefix("NVIM v").split("-")[0].split(".")))


def configurations() -> tuple[str, ...]:
    """What the page gives for Neovim 0.11 or newer, then for older ones."""
    return tuple(_LUA.findall(PAGE.read_text(encoding="utf-8")))


class Neovim:
    """A running editor. `lua` runs statements in it, and returns what they return."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket = folder, folder / "socket"
        shim = folder / "bin" / "planc"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m planc "$@"\n')
        shim.chmod(0o755)
        newer, older = configurations()
        init = folder / "init.lua"
        init.write_text(newer if (release() or ()) >= (0, 11) else older)
        own = {name: str(folder) for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")}
        own["PATH"] = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"
        # It would write its log into the working directory.
        own["NVIM_LOG_FILE"] = str(folder / "log")
        self.environment = {**os.environ, **own}
        self.process = subprocess.Popen(
            ["nvim", "--headless", "--clean", "-u", str(init), "--listen", str(self.socket)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment,
        )
        end = time.monotonic() + WAIT_SECONDS
        while not self.socket.exists():
            assert time.monotonic() < end and self.process.poll() is None, "Neovim does not start"
            time.sleep(0.02)

    def lua(self, code: str) -> Any:
        script, answer = self.folder / "code.lua", self.folder / "answer.json"
        values = {"code": code, "answer": json.dumps(str(answer)), "milliseconds": int(1e3 * WAIT_SECONDS)}
        script.write_text(_HELPERS.format(**values), encoding="utf-8")
        answer.unlink(missing_ok=True)
        expression = f"luaeval('dofile(_A)', '{script}')"
        command = ["nvim", "--server", str(self.socket), "--remote-expr", expression]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=2 * WAIT_SECONDS, env=self.environment
        )
        assert answer.exists(), done.stdout + done.stderr
        found = json.loads(answer.read_text(encoding="utf-8"))
        return found[0] if found else None

    def edit(self, path: Path, text: str) -> None:
        """Write a file and open it, without what was open before."""
        path.write_text(text, encoding="utf-8")
        self.lua(f"vim.cmd('silent! only | edit! {path}')")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression holds."""
        assert self.lua(f"return wait_for(function() return {condition} end)"), condition

    def text(self) -> str:
        lines: list[str] = self.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, true)")
        return "\n".join((*lines, ""))


@contextmanager
def neovim(folder: Path) -> Iterator[Neovim]:
    """A started editor; it ends with the block, and its server with it."""
    editor = Neovim(folder)
    try:
        yield editor
    finally:
        editor.process.kill()
        editor.process.wait()
