"""Saves and loads checkpoints through torch.distributed.checkpoint (DCP), which reshards."""

from planc.runtime.torch.checkpoint.background import BackgroundSaves, Saved
from planc.runtime.torch.checkpoint.loading import latest_step, load
from planc.runtime.torch.checkpoint.saving import Destination, save
from planc.runtime.torch.checkpoint.tensors import TrainingState

__all__ = ["BackgroundSaves", "Destination", "Saved", "TrainingState", "latest_step", "load", "save"]
