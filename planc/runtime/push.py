"""Push an export to a repository of the Hugging Face Hub, in one commit, by the Hub's own library.

The library reads the endpoint and the token by its own rules, so neither is in a plan or in a run directory.
A run pushes in a process of its own, which ends with the run, and which no library of the run can hold up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from planc.graph.ops import PushExport
from planc.hub.weights import ADAPTER
from planc.outgoing import message_text
from planc.runtime.errors import STOPS
from planc.runtime.fetch import hub_library, reason_of
from planc.runtime.files.plain_files import kind_of
from planc.runtime.own_process import NoAnswerError, ask, serve

DEFAULT_BRANCH = "main"
_WAIT_SECONDS = (1.0, 5.0)
"""Before each further try of a push. The library itself repeats most requests, and the sending of files."""
_LEAST_SECONDS = 600
_LEAST_BYTES_PER_SECOND = 2**20
"""A run gives up a push that takes more than this: ten minutes, and a second for each MiB."""
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


@dataclass(frozen=True, slots=True)
class Target:
    """A branch of a model repository."""

    repository: str
    private: bool = True
    revision: str = DEFAULT_BRANCH


def target_of(op: PushExport) -> Target:
    """The target that a plan states."""
    return Target(op.repository, op.private, op.revision)


def push(folder: Path, target: Target, *, message: str) -> str:
    """Push all files of a directory, and return the commit's address. PushError.

    Weights of an earlier push that the directory lacks are deleted: a loader may prefer them.
    """
    files = dict(_files(folder))
    library: Any = hub_library(f"a push to {target.repository}")
    for seconds in (*_WAIT_SECONDS, None):
        try:
            return _push(library, files, target, message=message)
        except STOPS:
            raise
        # The library, its client and the file system have errors of many kinds.
        except BaseException as error:
            failure = error if isinstance(error, PushError) else _failure(error, target)
            if seconds is None or not failure.may_pass:
                raise failure from error
            time.sleep(seconds)
    raise AssertionError("the last try returns or raises")


def push_apart(folder: Path, target: Target, *, message: str, stops: Callable[[], bool]) -> str:
    """Push in a process of its own, until `stops`. PushError."""
    num_bytes = sum(path.stat().st_size for path in dict(_files(folder)).values())
    request = {"folder": str(folder.resolve()), "target": asdict(target), "message": message}
    limit = _LEAST_SECONDS + num_bytes // _LEAST_BYTES_PER_SECOND
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
        target = Target(**request["target"])
        return {"address": push(Path(request["folder"]), target, message=request["message"])}
    except PushError as error:
        return {"error": str(error)}


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file of a directory by its path in it. PushError for a link, which may lead anywhere."""
    for path in sorted(folder.rglob("*")):
        kind = kind_of(path)
        if kind == "file":
            yield path.relative_to(folder).as_posix(), path
        elif kind != "directory":
            raise PushError(f"{path} is a {kind}, not a plain file; move it away, or replace it by a copy")


def _push(library: Any, files: Mapping[str, Path], target: Target, *, message: str) -> str:
    api, repository = library.HfApi(), target.repository
    api.create_repo(repository, private=target.private, exist_ok=True)
    if target.revision != DEFAULT_BRANCH:
        api.create_branch(repository, branch=target.revision, exist_ok=True)
    there = api.model_info(repository, revision=target.revision)
    if there.private not in (None, target.private):
        has, states = ("private", "public") if there.private else ("public", "private")
        raise PushError(
            f"{repository} is {has} already, and the push is to a {states} repository; "
            "change one of them, or push to another repository"
        )
    stale = (one.rfilename for one in there.siblings or () if one.rfilename not in files)
    operations = [
        *(
            library.CommitOperationAdd(path_in_repo=name, path_or_fileobj=path)
            for name, path in files.items()
        ),
        *(library.CommitOperationDelete(path_in_repo=name) for name in stale if _WEIGHTS.fullmatch(name)),
    ]
    done = api.create_commit(repository, operations, commit_message=message, revision=target.revision)
    return message_text(str(done.commit_url))


def _failure(error: BaseException, target: Target) -> PushError:
    """The failure of a request: refused, or not answered."""
    cause: BaseException | None = error
    while cause is not None and getattr(cause, "response", None) is None:
        cause = cause.__cause__
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status in _REFUSALS:
        return PushError(_REFUSALS[status].format(repository=target.repository))
    may_pass = not isinstance(error, ValueError) if status is None else status in (408, 409, 412, 429)
    return PushError(reason_of(error), may_pass=may_pass or (status or 0) >= 500)
