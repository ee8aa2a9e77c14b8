"""The faults of a training run, and the immediate checks of planc's response."""

from __future__ import annotations

import random
import resource
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from planc.runtime.checkpoint_format.layout import committed_steps, step_directory
from tests.soak.launches import Launch, send

STORAGE, COMMUNICATION, CORRUPT, PREEMPTED = 4, 6, 7, 75
Injection = Callable[[Launch, random.Random], str]
"""Injects a fault into a launch and sees it end; what is wrong with its end, if anything is."""


def _status_problem(launch: Launch, *codes: int) -> str:
    """Unless status.json has one of the codes, or the run had come to its end before the fault."""
    status = launch.run.status()
    if status.get("state") == "done" or status.get("exit_code") in codes:
        return ""
    return f"status.json has {status}"


def _ended(launch: Launch, *codes: int) -> str:
    return _status_problem(launch, *codes) if launch.end() else "had to be killed, 90 s later"


def _some(launch: Launch, chance: random.Random) -> int:
    return chance.randrange(launch.run.num_ranks)


def kill_rank(launch: Launch, chance: random.Random) -> str:
    """SIGKILL of a rank. Rank 0, which writes the status, writes none as it dies."""
    rank = _some(launch, chance)
    launch.signal(signal.SIGKILL, rank)
    return _ended(launch, COMMUNICATION) if rank else ("" if launch.end() else "the others hang")


def kill_all(launch: Launch, chance: random.Random) -> str:
    """SIGKILL of torchrun and of all ranks."""
    launch.kill()
    return ""


def terminate(launch: Launch, chance: random.Random) -> str:
    """SIGTERM to torchrun."""
    send(launch.agent.pid, signal.SIGTERM)
    return _ended(launch, PREEMPTED)


def warn_rank(launch: Launch, chance: random.Random) -> str:
    """SIGUSR1 to a rank."""
    launch.signal(signal.SIGUSR1, _some(launch, chance))
    return _ended(launch, PREEMPTED)


def stop_rank(launch: Launch, chance: random.Random) -> str:
    """SIGSTOP of a rank; SIGKILL once the others have given it up."""
    rank = _some(launch, chance)
    stopped, others = launch.ranks(), launch.run.num_ranks - 1
    launch.signal(signal.SIGSTOP, rank)
    gave_up = launch.wait_until(lambda: len(_alive(stopped)) <= launch.run.num_ranks - others)
    if rank in stopped:
        send(stopped[rank], signal.SIGKILL)
    problem = _ended(launch, COMMUNICATION) if rank else ("" if launch.end() else "the others hang")
    return problem or ("" if gave_up else "the others never gave it up")


def refuse_write(launch: Launch, chance: random.Random) -> str:
    """No room for the last rank's next shard: a limit on its files, as small as a full device."""
    rank = launch.run.num_ranks - 1
    pid = launch.ranks().get(rank)
    if pid is None:
        return "" if launch.end() else "hangs"
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    launch.wait_until(lambda: False)
    return _ended(launch, STORAGE)


def kill_in_resume(launch: Launch, chance: random.Random) -> str:
    """SIGKILL of all, then of a rank of the next launch as it starts."""
    launch.kill()
    again = Launch(launch.run, log=launch.log.with_suffix(".resume.log"))
    again.wait_until(lambda: "model: " in again.said())
    time.sleep(chance.uniform(0, 0.5))
    again.signal(signal.SIGKILL, _some(again, chance))
    return "" if again.end() else "had to be killed, 90 s later"


def flip_bit(launch: Launch, chance: random.Random) -> str:
    """SIGKILL of all, and one bit of the newest step flipped. The refused step is put aside, as one would."""
    launch.kill()
    run = launch.run
    steps = committed_steps(run.checkpoints)
    if not steps:
        return ""
    newest = step_directory(run.checkpoints, step=steps[-1])
    _flip(newest, chance)
    again = Launch(run, log=launch.log.with_suffix(".flipped.log"))
    problem = _ended(again, CORRUPT)
    trained = "" if not again.trains() else "trained on a damaged checkpoint"
    newest.rename(run.folder / f"{newest.name}.damaged-{time.time_ns()}")
    return problem or trained


INJECTIONS: Mapping[str, Injection] = {
    "SIGKILL of a rank": kill_rank,
    "SIGKILL of torchrun and all ranks": kill_all,
    "SIGTERM to torchrun": terminate,
    "SIGUSR1 to a rank": warn_rank,
    "SIGSTOP of a rank": stop_rank,
    "no room for a shard": refuse_write,
    "SIGKILL as a run resumes": kill_in_resume,
    "a bit flipped in the newest step": flip_bit,
}


def _alive(pids: Mapping[int, int]) -> list[int]:
    """Those that run, or are stopped; torchrun may not have collected the others yet."""
    found = []
    for pid in pids.values():
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in ("Z", "X"):
            found.append(pid)
    return found


def _flip(directory: Path, chance: random.Random) -> None:
    path = chance.choice(sorted(directory.iterdir()))
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
