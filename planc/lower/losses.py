"""The loss of a plan, unless it is plain cross entropy, as an op."""

from __future__ import annotations

from collections.abc import Iterator

from planc.extend.reference import Extension
from planc.graph.ops import BuildLoss, BuildPreferenceLoss, LoadLoss
from planc.plan.spec import Plan
from planc.plan.train import Preference


def build_loss(plan: Plan) -> Iterator[LoadLoss | BuildPreferenceLoss | BuildLoss]:
    """One op, if the loss has settings."""
    loss, span = plan.train.loss, plan.span("train.loss")
    if isinstance(loss, Extension):
        yield LoadLoss(extension=loss, span=span)
    elif isinstance(loss, Preference):
        yield BuildPreferenceLoss(beta=loss.beta, label_smoothing=loss.label_smoothing, span=span)
    elif loss.has_terms:
        yield BuildLoss(label_smoothing=loss.label_smoothing, z_loss=loss.z_loss, span=span)
