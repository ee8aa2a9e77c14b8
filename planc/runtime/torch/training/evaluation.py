"""The loss on held-out text: the same number of forwards on every rank, and one value on all."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from planc.graph.ops import ComputePairLoss, Evaluate, EvaluationOp, OpenEvaluation
from planc.graph.sources import reads_classes, training_data
from planc.runtime.data.evaluation import EvaluationSet
from planc.runtime.data.ops import data_spec
from planc.runtime.errors import RunError
from planc.runtime.interpreter import Position
from planc.runtime.observer import Evaluation
from planc.runtime.torch.agreement.agree import agreed
from planc.runtime.torch.agreement.stopping import Stopping
from planc.runtime.torch.extensions.loss import OwnLoss
from planc.runtime.torch.parallel.fsdp import reshard
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.parallel.pipeline import Pipeline
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import (
    Batch,
    Evaluations,
    EvaluationSets,
    Perform,
    TokenCount,
    Update,
    Weights,
)
from planc.runtime.torch.training.batches import opened
from planc.runtime.torch.training.compiled_graphs import CompiledGraphs
from planc.runtime.torch.training.pipeline_messages import finish_sends
from planc.runtime.torch.training.step_loss import NAMES_OF_MEANS, PairSums, StepLoss, no_accuracy
from planc.tables import plural


@agreed
def open_evaluation(run: Run, op: OpenEvaluation, sets: EvaluationSets | None) -> EvaluationSets | None:
    """Read the text with the tokenizer, packing and length of the training data."""
    training = training_data(run.graph)
    spec, label = data_spec(op, training=training), f"evaluation {op.label}"
    opened_data = opened(run, spec, vocab_size=training.vocab_size, label=label)
    if opened_data is None:
        return None
    num_sequences = opened_data.dataset.num_sequences
    if op.sequences is not None and op.sequences > num_sequences:
        raise RunError(
            f'the evaluation "{op.label}" has {plural(num_sequences, "sequence")}, not {op.sequences}',
            help="lower `sequences`, or leave it out to use all of them",
        )
    evaluation_set = EvaluationSet(
        opened_data.dataset,
        op.sequences or num_sequences,
        training.micro_batch,
        opened_data.fingerprint,
        None if opened_data.masks is None else opened_data.masks.for_evaluation(),
    )
    if evaluation_set.num_target_tokens == 0:
        raise RunError(f'the evaluation "{op.label}" has no labels', help="use a source with answers in it")
    run.observer.noted(f"evaluation {op.label}: {opened_data.dataset.summary()}")
    return EvaluationSets({**(sets.by_label if sets else {}), op.label: evaluation_set})


def forward_alone(
    perform: Perform,
    body: tuple[EvaluationOp, ...],
    at: Position,
    pipeline: Pipeline | None,
    *records: object,
) -> None:
    """Execute the ops of one micro-batch at each of this rank's stages: no backward follows."""
    for stage in pipeline.own if pipeline is not None else (0,):
        perform(body, replace(at, stage=stage), *records)
    if pipeline is not None:
        finish_sends(pipeline)


def evaluate(
    run: Run,
    op: Evaluate,
    at: Position,
    stopping: Stopping,
    perform: Perform,
    mesh: Mesh,
    weights: Weights,
    sets: EvaluationSets,
    update: Update,
    evaluations: Evaluations,
    pipeline: Pipeline | None,
    compiled: CompiledGraphs | None,
    own_loss: OwnLoss | None,
) -> Evaluations:
    """The mean loss over a set, if due.

    Every rank runs the same number of micro-batches, some perhaps without a label, so none waits for another.
    Between two of them a run that is asked to stop ends, without a mean; the checkpoint records that.
    """
    step = update.step
    if step % op.every_steps and step != run.graph.num_steps:
        return evaluations
    began = time.perf_counter()
    dataset, model = sets.by_label[op.label], weights.model
    labels = torch.full((), dataset.num_target_tokens, dtype=torch.int64, device=run.device)
    total = torch.zeros((), dtype=torch.float64, device=run.device)
    pairs, accuracy = None, no_accuracy(run) if reads_classes(run.graph) else None
    if any(isinstance(inner, ComputePairLoss) for inner in op.body):
        pairs = PairSums.begin(op.label, dataset.num_sequences // 2, device=run.device)
    share = StepLoss(total, pairs=pairs, accuracy=accuracy)
    is_stopped = False
    model.eval()
    with torch.no_grad():
        for batch in dataset.micro_batches(dp_size=run.dp_size, dp_rank=run.dp_rank):
            if is_stopped := stopping.stops_here():
                stopping.report_undone(f'the evaluation "{op.label}" after step {step}')
                break
            with stopping.stretch("a micro-batch of an evaluation"):
                own = Batch([batch]), TokenCount(labels), share
                forward_alone(perform, op.body, Position(step), pipeline, *own)
    model.train()
    reshard(model)
    done, others = evaluations.done, tuple(one for one in evaluations.postponed if one != op.label)
    if is_stopped:
        others = (*others, op.label)
    else:
        sums = total.view(1) if share.means is None else torch.cat((total.view(1), share.means))
        loss, *values = mesh.sum_over(sums, op.over).tolist()
        named = dict(zip(NAMES_OF_MEANS.get(len(values), ()), values, strict=True))
        result = Evaluation(op.label, loss, dataset.num_target_tokens, **named)
        done = (*done, result)
        if op.label in evaluations.postponed:
            run.observer.evaluated(result, step=step)
    if compiled is not None:
        compiled.note(run, f"evaluation {op.label} after step {step}")
    return Evaluations(done, others, evaluations.seconds + time.perf_counter() - began)
