"""An optimizer of one's own: Lion (arXiv 2302.06675)."""

from planc.extend import optimizer


@optimizer("lion", state=("momentum",))
def lion(parameter, gradient, state, *, lr, weight_decay, betas: list = (0.9, 0.99)):
    """Steps of equal size in each element, in the direction of a momentum."""
    momentum = state["momentum"]
    direction = (momentum * betas[0] + gradient * (1 - betas[0])).sign_()
    parameter.mul_(1 - lr * weight_decay).sub_(direction, alpha=lr)
    momentum.mul_(betas[1]).add_(gradient, alpha=1 - betas[1])
