"""The training that a plan defines, without its ranks: how much of it is run, and on which small data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planc.data_sources.kinds import (
    ImageChatSource,
    JsonLinesSource,
    LabeledSource,
    MappedSource,
    MatchedSource,
    PairsSource,
)
from planc.extend.reference import Extension
from planc.graph import ops
from planc.graph.graph import Graph
from planc.graph.ops import CompileModules, OpenData
from planc.inventory.routers import routers
from planc.plan.adapter import Lora
from planc.plan.balance import Layers, Over, balance_loss, bias_update, is_balanced
from planc.plan.bind import BoundPlan
from planc.plan.data import Labeled, TooLong
from planc.plan.facts import gradient_accumulation
from planc.plan.optimizer import Muon, Optimizer, OwnSchedule, Schedule, WarmupStableDecay
from planc.plan.settle import in_steps
from planc.plan.task import AnyTask, Embedding, ImageTextToText, MaskedLm, Seq2SeqLm
from planc.plan.train import Contrastive, CrossEntropy, Distillation, Preference
from planc.runtime.data.spec import DataSpec, Masking
from planc.verify.images import IMAGE_ROWS, small_images
from planc.verify.losses import LOWEST_EPS_OF_VECTORS, LOWEST_TEMPERATURE, MAX_TOP_K, PAIRS, SMALL_GROUP
from planc.verify.twin import Renaming
from planc.vocab import NO_HEAD, Classes, DType, Pooling, Task

NUM_STEPS = 3
SCHEDULE_STEPS, MAX_WARMUP_STEPS = 10, 2
DECAY_STEPS = SCHEDULE_STEPS - MAX_WARMUP_STEPS
"""The steps of a schedule's decay: its plateau ends within the steps that are run."""
SEQUENCE_LENGTH = 64
MAX_RANKS = 2
"""The largest size of a mesh dim."""
MAX_MICRO_BATCH, MAX_MICRO_STEPS = 2, 2
LOWEST_RATE = 1e-2
"""Below it, three updates would be lost in the rounding of the weights."""
LOWEST_EPS = 1e-6
"""Below it, AdamW would turn the rounding errors of the smallest gradients into full updates."""
HIGHEST_EMA_DECAY = 0.5
"""Above it, averages would hardly move in three steps."""
SMALL_BLOCK = 4
"""The block of 8-bit moments: ranks hold whole blocks of a small model's rows."""
MODEL, CORPUS = "model", "corpus.jsonl"


AnyLoss = Extension | CrossEntropy | Contrastive | Preference | Distillation


@dataclass(frozen=True, slots=True)
class Balance:
    """The settings that balance experts; a coefficient of 0 for what the plan leaves out."""

    layers: tuple[tuple[str, str, str], ...]
    """Each router, the experts that it chooses from, and its bias if that is moved."""
    coefficient: float
    num_sequences: int
    """The sequences of a set of tokens."""
    pooled: bool
    z_loss: float
    update: float = 0.0
    """The step of the biases."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that one process needs to train by the plan. `base` is the base of relative paths."""

    base: Path
    model: str
    seed: int
    dtype: str
    data: DataSpec
    global_batch: int
    """Sequences per step."""
    optimizer: Optimizer
    schedule: Schedule
    total_steps: int
    """The length of the schedule; `num_steps` are run."""
    num_steps: int
    clip_grad_norm: float | None
    ema_decay: float | None = None
    """The share that moving averages of weights keep of themselves, if there are any."""
    decays: tuple[tuple[str, float], ...] = ()
    """Weight decay by parameter, if a group sets it."""
    rates: tuple[tuple[str, float], ...] = ()
    """Peak learning rate by parameter, if a group sets one."""
    frozen: tuple[str, ...] = ()
    """The parameters that are not trained."""
    matrices: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The parameters that Muon updates, and the rows of each part of those that fuse several."""
    balance: Balance | None = None
    capacity: float | None = None
    """A multiple of an equal share of a sequence's tokens."""
    capped: tuple[str, ...] = ()
    """The modules of experts with a capacity."""
    loss: AnyLoss | None = None
    """None for plain cross entropy."""
    pooling: Pooling | None = None
    """An embedding model's."""
    own: Extension | None = None
    """The model class of the plan's own code, in the place of transformers'."""
    first_position: int = 0
    adapted: tuple[str, ...] = ()
    """The linear layers and modules of experts with adapters."""
    adapter: Lora | None = None
    quantized: tuple[str, ...] = ()
    """The frozen linear layers that are stored in 4 bits, with a scale for each `block` of inputs."""
    block: int = 0


