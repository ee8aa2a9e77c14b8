"""Watches a run from Python: stops it when the loss no longer falls, and logs a metric of its own.

torchrun --nproc-per-node 2 examples/callbacks.py examples/own_loop.plan
"""

from __future__ import annotations

import argparse
import sys

import torch

import planc


class Patience(planc.Callback):
    """Ends the run when the loss has not fallen for some steps."""

    def __init__(self, steps: int) -> None:
        self.steps, self.best, self.best_step = steps, float("inf"), 0

    def on_step(self, step: planc.StepView) -> planc.Stop | None:
        if step.loss < self.best:
            self.best, self.best_step = step.loss, step.step
        if step.step - self.best_step < self.steps:
            return None
        return planc.Stop(f"no loss below {self.best:.2f} since step {self.best_step}")


def gradient_cosine(name: str) -> planc.Metric:
    """The cosine of a parameter's gradients in one logged step and the next."""
    last: list[torch.Tensor] = []

    def cosine(step: planc.StepView) -> float:
        gradient = step.gradient(name).flatten()
        before, last[:] = last[:], [gradient]
        return torch.cosine_similarity(gradient, before[0], dim=0).item() if before else 0.0

    return planc.Metric("gradient_cosine", cosine, reduce="mean")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan")
    parser.add_argument("--run-dir", default="runs/callbacks")
    arguments = parser.parse_args()
    return planc.run(
        arguments.plan,
        run_dir=arguments.run_dir,
        callbacks=[Patience(2)],
        metrics=[gradient_cosine("model.norm.weight")],
    ).code


if __name__ == "__main__":
    sys.exit(main())
