"""Download a model from the Hugging Face Hub into the Hub's own cache, at one commit.

Only safetensors weights, their index, JSON files and tokenizer files are downloaded: no code, and no pickles.
The first process on a machine downloads; the others wait for a file lock, which ends with the process that
holds it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from planc.hub.names import HubModel, hub_cache
from planc.hub.tokenizer_files import PATTERNS
from planc.runtime.errors import STOPS, ExitCode, RunError
from planc.runtime.model_files import (
    preferred_name,
    refuse_unreadable,
    weight_files,
    weight_names,
)

Say = Callable[[str], None]

_COPY_HELP = "copy the Hub cache from a machine that has the model"
_TOKEN_HELP = "request access on the model's page, and set HF_TOKEN to a token with that access"


def require_model(model: HubModel, *, with_weights: bool, say: Say) -> Path:
    """The directory with a model's files, downloaded if missing; `say` prints what takes time.

    Without weights only JSON and tokenizer files are downloaded. RunError if a file is unavailable; with
    HF_HUB_OFFLINE nothing is downloaded.
    """
    lacking = _lacks(model.folder, with_weights=with_weights)
    if lacking is None:
        return model.folder
    if is_offline():
        raise RunError(
            f"{model.short} is incomplete in the Hub cache ({lacking}), and HF_HUB_OFFLINE forbids downloads",
            help=f"unset HF_HUB_OFFLINE, or {_COPY_HELP}",
        )
    # Without the library there is nothing to wait for.
    hub_library(f"downloading {model.short}")
    with _only_one(model, say=say):
        # Another process may have downloaded it meanwhile.
        if _lacks(model.folder, with_weights=with_weights) is not None:
            _fetch(model, with_weights=with_weights, say=say)
    # Without a connection the library accepts whatever part of a model it has.
    lacking = _lacks(model.folder, with_weights=with_weights)
    if lacking is not None:
        raise RunError(
            f"{model.short} is still incomplete after the download: {lacking}",
            help="check the connection, and that the commit has a config.json and weights in safetensors",
        )
    return model.folder


def _lacks(folder: Path, *, with_weights: bool) -> str | None:
    """Describe what is missing in a model's directory; None if it is complete."""
    if not (folder / "config.json").is_file():
        return f"{folder / 'config.json'} is missing"
    if not with_weights:
        return None
    try:
        weight_files(folder)
    except RunError as error:
        return error.message
    return None


@contextmanager
def _only_one(model: HubModel, *, say: Say) -> Iterator[None]:
    """Let in one process of this machine at a time."""
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
            help="set HF_HOME to a writable directory",
        ) from error
    if not lock.is_locked:
        say(f"waiting for another process to download {model.short}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(model: HubModel, *, with_weights: bool, say: Say) -> None:
    say(f"downloading {'the weights' if with_weights else 'the config'} of {model.short} into {hub_cache()}")
    # Files in subdirectories match too, except for the ignored patterns.
    _download(model, names=["*.json", *PATTERNS])
    if with_weights:
        refuse_unreadable(model.folder)
        # As in transformers, a whole file comes before what an index names.
        _download(model, names=[escape(preferred_name(model.folder))])
        _download(model, names=[escape(name) for name in weight_names(model.folder)])


def _download(model: HubModel, *, names: Sequence[str]) -> None:
    library: Any = hub_library(f"downloading {model.short}")
    try:
        library.snapshot_download(
            model.repository,
            revision=model.revision,
            cache_dir=str(hub_cache()),
            allow_patterns=list(names),
            ignore_patterns=["*/*"],
        )
    # The library, its client and the file system have errors of many kinds.
    except STOPS:
        raise
    except BaseException as error:
        raise _failure(model, error, library.errors) from error


def _failure(model: HubModel, error: BaseException, errors: Any) -> RunError:
    if isinstance(error, errors.GatedRepoError):
        return RunError(
            f"{model.repository} is a gated model, and this token has no access to it", help=_TOKEN_HELP
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return RunError(
            f"the Hub has no public model {model.repository}: it does not exist, or it is private",
            help=f"check the name; for a private model, {_TOKEN_HELP}",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return RunError(
            f"{model.repository} has no commit {model.revision}",
            help="choose one of the commits that the repository's page lists",
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return RunError(
            f"the Hub can't be reached, and {model.short} is incomplete in {hub_cache()}",
            help=f"check the connection, or {_COPY_HELP}",
        )
    return RunError(
        f"cannot download {model.short}: {reason_of(error)}",
        code=ExitCode.STORAGE if isinstance(error, OSError) else ExitCode.INPUT,
        help="check the connection and the free space of the Hub cache, and run again: the download resumes",
    )


def is_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the library takes itself to be offline."""
    values = (environment.get(name, "").upper() for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value in ("1", "ON", "YES", "TRUE") for value in values)


def has_token() -> bool:
    """Whether the library has a token, by its own rules: a variable, or the file of `hf auth login`."""
    try:
        return hub_library("a token").get_token() is not None
    except RunError:
        return False


def reason_of(error: BaseException) -> str:
    """An error's first line, with the token removed wherever it came from."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    token = hub_library("a request to the Hub").get_token()
    return text.replace(token, "...") if token else text


def hub_library(what: str) -> Any:
    """The Hub's library; RunError if it is not installed, which `what` needs."""
    try:
        # Lazy: a model in a local directory does not need this library.
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise RunError(
            f"{what} needs the huggingface_hub library",
            help="install it: pip install 'planc[run]'",
        ) from error
    return huggingface_hub
