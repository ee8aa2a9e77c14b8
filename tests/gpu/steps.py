"""The steps of a first hour on a GPU, in order: cheap ones that find most first, long ones last."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.gpu import judges
from tests.gpu.commands import Command
from tests.gpu.judges import Judge

_PLANS = "tests/gpu/plans"
_DOCS = 'data.source=text("../../../docs/**/*.md")'
_SAVES = (
    "--set",
    "checkpoint.save_every=4 steps",
    "--set",
    "checkpoint.mode=async",
    "--set",
    "checkpoint.keep_last=1",
)
_ON_CPU = ("--set", "mesh.backend=gloo")
_TRACES = ("--set", "profile.first_step=2", "--set", "profile.last_step=3")
_BFLOAT16 = ("--set", "model.dtype=bfloat16", "--set", "hardware.gpu={gpu}")
"""Not `--gpu`, which planc run does not take."""


@dataclass(frozen=True, slots=True)
class Step:
    """`minutes` are for all commands together. It is skipped with fewer than `least_devices`."""

    name: str
    shows: str
    commands: tuple[Command, ...]
    minutes: float
    judge: Judge
    least_devices: int = 1
    is_quick: bool = False
    """Whether CI runs it on CPUs."""


def _run(plan: str, folder: str, *more: str) -> Command:
    """One rank of a plan, in a run directory of the step."""
    run_dir = ("--run-dir", f"{{out}}/{folder}")
    return Command(("{run}", f"{_PLANS}/{plan}.plan", *run_dir, "{sets}", "{allow}", *more))


def _two_ranks(plan: str, folder: str) -> Command:
    run_dir = ("--run-dir", f"{{out}}/{folder}")
    return Command(
        ("{torchrun}", "2", "-m", "planc.run", f"{_PLANS}/{plan}.plan", *run_dir, "{sets}", "{allow}")
    )


def _verify(plan: str, *more: str) -> Command:
    arguments = ("--backend", "{nccl}", "--output-format", "json")
    return Command(("{planc}", "verify", f"plans/{plan}.plan", *arguments, *more))


def _planc(command: str, *more: str) -> Command:
    return Command(("{planc}", command, f"{_PLANS}/one.plan", "{sets}", *more))


STEPS: tuple[Step, ...] = (
    Step(
        "doctor",
        "planc doctor sees the devices, NCCL and the libraries, and nothing that would stop a run",
        (_planc("doctor", "--run-dir", "{out}/run", "--output-format", "json"),),
        minutes=3,
        judge=judges.doctor,
        is_quick=True,
    ),
    Step(
        "ring-kernel",
        "each kernel of attention is a softmax of products, forward and backward, and PyTorch takes it",
        (
            Command(
                ("{python}", "-m", "tests.gpu.kernels", "--device", "{device}", "-o", "{out}/kernel.json")
            ),
        ),
        minutes=3,
        judge=judges.kernel,
    ),
    Step(
        "train",
        "twelve steps in float32: the loss falls, memory is the allocator's, times are the device's events",
        (_run("one", "run"),),
        minutes=5,
        judge=judges.trained,
        is_quick=True,
    ),
    Step(
        "experts",
        "twelve steps of a mixture of experts: the loss falls, and the load of each expert is counted",
        (_run("experts", "run"),),
        minutes=3,
        judge=judges.balanced,
    ),
    Step(
        "parity",
        "small twins on one device are equal to one process on the CPU, with a resume: Llama, Qwen3, Gemma 3",
        (
            _verify("launch-one-process"),
            _verify("qwen3-1.7b-1-gpu"),
            _verify("gemma-3-1b", "--set", "mesh.dp_shard=1"),
        ),
        minutes=8,
        judge=judges.verified,
    ),
    Step(
        "async-save",
        "saves behind training; a run that stops and resumes has the losses of one that does not",
        (
            _run("one", "whole", *_SAVES),
            _run("one", "stopped", *_SAVES, "--stop-after", "6"),
            _run("one", "stopped", *_SAVES),
            Command(("{planc}", "checkpoint", "verify", "{out}/stopped")),
        ),
        minutes=8,
        judge=judges.saved,
    ),
    Step(
        "memory",
        "the peak of the allocator is as planc estimate and planc check --deep predict",
        (
            _planc("estimate", "--output-format", "json"),
            _planc("check", "--deep"),
            _run("one", "run"),
        ),
        minutes=8,
        judge=judges.remembered,
    ),
    Step(
        "profile",
        "a trace has the device's kernels, and a snapshot its allocations",
        (
            replace(_run("one", "run", *_TRACES, "--set", "profile.memory=true"), device="cuda"),
            replace(_run("one", "run", *_TRACES), device="cpu"),
        ),
        minutes=5,
        judge=judges.profiled,
    ),
    Step(
        "offload",
        "parameters in pinned host memory train as those on the device, in less of its memory",
        (_run("one", "plain"), _run("offload", "run")),
        minutes=8,
        judge=judges.near_plain,
    ),
    Step(
        "dropout",
        "dropout draws the masks that the CPU draws: the losses of both are near",
        (
            Command(
                ("{run}", f"{_PLANS}/dropout.plan", "--run-dir", "{out}/plain", *_ON_CPU, "{allow}"),
            ),
            Command(("{run}", f"{_PLANS}/dropout.plan", "--run-dir", "{out}/run", "{backend}", "{allow}")),
        ),
        minutes=5,
        judge=judges.near_plain,
    ),
    Step(
        "compile",
        "compiled layers train as plain ones",
        (_run("one", "plain"), _run("compiled", "run")),
        minutes=8,
        judge=judges.near_plain,
    ),
    Step(
        "race",
        "tokens a second against examples/by_hand.py, in turns in one process, with 1 and 59 M parameters",
        (
            Command(
                (
                    *("{python}", "-m", "tests.bench.throughput", "--only", "1 rank", "by_hand"),
                    *("--blocks", "{blocks}", "--device", "{device}", "-o", "{out}/race.json"),
                )
            ),
        ),
        minutes=8,
        judge=judges.raced,
    ),
    Step(
        "time",
        "a step in bfloat16 takes as long as the time model expects; planc calibrate narrows the interval",
        (
            _run("one", "run", *_BFLOAT16),
            Command(("{python}", "-m", "tests.gpu.as_device", "{out}/run", "0.008"), device="cpu"),
            Command(
                (
                    *("{planc}", "calibrate", f"{_PLANS}/one.plan", "{out}/run", "{sets}", *_BFLOAT16),
                    *("--machine", "{machine}", "-o", "{out}/calibration.json"),
                )
            ),
            _planc("estimate", *_BFLOAT16, "--output-format", "json"),
            _planc(
                "estimate", *_BFLOAT16, "--calibration", "{out}/calibration.json", "--output-format", "json"
            ),
        ),
        minutes=8,
        judge=judges.timed,
    ),
    Step(
        "parity-2",
        "small twins on two devices are equal to one process: FSDP, tensor parallelism, all-gather over cp",
        (
            _verify("launch-fsdp4"),
            _verify("launch-tp4"),
            _verify("launch-cp4", "--set", "context_parallel.rotate=allgather"),
        ),
        minutes=8,
        judge=judges.verified,
        least_devices=2,
    ),
    Step(
        "nccl",
        "torchrun starts two ranks; FSDP in bfloat16 trains near one rank in float32",
        (_run("one", "plain"), _two_ranks("two", "run")),
        minutes=6,
        judge=judges.near_plain_bfloat16,
        least_devices=2,
    ),
    Step(
        "ring",
        "ring attention over two devices trains near one rank in float32",
        (_run("one", "plain"), _two_ranks("ring", "run")),
        minutes=6,
        judge=judges.near_plain_bfloat16,
        least_devices=2,
    ),
)
