"""What a contributor writes for each row of CONTRIBUTING's table."""

from __future__ import annotations

from planc.inventory.codec import FORMAT_VERSION
from tests.contributing.scratch import Recipe

TRAIN_KEY = Recipe(
    "a train key",
    edits={
        "planc/plan/train.py": (
            (
                "    log_every: int = key(",
                '    frozen_steps: int = key(Int(0), unsaid=0, doc="first steps that change no weight")\n'
                "    log_every: int = key(",
            ),
        ),
        "planc/graph/ops/optimizer.py": (
            (
                '    summary: ClassVar[str] = "Updates parameters by clipped gradients, and clears these."\n',
                '    summary: ClassVar[str] = "Updates parameters by clipped gradients, and clears these."\n'
                '    frozen_steps: Annotated[int, numerics("train.frozen_steps")] = 0\n',
            ),
        ),
        "planc/runtime/torch/training/optimizer.py": (
            (
                "    if not verdict.is_skipped:\n",
                "    if at.step > op.frozen_steps and not verdict.is_skipped:\n",
            ),
        ),
    },
)

_EXAMPLE = """\
model {
  hf = "models/tiny-llama"
}
data {
  source = python_stdlib()
  sequence_length = 256
  micro_batch = 4
}
optimizer {
  kind = adamw(lr = 1e-3, betas = [%s, 0.95])
}
train {
  steps = 10
}
"""
RULE = Recipe(
    "a rule",
    files={
        "planc/checks/optimizer/momentum_low.py": '''"""A first moment that forgets at once."""

from __future__ import annotations

from planc.checks.support.rule import Findings, Subject, reports
from planc.diagnostics import Code
from planc.plan.optimizer import AdamW

CODE = Code("P799", "momentum-low", "the first moment is hardly one")


@reports(CODE)
def check(subject: Subject) -> Findings:
    """One finding at a first beta below 0.5."""
    kind = subject.plan.optimizer.kind
    if isinstance(kind, AdamW) and kind.betas[0] < 0.5:
        yield CODE.at(
            subject.plan.span("optimizer.kind.betas"),
            f"beta1 = {kind.betas[0]:g}",
            help="set the first of `betas` to about 0.9",
        )
''',
        "planc/diagnostics/explain/P799.md": "# P799: momentum-low\n\nAdam's first moment averages few steps."
        f"\n\nThis plan fails:\n\n```plan fails\n{_EXAMPLE % '0.1'}```\n\n"
        f"This plan passes:\n\n```plan passes\n{_EXAMPLE % '0.9'}```\n",
    },
    edits={
        "planc/checks/optimizer/__init__.py": (
            ("    nesterov_without_momentum,\n", "    momentum_low,\n    nesterov_without_momentum,\n"),
            ("    epsilon_vanishes.check,\n", "    epsilon_vanishes.check,\n    momentum_low.check,\n"),
        ),
    },
)

STYLE = Recipe(
    "a tensor-parallel style",
    files={
        "planc/styles/columns.py": '''"""Columns of a linear layer."""

from planc.inventory.schema import LINEAR_KINDS
from planc.styles.style import Style
from planc.vocab import Replicate, Shard

COLUMNS = Style(
    name="columns",
    usual="model.layers.*.mlp.{gate,up}_proj",
    doc="Shards a linear layer's output features.",
    kinds=LINEAR_KINDS,
    parameters={"weight": Shard(0), "bias": Shard(0)},
    computes_on=Replicate(),
    input=Replicate(),
    reads_by_parts=True,
    yields=Shard(-1),
    output=Shard(-1),
    options=("input", "output"),
)
'''
    },
    edits={
        "planc/styles/__init__.py": (
            (
                "from planc.styles.modules",
                "from planc.styles.columns import COLUMNS\nfrom planc.styles.modules",
            ),
            ("= (\n    COLWISE,\n", "= (\n    COLWISE,\n    COLUMNS,\n"),
        )
    },
)

