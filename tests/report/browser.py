"""A headless Chromium, driven over the pipe of its DevTools protocol: no port, no driver, no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.patience import WAIT_SECONDS

NAMES = ("chromium", "chromium-browser", "google-chrome")
_COMPLAINTS = (
    *("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"),
    "Page.javascriptDialogOpening",
)
_CODES = {".": "Period"}
_NUMBERS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
_NUMBERS |= {"F8": 119, ".": 190}


def find() -> str | None:
    """The browser of this machine, if it has one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of one browser, with what its console printed and what it asked the network for."""

    def __init__(self, executable: str) -> None:
        to_browser, our_write = os.pipe()
        our_read, from_browser = os.pipe()
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]

        def at_3_and_4() -> None:
            # Either may be 3 or 4 itself: first both to numbers that nothing has.
            moved = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (to_browser, from_browser)]
            os.dup2(moved[0], 3)
            os.dup2(moved[1], 4)

        self._process = subprocess.Popen(
            [executable, *options, f"--user-data-dir={self._profile.name}", "about:blank"],
            preexec_fn=at_3_and_4,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._read, self._write, self._buffer, self._last_id = our_read, our_write, b"", 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        (page,) = [one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setScrollbarsHidden", hidden=True)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def open(self, path: Path, *, width: int = 1000, scheme: str = "light", media: str = "screen") -> None:
        """Load a file at a width, in a color scheme, on a medium."""
        self.events.clear()
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=media, features=features)
        self._load(path.resolve().as_uri())
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def visit(self, address: str, *, width: int) -> None:
        """Load a page of a server on this machine."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        self._load(address)

    def _load(self, address: str) -> None:
        self._call("Page.navigate", url=address)
        self._wait("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, *, control: bool = False) -> None:
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 and not control else {}
        shared = {"key": key, "code": _CODES.get(key, key), "windowsVirtualKeyCode": _NUMBERS.get(key, 0)}
        shared["modifiers"] = 2 if control else 0
        self._call("Input.dispatchKeyEvent", type="keyDown", **shared, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def screenshot(self, path: Path, *, clip: dict[str, float] | None = None) -> None:
        area = {"clip": {**clip, "scale": 1}} if clip else {}
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, **area)
        path.write_bytes(base64.b64decode(found["data"]))

    def accessible_nodes(self) -> list[dict[str, Any]]:
        """The tree that a screen reader has."""
        nodes: list[dict[str, Any]] = self._call("Accessibility.getFullAXTree")["nodes"]
        return [node for node in nodes if not node["ignored"]]

    def print(self) -> bytes:
        """The page as a PDF."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=False)["data"])

    def complaints(self) -> list[str]:
        """Errors, messages of the console, what the page's policy stopped, and dialogs."""
        self._drain()
        found = []
        for event in self.events:
            if event["method"] in _COMPLAINTS:
                found.append(json.dumps(event["params"])[:400])
        return found

    def requests(self) -> list[str]:
        """Every address that was asked for, the page's own included."""
        self._drain()
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next(WAIT_SECONDS)
            assert found is not None, f"no answer to {method}"
            if found.get("id") == self._last_id:
                assert "error" not in found, (method, found["error"])
                result: dict[str, Any] = found["result"]
                return result

    def _wait(self, method: str) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not any(event["method"] == method for event in self.events):
            assert time.monotonic() < end, f"no {method}"
            self._next(1)

    def _drain(self) -> None:
        self.run("new Promise(done => setTimeout(done, 50))")

    def _next(self, seconds: float) -> dict[str, Any] | None:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], seconds)[0]:
                return None
            block = os.read(self._read, 2**20)
            assert block, "the browser ended"
            self._buffer += block
        text, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        if "method" in found:
            self.events.append(found)
        return found
