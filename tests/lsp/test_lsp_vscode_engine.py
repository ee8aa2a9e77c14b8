"""The extension as VS Code has it: packaged by its own tool, installed and used in its own engine.

`code-server` is VS Code as a web page. These tests need npm, Chromium, and `code-server` in the path.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import WAIT_SECONDS
from tests.plans import PLANS, QUICKSTART
from tests.report.browser import Browser, find

ROOT = Path(__file__).parents[2]
FOLDER = Path("examples") / "editors" / "vscode"
GRAMMAR = Path("planc") / "highlight" / "plan.tmLanguage.json"
SLIP = QUICKSTART.read_text(encoding="utf-8").replace("weights = random", "wieghts = random")
SECONDS = WAIT_SECONDS
LINES = "[...document.querySelectorAll('.view-line')].map(one => one.textContent.replace(/\\u00a0/g, ' '))"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `npm run package` writes in a copy of the checkout."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm: apt install npm")
    root = tmp_path_factory.mktemp("checkout")
    for name in subprocess.check_output(["git", "ls-files", FOLDER, GRAMMAR], cwd=ROOT, text=True).split():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    install = ["npm", "install", "--no-audit", "--no-fund"]
    installed = subprocess.run(install, cwd=root / FOLDER, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"npm can't install @vscode/vsce here: {installed.stderr[-300:]}")
    packaged = subprocess.run(
        ["npm", "run", "package"], cwd=root / FOLDER, capture_output=True, text=True, check=False
    )
    assert packaged.returncode == 0, packaged.stdout + packaged.stderr
    (found,) = (root / FOLDER).glob("*.vsix")
    return found


def test_the_package_has_the_extension_and_what_it_needs_to_run(package: Path) -> None:
    names = {name.removeprefix("extension/") for name in zipfile.ZipFile(package).namelist()}
    assert {"package.json", "extension.js", "language-configuration.json", GRAMMAR.name} <= names
    assert "node_modules/vscode-languageclient/node.js" in names
    assert not [name for name in names if "vsce" in name or name.endswith((".d.ts", ".gitignore", ".map"))]


@pytest.fixture(scope="module")
def address(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a running VS Code that has the package, in a folder with `x.plan`."""
    program = shutil.which("code-server")
    if program is None or find() is None:
        pytest.skip("needs code-server and Chromium: npm install -g code-server; apt install chromium")
    folder = tmp_path_factory.mktemp("vscode")
    shutil.copytree(PLANS / "models" / "tiny-llama", folder / "work" / "models" / "tiny-llama")
    (folder / "work" / "x.plan").write_text(SLIP, encoding="utf-8")
    shim = folder / "planc"
    shim.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m planc "$@"\n')
    shim.chmod(0o755)
    settings = folder / "data" / "User" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"planc.path": str(shim), "workbench.startupEditor": "none"}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    own = ["--user-data-dir", str(settings.parents[1]), "--extensions-dir", str(folder / "extensions")]
    own += ["--config", str(folder / "config.yaml")]
    subprocess.run([program, *own, "--install-extension", str(package)], check=True, capture_output=True)
    quiet = ["--auth", "none", "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"]
    process = subprocess.Popen(
        [program, *own, *quiet, "--bind-addr", host, str(folder / "work")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    opened = json.dumps([["openFile", f"vscode-remote://{host}{folder / 'work' / 'x.plan'}"]])
    yield f"http://{host}/?folder={folder / 'work'}&payload={opened}".replace('"', "%22")
    process.terminate()
    process.wait()


def awaited(browser: Browser, script: str) -> object:
    """The value of an expression, once it has one that holds."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if found := browser.run(script):
            return found
        time.sleep(0.2)
    raise AssertionError(script)


def test_a_fault_is_underlined_and_the_first_quick_fix_mends_it(address: str) -> None:
    executable = find()
    assert executable is not None
    with Browser(executable) as browser:
        browser.visit(address, width=1300)
        awaited(browser, "document.querySelectorAll('.squiggly-error').length === 1")
        colors = "new Set([...document.querySelectorAll('.view-line span span')].map(one => one.className))"
        assert browser.run(f"{colors}.size") > 5
        browser.run("document.querySelector('.monaco-editor textarea').focus()")
        browser.press("F8")
        awaited(browser, "document.querySelector('.marker-widget')?.textContent.includes('did you mean')")
        browser.press("Escape")
        browser.press(".", control=True)
        awaited(
            browser, "document.querySelector('.action-widget')?.textContent.includes('Replace `wieghts`')"
        )
        browser.press("Enter")
        awaited(browser, f"{LINES}.includes('  weights = random')")
        awaited(browser, f"{LINES}.some(one => one.includes('4 ranks'))")
        assert browser.run("document.querySelectorAll('.squiggly-error').length") == 0
