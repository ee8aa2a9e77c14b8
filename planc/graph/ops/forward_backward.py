"""Ops that compute a loss and its gradients, and the loops over micro-batches."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from planc.extend.reference import Extension
from planc.graph.consequence import DERIVED, derived_sums, layout, numerics, output
from planc.graph.op import Effects, Op, Phase, Resource, Stage
from planc.graph.ops.balance import SumRoutes
from planc.graph.ops.data import ShardContext
from planc.graph.ops.images import EncodeImages
from planc.graph.ops.pipeline import ReceiveHidden, SendHidden
from planc.pipelining.order_text import OrderAsText
from planc.record import record
from planc.vocab import GroupDim, LogitsStep, MeshDim, Pooling


@record(kw_only=True)
class Forward(Op):
    op: Literal["forward"] = "forward"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.FORWARD
    summary: ClassVar[str] = "Runs the model on the local batch."
    touches: ClassVar[Effects] = Effects(
        reads=(
            *(Resource.MESH, Resource.WEIGHTS, Resource.LOCAL_BATCH),
            *(Resource.TOKENS, Resource.STEP_LOSS),
        ),
        finds=(
            Resource.PIPELINE,
            Resource.HIDDEN,
            Resource.DOCUMENTS,
            Resource.DROPOUT,
            Resource.EXPERT_LOAD,
            Resource.COMPILED,
            Resource.BALANCE,
            Resource.OWN_LOSS,
            Resource.IMAGES,
        ),
        writes=(Resource.LOGITS, Resource.STEP_LOSS),
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    """The mesh dims that the model's own layers and units communicate over."""


@record(kw_only=True)
class LoadLoss(Op):
    op: Literal["loss.load"] = "loss.load"
    stage: ClassVar[Stage] = Stage.MESH
    summary: ClassVar[str] = (
        "Runs the plan's own file, and tries that its loss of a token depends on nothing but the token."
    )
    touches: ClassVar[Effects] = Effects(writes=(Resource.OWN_LOSS,))
    extension: Annotated[Extension, numerics("train.loss", "loss")]


@record(kw_only=True)
class BuildLoss(Op):
    op: Literal["loss.build"] = "loss.build"
    stage: ClassVar[Stage] = Stage.MESH
    summary: ClassVar[str] = "Sets the terms of the cross entropy of each token."
    touches: ClassVar[Effects] = Effects(writes=(Resource.OWN_LOSS,))
    label_smoothing: Annotated[float, numerics("train.loss", "label smoothing")]
    z_loss: Annotated[float, numerics("train.loss", "z-loss")]


@record(kw_only=True)
class BuildPreferenceLoss(Op):
    op: Literal["loss.dpo"] = "loss.dpo"
    stage: ClassVar[Stage] = Stage.MESH
    summary: ClassVar[str] = (
        "Sets the loss of a pair of answers, a function of their log-probabilities and the reference's."
    )
    touches: ClassVar[Effects] = Effects(writes=(Resource.OWN_LOSS,))
    beta: Annotated[float, numerics("train.loss", "beta")]
    label_smoothing: Annotated[float, numerics("train.loss", "label smoothing")]


@record(kw_only=True)
class BuildDistillationLoss(Op):
    op: Literal["loss.distillation"] = "loss.distillation"
    stage: ClassVar[Stage] = Stage.MESH
    summary: ClassVar[str] = (
        "Sets the loss of each token of the training data: its cross entropy, and its divergence from the "
        "teacher's stored probabilities. Evaluations have the cross entropy alone."
    )
    touches: ClassVar[Effects] = Effects(writes=(Resource.OWN_LOSS,))
    temperature: Annotated[float, numerics("train.loss", "temperature")]
    weight: Annotated[float, numerics("train.loss", "weight of the teacher")]


_CHUNKS = layout("train.loss_chunks", "loss chunks", is_in_sums=True)


@record(kw_only=True)
class ComputeLoss(Op):
    op: Literal["loss"] = "loss"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.FORWARD
    summary: ClassVar[str] = (
        "Sums the local cross entropy, or the plan's own loss, and divides by the step's global token count."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.LOGITS, Resource.LOCAL_BATCH, Resource.TOKENS, Resource.STEP_LOSS),
        finds=(Resource.PIPELINE, Resource.COMPILED, Resource.OWN_LOSS),
        writes=(Resource.LOSS, Resource.STEP_LOSS),
    )
    vocab_over: Annotated[tuple[MeshDim, ...], derived_sums("tensor_parallel", "loss over tp")]
    """The mesh dim that shards the logits' vocabulary, if any."""
    chunks: Annotated[int, _CHUNKS] = 1
    """Parts of the tokens whose logits exist at a time. With several, the forward of the head computes each
    part's logits, loss and gradients in turn."""
    head: Annotated[str | None, _CHUNKS] = None
    """The linear layer that computes the logits, with several chunks."""
    logits: Annotated[tuple[LogitsStep, ...], _CHUNKS] = ()
    """The steps from the head's output to the logits, with several chunks."""
    by_sequence: Annotated[bool, numerics("model.task", "loss of sequences")] = False
    """Whether logits and labels are of whole sequences."""

    @property
    def unstable(self) -> str:
        return "loss_parallel: experimental in PyTorch, and subject to change" if self.vocab_over else ""

    @property
    def communicates(self) -> tuple[MeshDim, ...]:
        return self.vocab_over


