"""A model of the hub for tests: in a cache laid out as the hub's own, and on a server of this machine."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPOSITORY = "org/tiny"
REVISION = "0123456789abcdef0123456789abcdef01234567"
NAME = f"hf://{REPOSITORY}@{REVISION}"


def put_into_cache(cache: Path, files: Mapping[str, bytes]) -> Path:
    """The snapshot folder, whose files are links to blobs."""
    model = cache / "models--org--tiny"
    snapshot = model / "snapshots" / REVISION
    snapshot.mkdir(parents=True, exist_ok=True)
    (model / "blobs").mkdir(exist_ok=True)
    for name, content in files.items():
        blob = hashlib.sha256(content).hexdigest()
        (model / "blobs" / blob).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return snapshot


class Hub:
    """What the server has and what was asked of it: (method, path, authorization)."""

    def __init__(self, files: Mapping[str, bytes], *, refusal: Mapping[str, str] | None) -> None:
        self.files = files
        self.refusal = refusal
        self.requests: list[tuple[str, str, str | None]] = []
        self.url = ""

    @property
    def sent(self) -> list[str]:
        """The files that were asked for."""
        found = {
            path.partition(f"{REVISION}/")[2] for method, path, _ in self.requests if "/resolve/" in path
        }
        return sorted(found)

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers, as the hub's own server gives them."""
        if self.refusal is not None:
            return 401, b"", dict(self.refusal)
        name = path.partition(f"/resolve/{REVISION}/")[2]
        if name in self.files:
            etag = hashlib.sha256(self.files[name]).hexdigest()
            return 200, self.files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": REVISION}
        if path.startswith(f"/api/models/{REPOSITORY}/tree/{REVISION}"):
            return 200, json.dumps(self._tree()).encode(), {"Content-Type": "application/json"}
        if path.startswith(f"/api/models/{REPOSITORY}/revision/{REVISION}"):
            siblings = [{"rfilename": one} for one in self.files]
            info = {"id": REPOSITORY, "sha": REVISION, "siblings": siblings}
            return 200, json.dumps(info).encode(), {"Content-Type": "application/json"}
        return 404, b"", {}

    def _tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for name, content in self.files.items()
        ]


@contextmanager
def serving(files: Mapping[str, bytes], *, refusal: Mapping[str, str] | None = None) -> Iterator[Hub]:
    """A server that speaks as the hub of one model; `refusal` is the headers of what it answers to all."""
    hub = Hub(files, refusal=refusal)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            hub.requests.append((self.command, self.path, self.headers.get("authorization")))
            code, body, headers = hub.answer(self.path.partition("?")[0])
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
