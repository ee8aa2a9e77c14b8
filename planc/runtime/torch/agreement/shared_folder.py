"""Check that all ranks share one run directory, before the model is built rather than at the first save."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from pathlib import Path

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from planc.runtime.checkpoint_format.commit import make_durable
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.files.best_effort import retried
from planc.runtime.process import Launch
from planc.runtime.torch.agreement.rank_0 import part

_SIGHT_SECONDS = 5.0
_POLL_SECONDS = 0.1


def require_shared_folder(store: Store, launch: Launch, folder: Path) -> None:
    """RunError on every rank, unless all of them see what rank 0 writes into the run directory.

    Rank 0 creates the directory. Every rank must call it.
    """
    if launch.rank == 0:
        store.set("folder/verdict", _offer(store, launch, folder))
    else:
        store.set(f"folder/{launch.rank}", _look(store, folder))
    try:
        verdict = store.get("folder/verdict").decode()
    except (RuntimeError, DistError):
        verdict = "rank 0 did not report in time whether the run directory is shared"
    if not verdict:
        return
    part(store, launch, key="folder/seen")
    raise RunError(
        verdict,
        code=ExitCode.STORAGE,
        help="give every rank the same --run-dir, on a file system that all machines share and can write",
    )


def _offer(store: Store, launch: Launch, folder: Path) -> str:
    """The problem that rank 0 finds with a probe file for the others; empty if there is none."""
    nonce = folder / f".shared-{uuid.uuid4().hex}"
    try:
        make_durable(folder)
        # Nobody else has its name: the server may have made it already, and the answer been lost.
        with contextlib.suppress(FileExistsError):
            retried(lambda: nonce.touch(exist_ok=False))
    except OSError as error:
        store.set("folder/nonce", "")
        return f"cannot write the run directory {folder}: {error.strerror}"
    store.set("folder/nonce", nonce.name)
    try:
        for rank in range(1, launch.world_size):
            missed = store.get(f"folder/{rank}").decode()
            if missed:
                return f"rank {rank} does not see what rank 0 writes into {_place(folder)}: it has {missed}"
    except (RuntimeError, DistError):
        return "a rank did not report in time whether it sees the run directory"
    finally:
        # The file has served its purpose; if it is gone already, that is not a failure.
        with contextlib.suppress(OSError):
            nonce.unlink()
    return ""


def _look(store: Store, folder: Path) -> str:
    """Empty if rank 0's file is in this rank's directory, else where this rank looked."""
    name = store.get("folder/nonce").decode()
    deadline = time.monotonic() + _SIGHT_SECONDS
    while name and not _is_there(folder, name):
        if time.monotonic() > deadline:
            return _place(folder)
        time.sleep(_POLL_SECONDS)
    return ""


def _is_there(folder: Path, name: str) -> bool:
    """Listing, unlike a look-up by name, makes a client of NFS ask its server for what is new."""
    with contextlib.suppress(OSError):
        list(folder.absolute().parent.iterdir())
        return any(entry.name == name for entry in folder.iterdir())
    return False


def _place(folder: Path) -> str:
    return f"{folder.absolute()} on {socket.gethostname()}"
