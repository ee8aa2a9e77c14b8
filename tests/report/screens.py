"""Retake the pictures of docs/how-to/report.md: `python -m tests.report.screens [RUN_DIR]`.

RUN_DIR is a finished run of plans/quickstart.plan; without it, the picture of a run stays.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
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
        ("report-plan", ["report", plan], "#mesh", 956),
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
            picture = IMAGES / f"{name}.png"
            browser.screenshot(picture, clip=clip)
            picture.write_bytes(smaller(picture.read_bytes()))
    return 0


def smaller(png: bytes) -> bytes:
    """The same picture, in RGB of 8 bits, without the filters of lines: flat colors are smaller so."""
    header, pixels = png[16:29], b""
    width, height, *kind = struct.unpack(">IIBBBBB", header)
    assert kind == [8, 2, 0, 0, 0], "Chromium's screenshots are RGB"
    at = 33
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            pixels += png[at + 8 : at + 8 + length]
        at += 12 + length
    stream, above, lines = zlib.decompress(pixels), bytes(3 * width), []
    for start in range(0, len(stream), 3 * width + 1):
        above = _unfiltered(stream[start], bytearray(stream[start + 1 : start + 1 + 3 * width]), above)
        lines.append(b"\0" + above)
    assert len(lines) == height
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(lines), 9)), (b"IEND", b""))
    return png[:8] + b"".join(map(_chunk, *zip(*chunks, strict=True)))


def _unfiltered(filter: int, line: bytearray, above: bytes) -> bytes:
    """A line of pixels of three bytes, as the filters of the PNG specification define them."""
    for at, byte in enumerate(line):
        a, b, c = (line[at - 3], above[at], above[at - 3]) if at >= 3 else (0, above[at], 0)
        nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
        line[at] = (byte + (0, a, b, (a + b) // 2, nearest)[filter]) % 256
    return bytes(line)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    sys.exit(main())
