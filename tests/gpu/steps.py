"""The steps of a session on a GPU, the most valuable first: `--minutes` takes as many as it has time for.

Those that no device has measured yet come before those that one has (`tests.gpu.schedule.ordered`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.gpu import judges
from tests.gpu.cases import CASES, REFERENCES, RESHARDED, Case
from tests.gpu.commands import Command
from tests.gpu.judges import Judge
from tests.gpu.site import Site

_PLANS = "tests/gpu/plans"
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
_RANK_GIB = 1.5
"""Of a rank of the small model: its CUDA context and NCCL's buffers."""
_ONE_GIB, _LARGE_GIB = 20.0, 64.0


@dataclass(frozen=True, slots=True)
class Step:
    """`seconds` is what it is expected to take on a GPU; `cpu_seconds`, at a small size on a CPU.

    Steps run side by side as `gib` of device memory and `cores` allow; one that `is_alone`, after all these.
    """

    name: str
    shows: str
    commands: tuple[Command, ...]
    judge: Judge
    seconds: float = 40.0
    cpu_seconds: float = 10.0
    gib: float = 2.0
    cores: int = 1
    is_alone: bool = False
    needs: tuple[str, ...] = ()
    """The steps whose files its judge or its commands read."""
    is_preparation: bool = False
    """Whether it is of no use without a step that needs it."""
    least_devices: int = 1
    is_quick: bool = False
    """Whether CI runs it on CPUs with each change."""

    def expected(self, site: Site) -> float:
        return self.seconds if site.is_cuda else self.cpu_seconds

    def limit(self, site: Site) -> float:
        """The seconds after which its commands are ended: a step that hangs must not take the session."""
        return max(60.0, 3 * self.expected(site)) if site.is_cuda else max(300.0, 10 * self.cpu_seconds)


def _run(plan: str, folder: str, *more: str, size: str = "one") -> Command:
    """One rank of a plan, in a run directory of the step."""
    run_dir = ("--run-dir", f"{{out}}/{folder}")
    return Command(("{run}", _path(plan), *run_dir, f"{{{size}}}", "{allow}", *more))


def _path(plan: str) -> str:
    return plan if plan.startswith("{") else f"{_PLANS}/{plan}.plan"


def _ranks(plan: str, folder: str, num_ranks: int, *more: str) -> Command:
    """Several ranks of a plan, on devices of their own or all on one."""
    nodes = ("{python}", "-m", "tests.gpu.nodes", str(num_ranks), "{num_devices}")
    program = (
        "-m",
        "planc.run",
        _path(plan),
        "--run-dir",
        f"{{out}}/{folder}",
        "{backend}",
        "{allow}",
        *more,
    )
    return Command((*nodes, f"{{out}}/{folder}.logs", "--", *program))


def _verify(plan: str, *more: str) -> Command:
    arguments = ("--backend", "{nccl}", "--output-format", "json")
    return Command(("{planc}", "verify", plan, *arguments, *more))


def _planc(command: str, *more: str, plan: str = "one", size: str = "one") -> Command:
    return Command(("{planc}", command, _path(plan), f"{{{size}}}", *more))


def _predictions(plan: str, size: str) -> tuple[Command, ...]:
    estimate = _planc("estimate", "--output-format", "json", plan=plan, size=size)
    return (estimate, _planc("check", "--deep", plan=plan, size=size))


def _case(case: Case) -> Step:
    judge = (judges.near_one_rank if case.is_bfloat16 else judges.equal_to_one_rank)(case.reference)
    settings = ", ".join(case.settings)
    near = "near one rank in float32" if case.is_bfloat16 else "equal to one rank"
    return Step(
        f"nccl-{case.name}",
        f"{case.num_ranks} ranks, {settings}: {near}",
        (_ranks(case.plan, "run", case.num_ranks, *case.words),),
        judge=judge,
        seconds=25 if case.num_ranks == 2 else 27,
        cpu_seconds=10 if case.num_ranks == 2 else 18,
        gib=_RANK_GIB * case.num_ranks,
        cores=case.num_ranks,
        needs=(case.reference,),
    )


