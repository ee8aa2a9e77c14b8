"""A callback of one's own: it ends a run that learns no more."""

from planc.extend import Stop, callback


@callback("patience")
class Patience:
    """Ends the run once the loss has not fallen for some steps."""

    def __init__(self, *, steps: int, least: float = 0.0):
        self.steps, self.least = steps, least
        self.best, self.best_step = float("inf"), 0

    def on_step(self, step):
        if step.loss < self.best - self.least:
            self.best, self.best_step = step.loss, step.step
        if step.step - self.best_step < self.steps:
            return None
        return Stop(f"no loss below {self.best:.2f} since step {self.best_step}")
