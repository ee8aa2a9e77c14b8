"""How long a test waits for what may never end. What planc should take is for scripts to measure."""

from __future__ import annotations

PATIENCE_SECONDS = 20.0
"""Of the processor, for what takes a tenth of it or less: no slow machine needs it, and what grows without
bound does."""