def _one_rank(case: Case) -> Step:
    run = ("{run}", _path(case.plan), "--run-dir", "{out}/run", "{backend}", "{allow}", *case.words)
    what = f", {case.name}" if case.name else ""
    return Step(
        f"one-rank-{case.name}" if case.name else "one-rank",
        f"six steps of a small model on one rank{what}, which those of several are compared with",
        (Command(run),),
        judge=judges.trained,
        seconds=18,
        is_quick=not case.name,
    )


def _resharded() -> Step:
    saves = ("--set", "checkpoint.save_every=2 steps", "--set", "checkpoint.mode=async")
    commands = [
        _ranks("small", "run", case.num_ranks, *case.words, *saves, "--stop-after", str(2 * number))
        for number, case in enumerate(RESHARDED, 1)
    ]
    commands.append(Command(("{planc}", "checkpoint", "verify", "{out}/run")))
    meshes = ", ".join(case.name for case in RESHARDED)
    return Step(
        "nccl-resume",
        f"one run with async saves that stops and resumes on other meshes ({meshes}) is equal to one rank",
        tuple(commands),
        judge=judges.equal_to_one_rank("one-rank"),
        seconds=62,
        cpu_seconds=30,
        gib=2 * _RANK_GIB,
        cores=2,
        needs=("one-rank",),
    )


def _drill(name: str, shows: str, *, seconds: float, cpu_seconds: float, judge: Judge) -> Step:
    program = ("{python}", "-m", "tests.gpu.drills", name, "{num_devices}", "240", "{out}", "--")
    saves = ("--set", "checkpoint.mode=async", "--set", "checkpoint.save_every=100_000 steps")
    endless = ("--set", "train.steps=100_000", "--set", "train.tokens_per_step=2048")
    arguments = (f"{_PLANS}/small.plan", "{backend}", "{allow}", *saves, *endless)
    return Step(
        f"nccl-{name}",
        shows,
        (Command((*program, *arguments)),),
        judge=judge,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        gib=2 * _RANK_GIB,
        cores=2,
    )


def _prediction(name: str, plan: str, shows: str, *before: Command) -> Step:
    return Step(
        f"predict-{name}",
        f"planc's estimate and rehearsal of {shows}",
        (*before, *_predictions(plan, "large")),
        judge=judges.predicted,
        seconds=23,
        cpu_seconds=8,
        gib=0.0,
        is_preparation=True,
    )


def _speed(name: str, plan: str, shows: str, *, loop: str | None, goal: float, seconds: float) -> Step:
    by_hand = Command(("{python}", "-m", "tests.gpu.hand", loop or "", "{loop}", "{out}/hand.json"))
    return Step(
        f"speed-{name}",
        f"1.2 B parameters, {shows}: tokens a second beside a loop by hand, peak and time as predicted",
        ((by_hand,) if loop else ()) + (_run(plan, "run", size="large"),),
        judge=judges.beside_by_hand(f"predict-{name}", None if loop else "speed-compiled", goal=goal),
        seconds=seconds,
        cpu_seconds=30,
        gib=_LARGE_GIB,
        cores=8,
        is_alone=True,
        needs=(f"predict-{name}", *(() if loop else ("speed-compiled",))),
    )


def _large(name: str, shows: str, *, size: str, gib: float) -> Step:
    plan = f"{name}-large"
    return Step(
        f"memory-{name}",
        f"{shows}: the peak is as planc estimate and check --deep predict",
        (*_predictions(plan, size), _run(plan, "run", size=size)),
        judge=judges.remembered,
        seconds=150,
        gib=gib,
    )


