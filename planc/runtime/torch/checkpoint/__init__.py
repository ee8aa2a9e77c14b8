"""Saves and loads checkpoints: each rank its own chunks, on any mesh."""

from planc.runtime.torch.checkpoint.background import BackgroundSaves
from planc.runtime.torch.checkpoint.loading import latest_step, load
from planc.runtime.torch.checkpoint.planning import SavePlan, plan_save
from planc.runtime.torch.checkpoint.saving import Destination, save
from planc.runtime.torch.checkpoint.tensors import TrainingState

__all__ = [
    "BackgroundSaves",
    "Destination",
    "SavePlan",
    "TrainingState",
    "latest_step",
    "load",
    "plan_save",
    "save",
]
