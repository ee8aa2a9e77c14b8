"""Whether all ranks write into one folder: known before the model is built, not at the first save."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from planc.runtime.checkpoint_format.commit import make_durable
from planc.runtime.errors import ExitCode, RunError
from planc.runtime.process import Launch

_SIGHT_SECONDS = 5.0
_POLL_SECONDS = 0.1
_PARTING_TIMEOUT = timedelta(seconds=5)


def require_shared_folder(store: Store, launch: Launch, folder: Path) -> None:
    """RunError on every rank, unless what rank 0 writes into the run's folder is there for all of them.

    Rank 0 creates the folder. Every rank must call it.
    """
    if launch.rank == 0:
        store.set("folder/verdict", _offer(store, launch, folder))
    else:
        store.set(f"folder/{launch.rank}", _look(store, folder))
    try:
        verdict = store.get("folder/verdict").decode()
    except (RuntimeError, DistError):
        verdict = "rank 0 did not say in time whether the run's folder is shared"
    if not verdict:
        return
    # The store ends with rank 0, if rank 0 hosts it.
    with contextlib.suppress(RuntimeError, DistError):
        store.set(f"folder/seen/{launch.rank}", "")
        if launch.rank == 0:
            store.wait([f"folder/seen/{rank}" for rank in range(launch.world_size)], _PARTING_TIMEOUT)
    raise RunError(
        verdict,
        code=ExitCode.STORAGE,
        help="give every rank the same --run-dir, which all machines share and may write",
    )


def _offer(store: Store, launch: Launch, folder: Path) -> str:
    """What is wrong, as rank 0 finds out with a file that it shows to the others; empty if nothing is."""
    nonce = folder / f".shared-{uuid.uuid4().hex}"
    try:
        make_durable(folder)
        nonce.touch(exist_ok=False)
    except OSError as error:
        store.set("folder/nonce", "")
        return f"cannot write the run's folder {folder}: {error.strerror}"
    store.set("folder/nonce", nonce.name)
    try:
        for rank in range(1, launch.world_size):
            missed = store.get(f"folder/{rank}").decode()
            if missed:
                return f"rank {rank} does not see what rank 0 writes into {_place(folder)}: it has {missed}"
    except (RuntimeError, DistError):
        return "a rank did not say in time whether it sees the run's folder"
    finally:
        # It has served; a folder that lost it meanwhile is no reason to fail.
        with contextlib.suppress(OSError):
            nonce.unlink()
    return ""


def _look(store: Store, folder: Path) -> str:
    """Empty if rank 0's file is in this rank's folder, else where this rank looked."""
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
