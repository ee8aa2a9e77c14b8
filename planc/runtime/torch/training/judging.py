"""The evaluations by which a run ends early, and keeps its best checkpoints: the same on every rank."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import torch

from planc.graph.graph import Graph
from planc.graph.ops import JudgeEvaluations
from planc.runtime.checkpoint_format.manifest import Evaluated
from planc.runtime.torch.parallel.mesh import Mesh
from planc.runtime.torch.run import Run
from planc.runtime.torch.state import Evaluations, EvaluationSets, History, Update
from planc.tables import plural


def judge_evaluations(
    run: Run,
    op: JudgeEvaluations,
    mesh: Mesh,
    sets: EvaluationSets,
    update: Update,
    evaluations: Evaluations,
    history: History,
) -> tuple[Evaluations, History]:
    """Compare the step's loss with the best one, if all parts of the evaluation are done."""
    parts = [part for part in evaluations.done if part.label in op.labels]
    if len(parts) < len(op.labels):
        return evaluations, history
    labels = sum(part.labels for part in parts)
    own = math.fsum(part.loss * part.labels for part in parts) / labels if len(parts) > 1 else parts[0].loss
    of_rank_0 = own if run.launch.rank == 0 else 0.0
    shared = torch.tensor(of_rank_0, dtype=torch.float64, device=run.device)
    loss = float(mesh.sum_over(shared, op.over).item())
    before, data = history.evaluated.get(op.evaluation), _digest(op, sets)
    if before is not None and before.data != data:
        run.observer.noted(
            f"the evaluation {op.evaluation} has other data than before: it has no best loss yet"
        )
        before = None
    judged = _judged(op, before, data=data, loss=loss, step=update.step)
    late = before.late if before is not None else ()
    if history.resumed_at == update.step and judged.loss is not None:
        # The run was asked to stop, and saved the step before it was evaluated.
        late = (*late, (update.step, judged.loss))
    judged = judged.model_copy(update={"late": late})
    history = replace(history, evaluated={**history.evaluated, op.evaluation: judged})
    reason = "" if evaluations.early_stop else reason_to_end(op, judged)
    if reason:
        run.observer.noted(f"the run ends early: {reason}")
    return replace(evaluations, early_stop=evaluations.early_stop or reason), history


def _judged(
    op: JudgeEvaluations, before: Evaluated | None, *, data: str, loss: float, step: int
) -> Evaluated:
    finite = loss if math.isfinite(loss) else None
    best, best_step = (before.best, before.best_step) if before is not None else (None, None)
    if finite is not None and (best is None or finite < best - op.min_delta):
        return Evaluated(data=data, step=step, loss=finite, best=finite, best_step=step)
    without = (before.num_without if before is not None else 0) + 1
    return Evaluated(data=data, step=step, loss=finite, best=best, best_step=best_step, num_without=without)


def reason_to_end(op: JudgeEvaluations, judged: Evaluated | None) -> str:
    """The reason for which this evaluation ends the run; empty if it does not."""
    if judged is None or op.patience is None or judged.num_without < op.patience:
        return ""
    by = f" by more than {op.min_delta:g}" if op.min_delta else ""
    best = f"{judged.best:.4f} at step {judged.best_step}" if judged.best is not None else "a finite loss"
    return f"{op.evaluation} has not improved on {best}{by} in {plural(judged.num_without, 'evaluation')}"


def early_stop(graph: Graph, history: History) -> str:
    """The reason for which the run has ended before its last step; empty if it has not."""
    judges = (op for op in graph.step if isinstance(op, JudgeEvaluations))
    reasons = (reason_to_end(op, history.evaluated.get(op.evaluation)) for op in judges)
    return next(filter(None, reasons), history.stop.reason if history.stop is not None else "")


def _digest(op: JudgeEvaluations, sets: EvaluationSets) -> str:
    """A SHA-256 of what is evaluated."""
    parts = (sets.by_label[label] for label in op.labels)
    texts = (f"{part.fingerprint} {part.num_sequences}\n" for part in parts)
    return hashlib.sha256("".join(texts).encode()).hexdigest()
