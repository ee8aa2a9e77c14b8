"""A server of this machine that takes pushes as the hub does: creation, branches, files, and commits."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_secret"
Answer = tuple[int, Any]


@dataclass
class PushServer:
    """The state of one repository of models, the requests that came, and the faults of the server."""

    repository: str = "org/name"
    exists: bool = False
    private: bool = True
    branches: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: list[tuple[str, str]] = field(default_factory=list)
    """(branch, summary)."""
    requests: list[str] = field(default_factory=list)
    token: str = TOKEN
    """The one that may write."""
    is_other_type: bool = False
    """The name is that of a data set: it can't be created again, and is no model."""
    busy: int = 0
    """The number of commits that are answered with 503."""
    delay_seconds: float = 0.0
    is_mute: bool = False
    """Requests are read and never answered."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    url: str = ""

    def answer(self, method: str, path: str, body: bytes, *, authorization: str | None) -> Answer:
        if path.startswith("/blobs/"):
            return self._take_blob(path.removeprefix("/blobs/"), body)
        if authorization != f"Bearer {self.token}":
            return 401, {"error": "Invalid username or password."}
        api = f"/api/models/{self.repository}"
        routes: list[tuple[str, str, Callable[[str, bytes], Answer]]] = [
            ("POST", "/api/repos/create", self._create),
            ("POST", f"{api}/branch/", self._branch),
            ("GET", f"{api}/revision/", self._info),
            ("POST", f"{api}/preupload/", self._preupload),
            ("POST", f"/{self.repository}.git/info/lfs/objects/batch", self._batch),
            ("POST", f"{api}/commit/", self._commit),
        ]
        for verb, start, handle in routes:
            if method == verb and path.startswith(start):
                return handle(path.removeprefix(start), body)
        return 404, {"error": f"no {method} {path}"}

    def _create(self, rest: str, body: bytes) -> Answer:
        wanted = json.loads(body)
        assert f"{wanted['organization']}/{wanted['name']}" == self.repository
        url = {"url": f"{self.url}/{self.repository}"}
        if self.exists or self.is_other_type:
            return 409, {"error": "You already created this repo", **url}
        self.exists, self.private = (
            True,
            wanted.get("visibility") == "private" or wanted.get("private", False),
        )
        self.branches["main"] = {".gitattributes": b"*.safetensors filter=lfs\n"}
        return 200, url

    def _branch(self, name: str, body: bytes) -> Answer:
        if name in self.branches:
            return 409, {"error": "it exists"}
        self.branches[name] = dict(self.branches["main"])
        return 200, {}

    def _info(self, branch: str, body: bytes) -> Answer:
        if not self.exists or branch not in self.branches:
            return 404, {"error": "Repository not found"}
        names = [{"rfilename": name} for name in self.branches[branch]]
        return 200, {"id": self.repository, "private": self.private, "sha": "0" * 40, "siblings": names}

    def _preupload(self, branch: str, body: bytes) -> Answer:
        files = []
        for one in json.loads(body)["files"]:
            mode = "lfs" if one["path"].endswith(".safetensors") else "regular"
            files.append({"path": one["path"], "uploadMode": mode, "shouldIgnore": False})
        return 200, {"files": files}

    def _batch(self, rest: str, body: bytes) -> Answer:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.url}/blobs/{one['oid']}"}}}
            for one in ({"oid": one["oid"], "size": one["size"]} for one in json.loads(body)["objects"])
        ]
        return 200, {"transfer": "basic", "objects": objects}

    def _take_blob(self, digest: str, body: bytes) -> Answer:
        if hashlib.sha256(body).hexdigest() != digest:
            return 400, {"error": "other bytes than announced"}
        self.blobs[digest] = body
        return 200, {}

    def _commit(self, branch: str, body: bytes) -> Answer:
        if self.busy:
            self.busy -= 1
            return 503, {"error": "busy"}
        files = dict(self.branches[branch])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "header":
                    self.commits.append((branch, value["summary"]))
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.blobs[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        self.branches[branch] = files
        digest = hashlib.sha1(body).hexdigest()
        return 200, {"commitUrl": f"{self.url}/{self.repository}/commit/{digest}", "commitOid": digest}


@contextmanager
def serving(server: PushServer) -> Iterator[PushServer]:
    """The server, at `server.url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self._body()
            server.requests.append(f"{self.command} {self.path}")
            if server.is_mute:
                is_over.wait()
                return
            time.sleep(server.delay_seconds)
            path = self.path.partition("?")[0]
            authorization = self.headers.get("authorization")
            code, found = server.answer(self.command, path, body, authorization=authorization)
            text = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _body(self) -> bytes:
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        do_GET = do_PUT = do_POST

    is_over = threading.Event()
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{listening.server_port}"
    try:
        yield server
    finally:
        is_over.set()
        listening.shutdown()
        listening.server_close()
        thread.join()