_TUNED = (
    Command(("{python}", "-c", f"import shutil; shutil.copy('{_PLANS}/large.plan', '{{out}}/large.plan')")),
    Command(
        (
            *("{planc}", "tune", "{out}/large.plan", "{large}", "--gpus", "1", "--gpu", "{gpu}"),
            *("-o", "{out}/tuned.plan"),
        )
    ),
)
STEPS: tuple[Step, ...] = (
    Step(
        "doctor",
        "planc doctor sees the devices, NCCL and the libraries, and nothing that would stop a run",
        (_planc("doctor", "--run-dir", "{out}/run", "--output-format", "json"),),
        judge=judges.doctor,
        seconds=7,
        is_quick=True,
    ),
    *map(_one_rank, REFERENCES),
    *map(_case, CASES),
    _prediction("eager", "large", "1.2 B parameters"),
    _prediction("compiled", "large-compiled", "1.2 B parameters with compiled layers"),
    _speed("eager", "large", "eager", loop="eager", goal=0.99, seconds=55),
    _speed("compiled", "large-compiled", "compiled layers", loop="compiled", goal=0.99, seconds=75),
    _drill(
        "killed",
        "the other rank of a killed one ends with exit code 6, and how soon",
        seconds=23,
        cpu_seconds=15,
        judge=judges.noticed,
    ),
    _drill(
        "stopped",
        "ranks that get SIGTERM save and exit with 75; resumed, they are equal to one rank",
        seconds=50,
        cpu_seconds=25,
        judge=judges.stopped,
    ),
    _resharded(),
    Step(
        "parity",
        "small twins on one device are equal to one process on the CPU, with a resume: Llama, Qwen3, Gemma 3",
        (
            _verify("plans/launch-one-process.plan"),
            _verify("plans/qwen3-1.7b-1-gpu.plan"),
            _verify(f"{_PLANS}/gemma-3.plan"),
        ),
        judge=judges.verified,
        seconds=104,
        cpu_seconds=45,
        gib=4.0,
        cores=2,
    ),
    Step(
        "ring-kernel",
        "each kernel of attention is a softmax of products, forward and backward, and PyTorch takes it",
        (
            Command(
                (
                    *("{python}", "-m", "tests.gpu.kernels"),
                    *("--device", "{device}", "-o", "{out}/kernel.json"),
                )
            ),
        ),
        judge=judges.kernel,
        seconds=30,
        gib=6.0,
    ),
    Step(
        "experts",
        "twelve steps of a mixture of experts: the loss falls, and the load of each expert is counted",
        (Command(("{run}", f"{_PLANS}/experts.plan", "--run-dir", "{out}/run", "{backend}", "{allow}")),),
        judge=judges.balanced,
        seconds=16,
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
        judge=judges.near_plain,
        seconds=27,
        cpu_seconds=12,
    ),
    Step(
        "memory",
        "0.6 B parameters in float32: the allocator's peak is as planc estimate and check --deep predict",
        (*_predictions("one", "whole"), _run("one", "run", size="whole")),
        judge=judges.remembered,
        seconds=60,
        gib=28.0,
    ),
    _large("adapters", "LoRA on 8 B parameters in bfloat16", size="adapters", gib=40.0),
    _large("experts", "a mixture of 7 B parameters in bfloat16", size="mixture", gib=70.0),
    Step(
        "memory-stages",
        "two stages of 0.6 B parameters in bfloat16: the peak of each rank is as planc estimate predicts",
        (
            *_predictions("stages", "stages"),
            _ranks("stages", "run", 2, "{stages}"),
        ),
        judge=judges.stages_remembered,
        seconds=60,
        cpu_seconds=22,
        gib=24.0,
        cores=2,
    ),
    _prediction("recomputed", "large-recomputed", "1.2 B parameters, recomputed"),
    _speed("recomputed", "large-recomputed", "recomputed", loop="recomputed", goal=0.99, seconds=55),
    _prediction("tuned", "{out}/tuned.plan", "1.2 B parameters as planc tune lays them out", *_TUNED),
    _speed("tuned", "{work}/predict-tuned/tuned.plan", "as tuned", loop=None, goal=1.05, seconds=45),
    _prediction("chunks", "large-chunks", "1.2 B parameters, the loss in chunks"),
    _speed("chunks", "large-chunks", "the loss in eight chunks", loop="eager", goal=0.97, seconds=55),
    Step(
        "async-save",
        "saves behind training; a run that stops and resumes has the losses of one that does not",
        (
            _run("one", "whole", *_SAVES),
            _run("one", "stopped", *_SAVES, "--stop-after", "6"),
            _run("one", "stopped", *_SAVES),
            Command(("{planc}", "checkpoint", "verify", "{out}/stopped")),
            Command(("{planc}", "sample", "{out}/stopped", "import ", "--max-new-tokens", "8")),
        ),
        judge=judges.saved,
        seconds=192,
        cpu_seconds=20,
        gib=_ONE_GIB,
    ),
    Step(
        "train",
        "twelve steps in float32: the loss falls, memory is the allocator's, times are the device's events",
        (_run("one", "run"),),
        judge=judges.trained,
        seconds=32,
        gib=_ONE_GIB,
        is_quick=True,
    ),
    Step(
        "offload",
        "parameters in pinned host memory train as those on the device, in less of its memory",
        (_run("one", "plain"), _run("offload", "run")),
        judge=judges.near_plain,
        seconds=89,
        cpu_seconds=20,
        gib=_ONE_GIB,
    ),
    Step(
        "offload-activations",
        "what layers keep for backward in pinned host memory: the same losses, in less device memory",
        (_run("one", "plain"), _run("offloaded", "run")),
        judge=judges.near_plain,
        seconds=61,
        cpu_seconds=20,
        gib=_ONE_GIB,
    ),
    Step(
        "compile",
        "compiled layers train as plain ones",
        (_run("one", "plain"), _run("compiled", "run")),
        judge=judges.near_plain,
        seconds=78,
        cpu_seconds=50,
        gib=_ONE_GIB,
    ),
    Step(
        "profile",
        "a trace has the device's kernels, and a snapshot its allocations",
        (
            replace(_run("one", "run", *_TRACES, "--set", "profile.memory=true"), device="cuda"),
            replace(_run("one", "run", *_TRACES), device="cpu"),
        ),
        judge=judges.profiled,
        seconds=42,
        gib=_ONE_GIB,
    ),
    Step(
        "time",
        "a step in bfloat16 takes as long as the time model expects; planc calibrate narrows the interval",
        (
            _run("one", "run", *_BFLOAT16),
            Command(("{python}", "-m", "tests.gpu.as_device", "{out}/run", "0.008"), device="cpu"),
            Command(
                (
                    *("{planc}", "calibrate", f"{_PLANS}/one.plan", "{out}/run", "{one}", *_BFLOAT16),
                    *("--machine", "{machine}", "-o", "{out}/calibration.json"),
                )
            ),
            _planc("estimate", *_BFLOAT16, "--output-format", "json"),
            _planc(
                "estimate", *_BFLOAT16, "--calibration", "{out}/calibration.json", "--output-format", "json"
            ),
        ),
        judge=judges.timed,
        seconds=50,
        gib=_ONE_GIB,
        cores=8,
        is_alone=True,
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
        judge=judges.raced,
        seconds=60,
        cpu_seconds=40,
        gib=8.0,
        cores=8,
        is_alone=True,
    ),
    Step(
        "parity-2",
        "small twins on two devices are equal to one process: FSDP, tensor parallelism, all-gather over cp",
        (
            _verify("plans/launch-fsdp4.plan"),
            _verify("plans/launch-tp4.plan"),
            _verify("plans/launch-cp4.plan", "--set", "context_parallel.rotate=allgather"),
        ),
        judge=judges.verified,
        seconds=120,
        cpu_seconds=40,
        gib=4.0,
        cores=2,
        least_devices=2,
    ),
)