@record(kw_only=True)
class ComputePairLoss(ComputeLoss):
    op: Literal["loss.pairs"] = "loss.pairs"  # type: ignore[assignment]  # a loss of its own kind
    summary: ClassVar[str] = (
        "Sums the log-probability of each answer, and from those of each pair and its reference computes the "
        "local share of the mean over the step's pairs."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(
            *(Resource.MESH, Resource.LOGITS, Resource.LOCAL_BATCH),
            *(Resource.STEP_LOSS, Resource.OWN_LOSS),
        ),
        finds=(Resource.PIPELINE,),
        writes=(Resource.LOSS, Resource.STEP_LOSS),
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    """The mesh dims whose ranks have different parts of an answer."""

    @property
    def communicates(self) -> tuple[MeshDim, ...]:
        return (*self.vocab_over, *self.over)


@record(kw_only=True)
class ComputeContrastiveLoss(ComputeLoss):
    op: Literal["loss.contrastive"] = "loss.contrastive"  # type: ignore[assignment]  # a loss of its own kind
    summary: ClassVar[str] = (
        "Pools each sequence's hidden states to a vector of length 1, and sums the cross entropies of each "
        "query's positive among those of its group; divides by the step's global number of pairs."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.LOGITS, Resource.LOCAL_BATCH, Resource.TOKENS, Resource.STEP_LOSS),
        writes=(Resource.LOSS, Resource.STEP_LOSS),
    )
    pooling: Annotated[Pooling, numerics("model.task", "pooling")]
    temperature: Annotated[float, numerics("train.loss", "temperature")]
    group: Annotated[int, numerics("train.loss", "pairs of a group")]
    """The pairs whose positives a query is compared with: its negatives are never of another micro-batch."""


@record(kw_only=True)
class Backward(Op):
    op: Literal["backward"] = "backward"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.BACKWARD
    summary: ClassVar[str] = (
        "Runs the backward pass; sharded units and whole replicas reduce their gradients on the last micro "
        "step."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.WEIGHTS, Resource.LOSS),
        finds=(Resource.PIPELINE, Resource.HIDDEN, Resource.UNITS, Resource.REPLICA_SUMS),
        writes=(Resource.GRADIENTS, Resource.REPLICA_SUMS),
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]


@record(kw_only=True)
class ComputeWeightGradients(Op):
    op: Literal["backward.weights"] = "backward.weights"
    stage: ClassVar[Stage] = Stage.STEP
    phase: ClassVar[Phase] = Phase.BACKWARD
    summary: ClassVar[str] = (
        "Computes the gradients of weights that the backward pass of one micro-batch has deferred; sharded "
        "units and whole replicas reduce theirs on the last micro step."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.PIPELINE, Resource.GRADIENTS),
        finds=(Resource.UNITS, Resource.REPLICA_SUMS),
        writes=(Resource.GRADIENTS,),
    )
    over: Annotated[tuple[MeshDim, ...], DERIVED]


MicroOp = (
    ShardContext
    | EncodeImages
    | ReceiveHidden
    | Forward
    | SendHidden
    | SumRoutes
    | ComputePairLoss
    | ComputeContrastiveLoss
    | ComputeLoss
    | Backward
    | ComputeWeightGradients
)


@record(kw_only=True)
class Accumulate(Op):
    op: Literal["accumulate"] = "accumulate"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "Repeats its body over the step's micro-batches and accumulates gradients."
    times: Annotated[int, layout("train.tokens_per_step", "gradient_accumulation", is_in_sums=True)]
    body: tuple[MicroOp, ...]
    orders: Annotated[tuple[OrderAsText, ...], layout("pipeline.schedule", "pipeline")] = ()
    """The actions of each pp rank, in order: see `planc.pipelining.orders`. Ops up to the loss are a
    forward, those after it are a backward, but for `backward.weights`."""

    @property
    def communicates(self) -> tuple[GroupDim, ...]:
        return tuple(dict.fromkeys(dim for op in self.body for dim in op.communicates))

    def effects(self) -> Effects:
        """The body's effects: resources it reads before writing them, all it writes, and its mesh dims."""
        parts = [op.effects() for op in self.body]
        writes = tuple(dict.fromkeys(resource for part in parts for resource in part.writes))
        written: set[Resource] = set()
        reads: list[Resource] = []
        for part in parts:
            reads += (resource for resource in part.reads if resource not in written)
            written.update(part.writes)
        finds = (resource for part in parts for resource in part.finds if resource not in writes)
        return Effects(
            reads=tuple(dict.fromkeys(reads)),
            finds=tuple(dict.fromkeys(finds)),
            writes=writes,
            communicates=self.communicates,
        )