OP = Recipe(
    "an op",
    edits={
        "planc/graph/ops/optimizer.py": (
            (
                "@record(kw_only=True)\nclass StepSchedule(Op):",
                """@record(kw_only=True)
class RoundWeights(Op):
    op: Literal["weights.round"] = "weights.round"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Rounds every weight to a multiple of `unit`."
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.WEIGHTS, Resource.UPDATE), writes=(Resource.WEIGHTS,)
    )
    unit: Annotated[float, numerics("train.steps", "weights rounded to")]


@record(kw_only=True)
class StepSchedule(Op):""",
            ),
        ),
        "planc/runtime/torch/training/optimizer.py": (
            (
                "def step_schedule(",
                """def round_weights(
    run: Run, op: ops.RoundWeights, weights: Weights, update: Update
) -> None:
    with torch.no_grad():
        for parameter in weights.parameters.values():
            parameter.div_(op.unit).round_().mul_(op.unit)


def step_schedule(""",
            ),
        ),
        "planc/runtime/torch/handlers.py": (
            (
                "    ops.StepSchedule: optimizer.step_schedule,\n",
                "    ops.RoundWeights: optimizer.round_weights,\n"
                "    ops.StepSchedule: optimizer.step_schedule,\n",
            ),
        ),
        "planc/lower/lower.py": (
            (
                "    yield ops.StepSchedule(",
                "    yield ops.RoundWeights(unit=0.25)\n    yield ops.StepSchedule(",
            ),
        ),
    },
)

OPTIMIZER = Recipe(
    "an optimizer",
    files={
        "planc/optimizers/radam.py": '''"""RAdam: Adam that waits for its second moment."""

from __future__ import annotations

from typing import ClassVar, Literal

from planc.optimizers.optimizer import Implementation, OptimizerKind
from planc.record import record


@record(kw_only=True)
class RAdam(OptimizerKind):
    kind: Literal["radam"] = "radam"
    betas: tuple[float, float]
    decoupled_weight_decay: bool
    torch_class: ClassVar[str] = "RAdam"
    auto_on_cuda: ClassVar[Implementation] = "foreach"
    auto_on_cpu: ClassVar[Implementation] = "for_loop"
    has_step_counter: ClassVar[bool] = True
    usual_lr: ClassVar[tuple[str, str]] = ("1e-5", "1e-2")
    highest_lr: ClassVar[float] = 0.1

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def num_temporaries(self, *, is_for_loop: bool, decays: bool) -> int:
        return 2
'''
    },
    edits={
        "planc/optimizers/__init__.py": (
            (
                "from planc.optimizers.sgd",
                "from planc.optimizers.radam import RAdam\nfrom planc.optimizers.sgd",
            ),
            ("AnyOptimizer = AdamW |", "AnyOptimizer = RAdam | AdamW |"),
        ),
        "planc/plan/optimizer.py": (
            (
                "@keyed\nclass Cosine:",
                """@keyed
class RAdam:
    lr: float = key(Float(0.0), doc="peak learning rate", example="3e-4")
    betas: tuple[float, float] = key(
        List(Float(0.0, 0.999999), 2), unsaid=(0.9, 0.999), doc="moment decay rates"
    )
    weight_decay: float = key(Float(0.0), unsaid=0.0, doc="weight decay")
    decoupled_weight_decay: bool = key(Bool(), unsaid=False, doc="decay weights as AdamW does")
    implementation: SgdImplementation = key(
        Choice(SgdImplementation), unsaid=SgdImplementation.AUTO, doc=_LOOPS
    )


@keyed
class Cosine:""",
            ),
            ('    "muon": Muon,\n', '    "muon": Muon,\n    "radam": RAdam,\n'),
        ),
    },
)

