"""Push an export to a repository of the Hugging Face Hub, in one commit, by the Hub's own library.

The library reads the endpoint and the token by its own rules, so neither is in a plan or in a run directory.
A run pushes in a process of its own, which ends with the run, and which no library of the run can hold up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from planc.graph.ops import PushExport
from planc.hub.weights import ADAPTER
from planc.outgoing import message_text
from planc.runtime.errors import STOPS
from planc.runtime.fetch import hub_library, is_offline, reason_of
from planc.runtime.files.plain_files import kind_of, read_utf8
from planc.runtime.own_process import NoAnswerError, ask, serve
from planc.runtime.run_directory.export_folder import MAX_ORIGIN_BYTES, ORIGIN_NAME
from planc.strict_json import loads

DEFAULT_BRANCH = "main"
_WAIT_SECONDS = (1.0, 5.0)
"""Before each further try of a push. The library itself repeats most requests, and the sending of files."""
_LEAST_SECONDS = 600
_LEAST_BYTES_PER_SECOND = 2**20
"""A run gives up a push that takes more than this: ten minutes, and a second for each MiB."""
_SENT = ("export", "repository", "private", "revision")
"""The fields of an op that its process needs."""
_WEIGHTS = re.compile(rf"(adapter_)?model(-\d+-of-\d+)?\.safetensors(\.index\.json)?|{re.escape(ADAPTER)}")
"""Files that transformers or peft would load in the place of an export's, or in addition to them."""
_REFUSALS: Mapping[int, str] = {
    401: "the Hub does not accept the token (401); set HF_TOKEN to a token that may write to {repository}",
    403: "the token may not write to {repository} (403)",
    404: "the token sees no model repository {repository}, and the Hub creates none of this name (404)",
}


class PushError(Exception):
    """A push failed, as the message states. `may_pass` if it could succeed without a change."""

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message_text(message))
        self.may_pass = may_pass


def push(folder: Path, op: PushExport) -> str:
    """Push all files of an export's directory, and return the commit's address. PushError.

    Weights of an earlier push that the directory lacks are deleted: a loader may prefer them.
    """
    if is_offline():
        raise PushError("HF_HUB_OFFLINE forbids requests to the Hub; unset it")
    files, message = dict(_files(folder)), _message(folder)
    library: Any = hub_library(f"a push to {op.repository}")
    for seconds in (*_WAIT_SECONDS, None):
        try:
            return _push(library, files, op, message=message)
        except STOPS:
            raise
        # The library, its client and the file system have errors of many kinds.
        except BaseException as error:
            failure = error if isinstance(error, PushError) else _failure(error, op.repository)
            if seconds is None or not failure.may_pass:
                raise failure from error
            time.sleep(seconds)
    raise AssertionError("the last try returns or raises")


def push_apart(folder: Path, op: PushExport, *, stops: Callable[[], bool]) -> str:
    """Push in a process of its own, until `stops`. PushError."""
    num_bytes = sum(path.stat().st_size for _, path in _files(folder))
    limit = _LEAST_SECONDS + num_bytes // _LEAST_BYTES_PER_SECOND
    request = {"folder": str(folder.resolve()), "op": {name: getattr(op, name) for name in _SENT}}
    environment = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    try:
        answer = ask(__name__, request, seconds=limit, environment=environment, stops=stops)
    except NoAnswerError as error:
        raise PushError(f"the push {error}") from error
    if "error" in answer:
        raise PushError(answer["error"])
    return str(answer["address"])


def main() -> None:
    """Answer the request of `push_apart`."""
    serve(_answer)


def _answer(request: Mapping[str, Any]) -> dict[str, str]:
    try:
        return {"address": push(Path(request["folder"]), PushExport(when="end", **request["op"]))}
    except PushError as error:
        return {"error": str(error)}


def _message(folder: Path) -> str:
    """The message of the commit. PushError for a directory that is not an export."""
    try:
        origin = loads(read_utf8(folder / ORIGIN_NAME, max_bytes=MAX_ORIGIN_BYTES))
        return f"step {int(origin['step'])} of plan {str(origin['plan_hash'])[:12]}, by planc"
    except (OSError, ValueError, KeyError, TypeError):
        text = f"{folder} is not an export of planc: {ORIGIN_NAME} is missing or damaged"
        raise PushError(text) from None


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file of a directory by its path in it. PushError for a link, which may lead anywhere."""
    for path in sorted(folder.rglob("*")):
        kind = kind_of(path)
        if kind == "file":
            yield path.relative_to(folder).as_posix(), path
        elif kind != "directory":
            raise PushError(f"{path} is a {kind}, not a plain file; move it away, or replace it by a copy")


def _push(library: Any, files: Mapping[str, Path], op: PushExport, *, message: str) -> str:
    api, repository = library.HfApi(), op.repository
    api.create_repo(repository, private=op.private, exist_ok=True)
    if op.revision != DEFAULT_BRANCH:
        api.create_branch(repository, branch=op.revision, exist_ok=True)
    there = api.model_info(repository, revision=op.revision)
    if there.private not in (None, op.private):
        has, states = ("private", "public") if there.private else ("public", "private")
        raise PushError(
            f"{repository} is {has} already, and the push is to a {states} repository; "
            "change one of them, or push to another repository"
        )
    stale = (file.rfilename for file in there.siblings or () if file.rfilename not in files)
    operations = [
        *(
            library.CommitOperationAdd(path_in_repo=name, path_or_fileobj=path)
            for name, path in files.items()
        ),
        *(library.CommitOperationDelete(path_in_repo=name) for name in stale if _WEIGHTS.fullmatch(name)),
    ]
    done = api.create_commit(repository, operations, commit_message=message, revision=op.revision)
    return message_text(str(done.commit_url))


def _failure(error: BaseException, repository: str) -> PushError:
    """The failure of a request: refused, or not answered."""
    cause: BaseException | None = error
    while cause is not None and getattr(cause, "response", None) is None:
        cause = cause.__cause__
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if isinstance(status, int) and status in _REFUSALS:
        return PushError(_REFUSALS[status].format(repository=repository))
    may_pass = not isinstance(error, ValueError) if status is None else status in (408, 409, 412, 429)
    return PushError(reason_of(error), may_pass=may_pass or (status or 0) >= 500)
