"""Fetches a model of the Hugging Face hub into the hub's own cache, at one commit.

Only weights in safetensors, their index, JSON files and a tokenizer's are fetched: no code, and nothing
pickled. Whichever process comes first fetches; the others on its machine wait for it by a lock of the file
system, which ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from planc.hub.names import HubModel, hub_cache
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.model_files import refuse_quantized, weight_files, weight_names
from planc.runtime.run_directory.export_folder import COMPANIONS

Say = Callable[[str], None]

_COPY_HELP = "copy the hub's cache here from a machine that has the model"
_TOKEN_HELP = "ask for access on the model's page, and set HF_TOKEN to a token that has it"


def require_model(model: HubModel, *, with_weights: bool, say: Say) -> Path:
    """The folder with a model's files, fetched where it lacks some; `say` hears of what takes time.

    Without weights only JSON and tokenizer files are fetched. RunError where something cannot be had; with
    HF_HUB_OFFLINE nothing is fetched.
    """
    lacking = _lacks(model.folder, with_weights=with_weights)
    if lacking is None:
        return model.folder
    if _is_offline():
        raise RunError(
            f"{model.short} is not all there: {lacking}; and HF_HUB_OFFLINE forbids to fetch it",
            help=f"unset HF_HUB_OFFLINE, or {_COPY_HELP}",
        )
    # Without the library there is nothing to wait for.
    _library(model)
    with _only_one(model, say=say):
        # Another process may have fetched it meanwhile.
        if _lacks(model.folder, with_weights=with_weights) is not None:
            _fetch(model, with_weights=with_weights, say=say)
    # Without a connection the library is content with whatever part of a model it has.
    lacking = _lacks(model.folder, with_weights=with_weights)
    if lacking is not None:
        raise RunError(
            f"{model.short} is not all there, and what is missing could not be fetched: {lacking}",
            help="check the connection, and that the commit has a config.json and weights in safetensors",
        )
    return model.folder


def _lacks(folder: Path, *, with_weights: bool) -> str | None:
    """What is missing in a model's folder, None where nothing is."""
    if not (folder / "config.json").is_file():
        return f"there is no {folder / 'config.json'}"
    if not with_weights:
        return None
    try:
        weight_files(folder)
    except RunError as error:
        return error.message
    return None


@contextmanager
def _only_one(model: HubModel, *, say: Say) -> Iterator[None]:
    """Lets one process of this machine in at a time."""
    # It comes with the hub's library, and knows the locks of every system.
    from filelock import FileLock, Timeout

    path = hub_cache() / ".locks" / f"planc--{model.repository.replace('/', '--')}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        with contextlib.suppress(Timeout):
            lock.acquire(blocking=False)
    except OSError as error:
        raise RunError(
            f"cannot write the hub's cache, {hub_cache()}: {error.strerror}",
            code=ExitCode.STORAGE,
            help="set HF_HOME to a folder that can be written",
        ) from error
    if not lock.is_locked:
        say(f"waiting for another process that fetches {model.short}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(model: HubModel, *, with_weights: bool, say: Say) -> None:
    say(f"fetching {'the weights' if with_weights else 'the config'} of {model.short} into {hub_cache()}")
    # Names of files in subfolders match too, but for what is ignored.
    _download(model, names=["*.json", *map(escape, COMPANIONS)])
    if with_weights:
        refuse_quantized(model.folder)
        _download(model, names=[escape(name) for name in weight_names(model.folder)])


def _download(model: HubModel, *, names: Sequence[str]) -> None:
    library: Any = _library(model)
    try:
        library.snapshot_download(
            model.repository,
            revision=model.revision,
            cache_dir=str(hub_cache()),
            allow_patterns=list(names),
            ignore_patterns=["*/*"],
        )
    # The library, its client and the file system have errors of many kinds.
    except Exception as error:
        raise _failure(model, error, library.errors) from error


def _failure(model: HubModel, error: Exception, errors: Any) -> RunError:
    if isinstance(error, errors.GatedRepoError):
        return RunError(f"{model.repository} is open only to those who asked for it", help=_TOKEN_HELP)
    if isinstance(error, errors.RepositoryNotFoundError):
        return RunError(
            f"the hub shows no model {model.repository}: there is none, or it is private",
            help=f"check the name; for a private one {_TOKEN_HELP}",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return RunError(
            f"{model.repository} has no commit {model.revision}",
            help="the repository's page of commits shows them all",
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return RunError(
            f"the hub cannot be reached, and {model.short} is not all there, in {hub_cache()}",
            help=f"check the connection, or {_COPY_HELP}",
        )
    return RunError(
        f"cannot fetch {model.short}: {_reason(error)}",
        code=ExitCode.STORAGE if isinstance(error, OSError) else ExitCode.INPUT,
        help="check the connection and the room in the hub's cache, and start again: it goes on where it was",
    )


def _is_offline() -> bool:
    """As the library reads it."""
    values = (os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value in ("1", "ON", "YES", "TRUE") for value in values)


def _reason(error: Exception) -> str:
    """An error's first line, without the token, whatever may have put it there."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    return text.replace(token, "...") if token else text


def _library(model: HubModel) -> Any:
    try:
        # Lazy: a model in a folder needs no library for it.
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise RunError(
            f"fetching {model.short} needs the huggingface_hub library",
            help="install it: pip install 'planc[run]'",
        ) from error
    return huggingface_hub