def recipe_of(bound: BoundPlan, renamed: Renaming, *, folder: Path, dtype: DType) -> Recipe:
    """The recipe from the plan, not from its graph, with small batches and a short schedule."""
    plan = bound.plan
    dp_size = min(plan.mesh.dp_replicate, MAX_RANKS) * min(plan.mesh.dp_shard, MAX_RANKS)
    micro_batch = small_micro_batch(plan.data.micro_batch, plan.train.loss)
    micro_steps = min(gradient_accumulation(plan), MAX_MICRO_STEPS)
    optimizer = plan.optimizer
    peak = optimizer.kind.lr
    own = bound.learning_rates.items()
    rates = ((renamed.of((name,)), raised_rate(lr, peak=peak)) for name, (lr, _) in own)
    decays = ((renamed.of((name,)), decay) for name, (decay, _) in bound.weight_decay.items())
    return Recipe(
        base=folder,
        model=MODEL,
        seed=plan.model.seed,
        dtype=dtype.value,
        data=DataSpec(
            small_source(
                in_pairs=isinstance(plan.train.loss, Preference),
                classes=bound.inventory.classes,
                by_pair=any(isinstance(rows, Labeled) and rows.pair for _, rows in plan.data.training()),
                has_targets=isinstance(plan.model.task, Seq2SeqLm),
                has_images=isinstance(plan.model.task, ImageTextToText),
            ),
            tokenizer="bytes",
            sequence_length=min(SEQUENCE_LENGTH, plan.data.sequence_length),
            shuffle_seed=plan.data.shuffle_seed,
            packing=plan.data.packing.value,
            too_long=(plan.data.too_long or TooLong.TRUNCATE).value,
            masking=_masking(plan.model.task),
            token_types=bound.inventory.token_types,
            images=small_images(bound, MODEL),
        ),
        global_batch=micro_batch * micro_steps * dp_size,
        optimizer=_steadied(optimizer.kind, peak=peak, loss=plan.train.loss),
        schedule=_shortened(optimizer.schedule, steps=plan.train.steps),
        total_steps=SCHEDULE_STEPS,
        num_steps=NUM_STEPS,
        clip_grad_norm=optimizer.clip_grad_norm,
        ema_decay=None if plan.train.ema_decay is None else min(plan.train.ema_decay, HIGHEST_EMA_DECAY),
        decays=tuple((name, decay) for names, decay in decays for name in names),
        rates=tuple((name, lr) for names, lr in rates for name in names),
        frozen=renamed.of(tuple(bound.frozen)),
        capacity=plan.expert_parallel.capacity if plan.expert_parallel else None,
        capped=renamed.of(tuple(bound.capped)),
        loss=_small_loss(plan.train.loss),
        pooling=plan.model.task.pooling if isinstance(plan.model.task, Embedding) else None,
        own=plan.model.architecture,
        first_position=bound.inventory.positions.first,
        adapted=renamed.of(tuple(bound.adapted)),
        adapter=plan.adapter.kind if plan.adapter else None,
        balance=balance_of(bound, renamed, micro_batch, global_batch=micro_batch * micro_steps * dp_size),
    )


def small_source(
    *, in_pairs: bool, by_pair: bool, classes: Classes | None, has_targets: bool, has_images: bool = False
) -> JsonLinesSource | PairsSource | LabeledSource | MatchedSource | MappedSource | ImageChatSource:
    """The data of the small model: texts, pairs, or texts with targets, with classes or those of their words.

    Two texts have one class if it is `by_pair`.
    """
    others = ("label", "words", "labels")
    if has_images:
        return ImageChatSource((IMAGE_ROWS,), template="none")
    if has_targets:
        return MappedSource((CORPUS,), input="text", target="pair", ignore=others)
    if classes == NO_HEAD:
        return MatchedSource((CORPUS,), query="text", positive="pair", ignore=others)
    if classes is not None:
        if classes.task is Task.TOKEN_CLASSIFICATION:
            return LabeledSource((CORPUS,), classes.labels, field="words", label="labels", by_word=True)
        return LabeledSource((CORPUS,), classes.labels, pair="pair" if by_pair else None)
    return PairsSource((PAIRS,), template="none") if in_pairs else JsonLinesSource((CORPUS,))


def small_micro_batch(micro_batch: int, loss: AnyLoss | None) -> int:
    """Few sequences, or one group of pairs."""
    return 2 * SMALL_GROUP if isinstance(loss, Contrastive) else min(micro_batch, MAX_MICRO_BATCH)


