"""Callbacks and metrics that read everything, for any mesh."""

from __future__ import annotations

import planc


class Tensors(planc.Callback):
    """The sum, and a sum with weights by position, of every parameter and gradient of each step."""

    ranks = "all"

    def __init__(self) -> None:
        self.sums: list[dict[str, list[float]]] = []

    def on_gradients(self, step: planc.StepView) -> None:
        import torch

        found = {}
        for name in step.parameter_names:
            for kind, whole in (("g", step.gradient(name)), ("p", step.parameter(name))):
                places = torch.linspace(0.5, 1.5, whole.numel(), dtype=torch.float64)
                flat = whole.double().flatten()
                found[f"{kind} {name}"] = [*whole.shape, (flat * places).sum().item(), flat.norm().item()]
        self.sums.append(found)


@planc.metric(reduce="max")
def biggest(step: planc.StepView) -> float:
    return max(step.gradient(name).abs().max().item() for name in step.parameter_names)


@planc.metric(reduce="sum")
def ones(step: planc.StepView) -> float:
    return 1.0


@planc.metric(reduce="mean")
def rank_mean(step: planc.StepView) -> float:
    return float(step.rank)


def cosine() -> planc.Metric:
    """The cosine of each step's gradient and the one before."""
    import torch

    last: list[torch.Tensor] = []

    def grad_cosine(step: planc.StepView) -> float:
        gradients = [step.gradient(name).double().flatten() for name in step.parameter_names]
        flat = torch.cat(gradients)
        before, last[:] = last[:], [flat]
        return torch.nn.functional.cosine_similarity(flat, before[0], dim=0).item() if before else 0.0

    return planc.Metric("grad_cosine", grad_cosine, "mean")
