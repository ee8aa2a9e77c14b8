"""Pages in a real browser: quiet, alone, in the dark, on a narrow screen, on paper, by keyboard, by ear."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planc.cli.main import main
from tests.plans import PLANS, QUICKSTART
from tests.report.browser import Browser, find
from tests.report.conftest import make_run

EXECUTABLE = find()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="needs Chromium: apt install chromium")

CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => {
    const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [r, g, b] = rgb(text).map(v => linear(v / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = getComputedStyle(document.documentElement).backgroundColor;
  const found = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!own || node.closest('svg, script')) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(ground)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push(`${node.tagName} ${node.className} ${ratio}`);
  }
  return [ground, found];
})()
"""
COLORS = """
[...document.querySelectorAll('body *:not(script)')].flatMap(node => {
  const style = getComputedStyle(node);
  return [style.color, ...(node.ownerSVGElement ? [style.fill, style.stroke] : [])];
}).filter((one, at, all) => all.indexOf(one) === at)
"""
FOCUSED = """
(() => {
  const node = document.activeElement, style = getComputedStyle(node);
  return [`${node.tagName} ${node.className}`, style.outlineStyle, parseFloat(style.outlineWidth)];
})()
"""
REACHABLE = """
[...document.querySelectorAll('a, summary, .chart, .scroll')].filter(node => node.checkVisibility())
  .map(node => `${node.tagName} ${node.className}`)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert EXECUTABLE is not None
    with Browser(EXECUTABLE) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each sort."""
    folder = tmp_path_factory.mktemp("pages")
    written = {
        "plan": ["report", str(QUICKSTART), "--gpu", "h100"],
        "large": ["report", str(PLANS / "llama-3.1-405b.plan"), "--gpu", "h100"],
        "run": ["report", str(make_run(folder / "run"))],
        "runs": ["report", str(folder / "run"), str(folder / "run")],
        "diff": ["diff", str(PLANS / "launch-dp4.plan"), str(QUICKSTART), "--output-format", "html"],
    }
    found = {name: folder / f"{name}.html" for name in written}
    for name, arguments in written.items():
        assert main([*arguments, "-o", str(found[name])]) == 0
    return found


def test_pages_print_nothing_and_ask_for_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    for path in pages.values():
        for scheme in ("light", "dark"):
            browser.open(path, scheme=scheme)
            assert browser.complaints() == []
            assert browser.requests() == [path.as_uri()]


def test_curves_are_drawn(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["run"])
    assert browser.run("document.querySelectorAll('.chart canvas').length") == 6
    assert browser.run("document.querySelectorAll('.chart').length") == 6


def test_the_policy_stops_what_was_never_written(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["plan"])
    browser.run(
        """document.body.insertAdjacentHTML('beforeend', '<img src="x" onerror="window.hacked = 1">')"""
    )
    browser.run("""{
      const script = document.createElement('script');
      script.textContent = 'window.hacked = 2';
      document.body.append(script);
    }""")
    assert browser.run("fetch('https://example.org').then(() => 'sent', () => 'stopped')") == "stopped"
    browser.complaints()
    assert browser.run("window.hacked ?? null") is None


def test_a_hostile_run_does_nothing(browser: Browser, run_folder: Path, tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    metrics = run_folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("held_out", hostile))
    (run_folder / "status.json").write_text(json.dumps({"state": hostile}))
    output = tmp_path / "hostile.html"
    assert main(["report", str(run_folder), "-o", str(output)]) == 0
    browser.open(output)
    assert browser.complaints() == []
    assert hostile in browser.run("document.querySelector('.u-legend').textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    for path in pages.values():
        browser.open(path, scheme=scheme)
        browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        ground, faint = browser.run(CONTRAST)
        assert faint == []
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_narrow_screen_does_not_scroll_sideways(browser: Browser, pages: dict[str, Path]) -> None:
    for path in pages.values():
        browser.open(path, width=400)
        browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert browser.run("document.documentElement.scrollWidth") <= 400


def test_paper_has_no_color(browser: Browser, pages: dict[str, Path]) -> None:
    """Also for a reader whose screen is dark."""
    for path in pages.values():
        browser.open(path, scheme="dark", media="print")
        found = [one for one in browser.run(COLORS) if one.startswith("rgb")]
        parts = [re.findall(r"[\d.]+", one)[:3] for one in found]
        assert found and all(len(set(part)) == 1 for part in parts), found
        assert (
            browser.run("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
        )
    assert browser.print().startswith(b"%PDF")


def test_every_control_is_reached_by_tab_with_a_visible_outline(
    browser: Browser, pages: dict[str, Path]
) -> None:
    for path in pages.values():
        browser.open(path)
        expected = browser.run(REACHABLE)
        reached = []
        for _ in expected:
            browser.press("Tab")
            name, style, width = browser.run(FOCUSED)
            reached.append(name)
            assert (style, width >= 2) == ("solid", True), name
        assert reached == expected


def test_a_table_opens_by_enter(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["plan"])
    browser.run(
        "[...document.querySelectorAll('summary')].find(one => one.textContent === 'As a table').focus()"
    )
    browser.press("Enter")
    assert browser.run("document.activeElement.parentElement.open") is True


def test_keys_read_a_curve(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["run"])
    browser.run("document.querySelector('.chart').focus()")
    read = "document.querySelector('output').textContent"
    for key, expected in (
        ("ArrowRight", "step 1: loss 5"),
        ("ArrowRight", "step 2: loss 2.5"),
        ("End", "step 60: loss 0.08333, evaluation held_out 0.06667"),
        ("ArrowLeft", "step 59: loss 0.08475"),
        ("Home", "step 1: loss 5"),
    ):
        browser.press(key)
        assert browser.run(read) == expected
    browser.press("+")
    browser.press("-")
    assert browser.complaints() == []


def test_a_screen_reader_has_a_name_for_all_that_it_reaches(browser: Browser, pages: dict[str, Path]) -> None:
    for path in pages.values():
        browser.open(path)
        browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        nodes = browser.accessible_nodes()
        nameless = [
            node["role"]["value"]
            for node in nodes
            if node["role"]["value"] in ("link", "region", "table", "image") or is_focusable(node)
            if not node.get("name", {}).get("value") and node["role"]["value"] != "main"
        ]
        assert nameless == []
        assert sum(node["role"]["value"] == "table" for node in nodes) >= 2


def is_focusable(node: dict[str, Any]) -> bool:
    return any(one["name"] == "focusable" and one["value"]["value"] for one in node.get("properties", ()))
