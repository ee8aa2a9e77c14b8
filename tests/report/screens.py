"""Retake the pictures of docs/how-to/report.md: `python -m tests.report.screens [RUN_DIR]`.

RUN_DIR is a finished run of plans/quickstart.plan; without it, the picture of a run stays.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from planc.cli.main import main as planc
from tests.plans import PLANS, QUICKSTART
from tests.report.browser import Browser, find

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDTH = 760


def main() -> int:
    executable = find()
    if executable is None:
        print("no Chromium here")
        return 1
    plan, old = str(PLANS / "llama-3.1-405b-128-gpus.plan"), str(PLANS / "launch-dp4.plan")
    shots = [
        ("report-plan", ["report", plan], "#mesh", 1000),
        ("report-diff", ["diff", old, str(QUICKSTART), "--output-format", "html"], "figure", 640),
    ]
    shots += [("report-run", ["report", run], "#training", 620) for run in sys.argv[1:2]]
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser(executable) as browser:
        for name, arguments, first, height in shots:
            page = Path(folder) / "page.html"
            assert planc([*arguments, "-o", str(page)]) == 0
            browser.open(page, width=WIDTH)
            top = browser.run(f"document.querySelector('{first}').getBoundingClientRect().top")
            clip = {"x": 0, "y": top, "width": WIDTH, "height": height}
            browser.screenshot(IMAGES / f"{name}.png", clip=clip)
    return 0


if __name__ == "__main__":
    sys.exit(main())