def _small_loss(loss: AnyLoss) -> AnyLoss:
    if isinstance(loss, Contrastive):
        return replace(loss, group=SMALL_GROUP, temperature=max(loss.temperature, LOWEST_TEMPERATURE))
    return replace(loss, top_k=min(loss.top_k, MAX_TOP_K)) if isinstance(loss, Distillation) else loss


def _masking(task: AnyTask) -> Masking | None:
    if not isinstance(task, MaskedLm):
        return None
    return Masking(task.probability, task.mask_replace, task.random_replace)


def balance_of(bound: BoundPlan, renamed: Renaming, micro_batch: int, *, global_batch: int) -> Balance | None:
    """The balance of a plan's experts, if anything balances them."""
    plan, inventory = bound.plan, bound.inventory
    if not is_balanced(plan, inventory):
        return None
    loss = balance_loss(plan, inventory)
    sizes = {Over.SEQUENCE: 1, Over.MICRO_BATCH: micro_batch, Over.STEP: global_batch}
    update = bias_update(plan)
    layers = (
        renamed.of((router.fqn, router.experts, *((router.bias,) if router.bias and update else ())))
        for router in routers(inventory)
    )
    return Balance(
        layers=tuple((names[0], names[1], "".join(names[2:])) for names in layers if names),
        update=update or 0.0,
        coefficient=loss.coefficient if loss else 0.0,
        num_sequences=sizes[loss.over] if loss else global_batch,
        pooled=loss is not None and loss.layers is Layers.POOLED,
        z_loss=(plan.balance.z_loss if plan.balance else None) or 0.0,
    )


def raised_rate(lr: float, *, peak: float) -> float:
    """A learning rate whose updates are not lost in rounding: a group's rises with the optimizer's `peak`."""
    return lr if peak >= LOWEST_RATE else LOWEST_RATE if lr == peak else lr * (LOWEST_RATE / (peak or 1.0))


def _steadied(kind: Optimizer, *, peak: float, loss: AnyLoss) -> Any:
    raised = replace(kind, lr=raised_rate(kind.lr, peak=peak))
    if isinstance(raised, Muon):
        return replace(raised, rest=_steadied(raised.rest, peak=peak, loss=loss))
    return robust(raised, loss)


def robust(kind: Any, loss: AnyLoss | None) -> Any:
    """An optimizer of a plan or a graph, with an eps above rounding errors and blocks of a small model."""
    eps = getattr(kind, "eps", None)
    lowest = LOWEST_EPS_OF_VECTORS if isinstance(loss, Contrastive) else LOWEST_EPS
    changed = {} if eps is None else {"eps": max(eps, lowest)}
    return replace(kind, **changed, **({"block": SMALL_BLOCK} if hasattr(kind, "block") else {}))


def _shortened(schedule: Schedule, *, steps: int | None) -> Schedule:
    if isinstance(schedule, OwnSchedule):
        return schedule
    short = replace(schedule, warmup=min(in_steps(schedule.warmup, steps), MAX_WARMUP_STEPS))
    if isinstance(short, WarmupStableDecay):
        return replace(short, decay=DECAY_STEPS)
    return short


def patience(graph: Graph) -> int:
    """Seconds for which a rank waits for another, longer where each compiles for itself."""
    compiles = any(isinstance(op, CompileModules) for op in graph.setup)
    return 360 if compiles else 60


def given_tokens(op: OpenData, recipe: Recipe, *, padding: int | None, start: int | None) -> OpenData:
    """The op with the tokens of the small model that no text has, and its images."""
    match op:
        case ops.OpenLabeledData() | ops.OpenMatchedData():
            return replace(op, padding_id=padding)
        case ops.OpenMappedData():
            assert padding is not None and start is not None, "an encoder-decoder has both"
            return replace(op, padding_id=padding, start_id=start)
        case ops.OpenImageData():
            images = recipe.data.images
            assert images is not None, "the small model sees images too"
            return replace(op, path=images.path, token=images.token, shape=images.shape)
        case _:
            return op


def short_data(op: OpenData, recipe: Recipe, times: int, vocab_size: int) -> OpenData:
    """The op with `times` micro-batches per step."""
    micro_batch = small_micro_batch(op.micro_batch, recipe.loss)
    return replace(
        op,
        source=recipe.data.source,
        tokenizer="bytes",
        end_of_document=None,
        held_out="",
        epochs="",
        begin_of_document=None,
        sequence_length=min(SEQUENCE_LENGTH, op.sequence_length),
        vocab_size=vocab_size,
        micro_batch=micro_batch,
        global_batch=micro_batch * times,
    )
