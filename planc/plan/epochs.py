"""Words for epochs, and where a plan writes their number."""

from __future__ import annotations

EPOCHS = ("epoch", "epochs")
"""The units of other tools, in lower case."""

EPOCH_HELP = "only the length of the training counts epochs: write `epochs = 3` in `train`"
