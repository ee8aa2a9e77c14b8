"""Run a step's commands, each in a process group of its own, with a deadline for all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from tests.gpu.site import ROOT, Site

_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.2
_MODELS = (ROOT / "plans" / "models").as_posix()
_SMALL = ("mesh.backend=gloo", "data.sequence_length=256", "train.tokens_per_step=1024")
_SIZES: Mapping[tuple[str, bool], Sequence[str]] = {
    ("one", False): ("mesh.backend=gloo",),
    ("one", True): (
        f'model.hf="{_MODELS}/qwen3-0.6b"',
        "data.sequence_length=1024",
        "data.micro_batch=1",
        "train.tokens_per_step=2048",
        "optimizer.kind.lr=1e-4",
    ),
    ("whole", False): ("mesh.backend=gloo",),
    ("whole", True): (
        f'model.hf="{_MODELS}/qwen3-0.6b"',
        "data.sequence_length=2048",
        "data.micro_batch=1",
        "train.tokens_per_step=8192",
        "train.steps=6",
        "optimizer.kind.lr=1e-4",
        "hardware.gpu={gpu}",
    ),
    ("large", False): (
        f'model.hf="{_MODELS}/tiny-llama"',
        "mesh.backend=gloo",
        "data.sequence_length=64",
        "train.tokens_per_step=128",
        "train.steps=8",
    ),
    ("large", True): (f'model.hf="{_MODELS}/llama-3.2-1b"', "hardware.gpu={gpu}"),
    ("adapters", False): (f'model.hf="{_MODELS}/tiny-llama"', *_SMALL),
    ("adapters", True): ("hardware.gpu={gpu}",),
    ("mixture", False): (f'model.hf="{_MODELS}/tiny-qwen3-moe"', *_SMALL),
    ("mixture", True): ("hardware.gpu={gpu}",),
    ("stages", False): (f'model.hf="{_MODELS}/tiny-llama"', *_SMALL),
    ("stages", True): ("hardware.gpu={gpu}",),
}
"""Settings of plans by whether a GPU runs them: a size that it is worth, or one that CPUs have time for."""
_LOOP = {True: ("llama-3.2-1b", "4096", "18"), False: ("tiny-llama", "64", "8")}
"""Model, length and steps of the loop by hand: as in `large`."""


@dataclass(frozen=True, slots=True)
class Command:
    """`argv` has placeholders: `{out}` in a word, and `{sets}` or another list as a whole word."""

    argv: tuple[str, ...]
    device: str | None = None
    """`cuda` or `cpu`, if it is for one of them only."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of its environment; `{out}` in a value is replaced."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The exit codes of the commands that ran, in order, and the folder with what they wrote."""

    site: Site
    folder: Path
    codes: tuple[int, ...]
    is_timeout: bool = False

    def printed(self, index: int) -> str:
        return (self.folder / f"{index}.out").read_text(encoding="utf-8", errors="replace")

    def last_error(self) -> str:
        """The last line that the last command wrote to stderr."""
        text = (self.folder / f"{len(self.codes) - 1}.err").read_text(encoding="utf-8", errors="replace")
        return (text.strip().splitlines() or ["no message"])[-1][:300]


def expanded(command: Command, site: Site, folder: Path) -> list[str]:
    """The argument list on this site."""
    backend = "nccl" if site.is_cuda else "gloo"
    lists: Mapping[str, Sequence[str]] = {
        "{planc}": (sys.executable, "-m", "planc"),
        "{run}": (sys.executable, "-m", "planc.run"),
        "{torchrun}": (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
        "{allow}": [word for pin in site.allowed for word in ("--allow-release", pin)],
        "{backend}": _sets((f"mesh.backend={backend}",)),
        "{loop}": (f"{_MODELS}/{_LOOP[site.is_cuda][0]}", *_LOOP[site.is_cuda][1:]),
        **{
            f"{{{name}}}": _sets(sizes)
            for (name, on_cuda), sizes in _SIZES.items()
            if on_cuda == site.is_cuda
        },
    }
    words = {"{out}": str(folder), "{work}": str(folder.parent), "{device}": site.device}
    words |= {"{python}": sys.executable, "{nccl}": backend, "{num_devices}": str(site.num_cuda_devices)}
    words["{blocks}"] = "40" if site.is_cuda else "12"
    words |= {"{gpu}": site.gpu or "none", "{machine}": site.names[0]}
    argv = [part for word in command.argv for part in lists.get(word, (word,))]
    for name, value in words.items():
        argv = [word.replace(name, value) for word in argv]
    return argv


def _sets(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def run_commands(
    commands: Sequence[Command],
    site: Site,
    folder: Path,
    *,
    seconds: float,
    threads: int = 1,
    cancelled: Event | None = None,
) -> Ran:
    """Run commands one after the other, up to the first that fails to end in time.

    A later command runs even if an earlier one failed: what it shows is the judge's to say. Setting
    `cancelled` is as a deadline.
    """
    folder.mkdir(parents=True, exist_ok=True)
    deadline, codes = time.monotonic() + seconds, []
    for command in commands:
        if command.device in (None, site.device):
            argv = expanded(command, site, folder)
            log = folder / str(len(codes))
            environment = _environment(site, threads)
            for name, value in command.variables.items():
                environment[name] = value.replace("{out}", str(folder))
            code = _run(argv, environment, log, deadline=deadline, cancelled=cancelled)
            codes.append(code if code is not None else -1)
            if code is None:
                return Ran(site, folder, tuple(codes), is_timeout=True)
    return Ran(site, folder, tuple(codes))


def _environment(site: Site, threads: int) -> dict[str, str]:
    found = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        # Estimates are of an allocator with expandable segments.
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "OMP_NUM_THREADS": str(threads),
    }
    return found if site.is_cuda else {**found, "CUDA_VISIBLE_DEVICES": ""}


def _run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    deadline: float,
    cancelled: Event | None,
) -> int | None:
    """The exit code; None after the deadline, when the whole group has been killed."""
    with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            argv, cwd=ROOT, stdout=out, stderr=err, env=environment, start_new_session=True
        )
        try:
            while time.monotonic() < deadline and not (cancelled and cancelled.is_set()):
                try:
                    return process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    pass
            return None
        finally:
            # Also after Ctrl-C, and for ranks that outlive their launcher.
            _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the command's own group; it is its own session, so nothing else is in it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < deadline and _is_alive(process):
            time.sleep(0.05)
    process.wait()


def _is_alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether the group has a process; the leader's exit is collected on the way."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
