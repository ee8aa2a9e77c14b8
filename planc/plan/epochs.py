"""Epochs, which planc does not count: what a plan writes instead."""

from __future__ import annotations

EPOCHS = ("epoch", "epochs")
"""The units of other tools, in lower case."""

EPOCH = "an epoch is the tokens of the data / `tokens_per_step`, in steps"
EPOCH_HELP = f"planc counts steps, not epochs; {EPOCH}"
