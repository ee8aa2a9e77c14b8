"""The pictures of the documentation: small, and the same after they were made small."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.report.browser import Browser, find
from tests.report.screens import IMAGES, smaller

MAX_BYTES = 100_000
PIXELS = """
(async () => {
  const image = new Image();
  image.src = "data:image/png;base64,%s";
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const bytes = context.getImageData(0, 0, image.width, image.height).data;
  const digest = bytes.reduce((sum, one) => (sum * 31 + one) %% 1000000007, 7);
  return [image.width, image.height, digest];
})()
"""


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.png")), ids=lambda path: path.stem)
def test_a_picture_is_small(path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES


@pytest.mark.skipif(find() is None, reason="needs Chromium: apt install chromium")
def test_a_smaller_picture_has_the_same_pixels(tmp_path: Path) -> None:
    executable, page = find(), tmp_path / "page.html"
    assert executable is not None
    page.write_text(
        "<h1 style='color: #0b62c4'>Layers</h1><p style='background: linear-gradient(red, blue)'>x"
    )
    with Browser(executable) as browser:
        browser.open(page, width=300)
        browser.screenshot(tmp_path / "shot.png", clip={"x": 0, "y": 0, "width": 300, "height": 120})
        before = (tmp_path / "shot.png").read_bytes()
        pixels = [browser.run(PIXELS % base64.b64encode(png).decode()) for png in (before, smaller(before))]
    assert pixels[0] == pixels[1] and pixels[0][:2] == [300, 120]
