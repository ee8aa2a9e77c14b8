"""A schedule of one's own: a cosine that starts again."""

import math

from planc.extend import schedule


@schedule("restarts")
def restarts(step, *, warmup: int = 0, period: int):
    """A linear warm-up, then half a cosine after the other, each of `period` steps."""
    if step <= warmup:
        return step / warmup
    progress = (step - warmup - 1) % period / period
    return 0.5 * (1 + math.cos(math.pi * progress))