EvaluationOp = (
    ShardContext
    | EncodeImages
    | ReceiveHidden
    | Forward
    | SendHidden
    | ComputePairLoss
    | ComputeContrastiveLoss
    | ComputeLoss
)


def _evaluation_dims(op: ComputeReference | Evaluate) -> tuple[GroupDim, ...]:
    """The mesh dims of an op's body, and its own."""
    dims = (dim for part in op.body for dim in part.communicates)
    return tuple(dict.fromkeys((*dims, *op.over)))


@record(kw_only=True)
class ComputeReference(Op):
    op: Literal["reference"] = "reference"
    stage: ClassVar[Stage] = Stage.DATA
    summary: ClassVar[str] = (
        "Runs its body on all pairs with the weights that training starts from, or those of another model, "
        "and keeps the log-probability of each answer."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(Resource.MESH, Resource.WEIGHTS, Resource.OWN_LOSS),
        finds=(Resource.PIPELINE, Resource.DATA, Resource.EVALUATION_SETS),
        writes=(Resource.OWN_LOSS,),
    )
    label: Annotated[str, DERIVED]
    """The evaluation whose pairs they are; empty for the training data."""
    path: Annotated[str | None, numerics("train.loss", "reference")] = None
    """The directory of the other model."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    """The mesh dims whose ranks see different tokens, and pp, whose last rank has the logits."""
    body: tuple[EvaluationOp, ...]
    """The ops of one micro-batch; every rank runs them equally often."""

    @property
    def communicates(self) -> tuple[GroupDim, ...]:
        return _evaluation_dims(self)


@record(kw_only=True)
class Evaluate(Op):
    op: Literal["evaluate"] = "evaluate"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = "When due, runs its body to compute the mean loss on evaluation data."
    touches: ClassVar[Effects] = Effects(
        reads=(
            *(Resource.MESH, Resource.WEIGHTS, Resource.EVALUATION_SETS),
            *(Resource.UPDATE, Resource.EVALUATIONS),
        ),
        finds=(Resource.PIPELINE, Resource.COMPILED, Resource.OWN_LOSS),
        writes=(Resource.EVALUATIONS,),
    )
    label: Annotated[str, output("data.eval", "evaluations")]
    every_steps: Annotated[int, output("data.eval", "evaluations")]
    """The last step is due as well."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    """The mesh dims whose ranks see different tokens, and pp, whose last rank has the loss."""
    body: tuple[EvaluationOp, ...]
    """The ops of one micro-batch; every rank runs them equally often."""

    @property
    def communicates(self) -> tuple[GroupDim, ...]:
        return _evaluation_dims(self)


@record(kw_only=True)
class JudgeEvaluations(Op):
    op: Literal["evaluate.judge"] = "evaluate.judge"
    stage: ClassVar[Stage] = Stage.STEP
    summary: ClassVar[str] = (
        "After an evaluation, compares its loss with the best one. The run ends after `patience` evaluations "
        "in a row without improvement."
    )
    touches: ClassVar[Effects] = Effects(
        reads=(
            *(Resource.MESH, Resource.EVALUATION_SETS, Resource.UPDATE),
            *(Resource.EVALUATIONS, Resource.HISTORY),
        ),
        writes=(Resource.EVALUATIONS, Resource.HISTORY),
    )
    evaluation: Annotated[str, output("data.eval", "evaluations")]
    """The evaluation's name in the plan."""
    labels: Annotated[tuple[str, ...], DERIVED]
    """Its parts, one for each source that it takes a share of: the loss is the mean over all their labels."""
    patience: Annotated[int | None, output("data.eval", "evaluations")]
    min_delta: Annotated[float, output("data.eval", "evaluations")]
    keep_best: Annotated[int, output("data.eval", "evaluations")]
    """The number of checkpoints that are kept for this loss."""
    over: Annotated[tuple[MeshDim, ...], DERIVED]
    """All mesh dims: every rank takes the loss of rank 0, since rounding must not make them differ."""

    @property
    def policy(self) -> str:
        """`ends the run after 3 evaluations without improvement, keeps the best 2 checkpoints`."""
        by = f" by more than {self.min_delta:g}" if self.min_delta else ""
        evaluations = "evaluation" if self.patience == 1 else f"{self.patience} evaluations"
        ends = f"ends the run after {evaluations} without improvement{by}" if self.patience else ""
        best = "checkpoint" if self.keep_best == 1 else f"{self.keep_best} checkpoints"
        return ", ".join(filter(None, (ends, f"keeps the best {best}" if self.keep_best else "")))