SOURCE = Recipe(
    "a data source",
    edits={
        "planc/data_sources/kinds.py": (
            (
                "Source = (\n    TextSource\n",
                '''@record
class LinesSource(SourceKind):
    """UTF-8 files, each line a document."""

    patterns: tuple[str, ...]
    kind: Literal["lines"] = field_of(default="lines", kw_only=True)


Source = (
    LinesSource
    | TextSource
''',
            ),
        ),
        "planc/plan/data.py": (
            (
                "@keyed\nclass JsonLines:",
                """@keyed
class Lines:
    patterns: tuple[str, ...] = key(Rest(Path()), doc="globs of text files", positional=True)


@keyed
class JsonLines:""",
            ),
            ('    "text": TextFiles,\n', '    "text": TextFiles,\n    "lines": Lines,\n'),
        ),
        "planc/runtime/data/documents.py": (
            (
                "    match source:\n        case kinds.ChatSource():",
                """    match source:
        case kinds.LinesSource(patterns):
            return (
                Document(f"{name}:{number}", line, len(line.encode()))
                for name in matched_files(patterns, base=base)
                for number, line in enumerate((base / name).read_text().splitlines(), 1)
            )
        case kinds.ChatSource():""",
            ),
            (
                "from planc.runtime.data.records",
                "from planc.runtime.data.files import matched_files\nfrom planc.runtime.data.records",
            ),
        ),
    },
)

SCHEDULE = Recipe(
    "a schedule",
    edits={
        "planc/plan/optimizer.py": (
            (
                "@keyed\nclass Constant:",
                '''@keyed
class Halving:
    """Half the rate after every step."""

    warmup: int | Fraction = key(StepsOrShare(), unsaid=0, doc="linear warm-up")


@keyed
class Constant:''',
            ),
            ('    "constant": Constant,\n', '    "constant": Constant,\n    "halving": Halving,\n'),
        ),
        "planc/runtime/schedule.py": (
            (
                '        case "constant":\n',
                '        case "halving":\n            return 0.5 ** (step - schedule.warmup_steps - 1)\n'
                '        case "constant":\n',
            ),
        ),
        "planc/verify/reference.py": (
            (
                "    if isinstance(schedule, spec.Constant):\n",
                "    if isinstance(schedule, spec.Halving):\n        return 2.0 ** (warmup + 1 - step)\n"
                "    if isinstance(schedule, spec.Constant):\n",
            ),
        ),
    },
)

IMPORTER = Recipe(
    "an importer",
    files={
        "planc/import_configs/kinds/picotron.py": '''"""picotron's JSON."""

from __future__ import annotations

from planc.import_configs import facts
from planc.import_configs.kind import Kind, Row
from planc.import_configs.kinds import reasons as why

PICOTRON = Kind(
    name="picotron",
    title="picotron",
    formats=("json",),
    marks=("distributed.tp_size", "training.total_train_steps"),
    rows=(
        Row("model.name", facts.MODEL),
        Row("distributed.tp_size", facts.TP),
        Row("distributed.dp_size", facts.DP_SIZE),
        Row("training.learning_rate", facts.LR),
        Row("training.total_train_steps", facts.STEPS),
        Row("training.seq_length", facts.SEQUENCE_LENGTH),
        Row("training.micro_batch_size", facts.MICRO_BATCH),
        Row("logging.**", reason=why.LOGS),
    ),
    defaults=((facts.OPTIMIZER, "adamw"),),
)
'''
    },
    edits={
        "planc/import_configs/detect.py": (
            (
                "from planc.import_configs.kinds.torchtitan",
                "from planc.import_configs.kinds.picotron import PICOTRON\n"
                "from planc.import_configs.kinds.torchtitan",
            ),
            ("    *(TORCHTITAN, ACCELERATE,", "    *(PICOTRON, TORCHTITAN, ACCELERATE,"),
        ),
    },
)

INVENTORY_FACT = Recipe(
    "an inventory fact",
    edits={
        "planc/inventory/schema.py": (
            (
                "    positions: Positions = Positions()\n",
                "    positions: Positions = Positions()\n    layer_types: tuple[str, ...] = ()\n"
                '    """The kind of each layer\'s attention, by config.json\'s names."""\n',
            ),
        ),
        "planc/inventory/probe/probe.py": (
            (
                "        positions=positions,\n",
                "        positions=positions,\n"
                "        layer_types=tuple(config.to_dict().get('layer_types') or ()),\n",
            ),
        ),
        "planc/inventory/codec.py": (
            (f"FORMAT_VERSION = {FORMAT_VERSION}\n", f"FORMAT_VERSION = {FORMAT_VERSION + 1}\n"),
        ),
    },
)
